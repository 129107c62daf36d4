"""Connections: how many there may be, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from kvhouse.server.app import App
from kvhouse.server.errors import error_body
from kvhouse.server.settings import ServerSettings

#: Seconds for the head of a request, from its first byte or from the connection on.
HEAD_SECONDS = 30.0
#: Files that the process has open beside its connections, at most.
_OTHER_FILES = 128
#: Seconds for which a refused client may read why, and how many may do so at once. A connection
#: that is closed while bytes lie unread takes with it what was sent last.
_LINGER, _MOST_LINGERING = 1.0, 32


class Config(uvicorn.Config):
    """Uvicorn's settings, and the limits of connections.

    Attributes:
        most: Connections at once: what the server allows, if the process may open as many files.
        head_seconds: Time for the head of a request.
        lingering: Refused clients that may still read why.
    """

    def __init__(self, app: App, settings: ServerSettings, last_words: int) -> None:
        super().__init__(
            app,
            http=Connection,
            log_level="error",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=last_words,
        )
        self.most = min(settings.max_connections, _files() - _OTHER_FILES)
        self.head_seconds = min(HEAD_SECONDS, settings.request_seconds)
        self.lingering: set[Connection] = set()


class Connection(H11Protocol):
    """One connection. h11 bounds the head of a request to 16 KiB; here its time is bounded."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config
        self._refused = False
        #: What ends the wait for a head, or for a refused client.
        self._timer: asyncio.TimerHandle | None = None
        #: Bytes that the client had not taken at the last sweep, of a connection about to close.
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, or say that there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self._limits.most:
            self._refuse()
        else:
            self._mind_head()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if not self._refused:
            super().data_received(data)
            self._mind_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in the shape of all errors, unless an answer has begun."""
        del msg
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_NO_HTTP)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_waiting()
        self._limits.lingering.discard(self)
        super().connection_lost(exc)

    def sweep(self) -> None:
        """End a connection that waits, in order to close, for a client who takes no bytes."""
        left = self.transport.get_write_buffer_size() if self.transport.is_closing() else 0
        if 0 < self._left <= left:
            self.transport.abort()
        self._left = left

    def _mind_head(self) -> None:
        """Have the connection closed in time, where the head of a request is to come."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        self._refused = True
        self.connections.discard(self)
        self.transport.write(_TOO_MANY)
        if len(self._limits.lingering) >= _MOST_LINGERING:
            self.transport.close()
            return
        self._limits.lingering.add(self)
        with suppress(OSError):  # the client may be gone by now
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER, self.transport.abort)


def _files() -> int:
    """Files that this process may have open."""
    if os.name != "posix":
        return 2**31
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else max(soft, _OTHER_FILES + 1)


def _response(status: HTTPStatus, message: str, code: str | None, *headers: bytes) -> bytes:
    """An answer that needs no request, after which the connection is closed."""
    body = json.dumps(error_body(status, message, code=code)).encode()
    lines = (
        b"HTTP/1.1 %d %b" % (status, status.phrase.encode()),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
        *headers,
    )
    return b"\r\n".join([*lines, b"", body])


_TOO_MANY = _response(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "too many connections: try again later",
    "overloaded",
    b"retry-after: 1",
)
_NO_HTTP = _response(HTTPStatus.BAD_REQUEST, "this is no HTTP request that can be read", None)
