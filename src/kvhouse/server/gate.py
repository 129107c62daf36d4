"""The gate in front of the application: who may enter, and with how much."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvhouse.server.desk import Desk
from kvhouse.server.errors import ApiError, about_to_end
from kvhouse.server.held import Held, Share
from kvhouse.server.keys import Keyring

#: Paths that show nothing of anybody's and need no key.
OPEN_PATHS = frozenset({"/health", "/ui", "/openapi.json"})

#: Seconds for which the rest of a refused body is read.
_LINGER = 1.0

#: Digits of a length that no body has.
_DIGITS = 18


class Gate:
    """Checks the key and reads the body, within its limits, before anything else is done.

    What it lets in finds in its scope the tenant's salt, ``kvhouse.salt``, and the time of the
    event loop until which it must have been answered, ``kvhouse.deadline``.
    """

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk
        self._settings = desk.settings
        self._keys = Keyring(desk.settings.api_keys)
        self._held = Held(desk.settings.max_held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        deadline = asyncio.get_running_loop().time() + self._settings.request_seconds
        scope["kvhouse.deadline"] = deadline
        coming = _Coming(receive)
        with closing(self._held.share()) as share:
            try:
                scope["kvhouse.salt"] = self._salt(scope["path"], headers)
                body = await self._body(headers, coming, share, deadline)
            except ApiError as error:
                share.close()
                if error.status_code != 408 and "expect" not in headers:
                    await coming.discard()
                # What is left of the body would be taken for the next request.
                ending = {**(error.headers or {}), "connection": "close"}
                await JSONResponse(error.body(), error.status_code, ending)(scope, receive, send)
                return
            if body is not None:
                await self._app(scope, _replayed(body, receive), send)

    def _salt(self, path: str, headers: Headers) -> str | None:
        if path in OPEN_PATHS:
            return None
        given = headers.get("authorization")
        try:
            return self._keys.salt(None if given is None else given.encode("latin-1"))
        except PermissionError:
            raise ApiError(
                401,
                "no such API key: send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            ) from None

    async def _body(
        self, headers: Headers, coming: _Coming, share: Share, deadline: float
    ) -> bytes | None:
        """The whole body; None where the client went away before it came."""
        if self._desk.closing:
            raise about_to_end()
        most = self._settings.max_body
        too_large = ApiError(413, f"the body has more than {most:,} bytes: send less")
        said = headers.get("content-length", "0")
        if said.isdecimal() and (len(said) > _DIGITS or int(said) > most):
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout_at(deadline) as wait:
                with self._desk.reading(wait):
                    while not coming.ended:
                        piece = await coming.piece()
                        if len(body) + len(piece) > most:
                            raise too_large
                        share.take(len(piece))
                        body += piece
        except TimeoutError:
            if self._desk.closing:
                raise about_to_end() from None
            raise ApiError(
                408, f"the body did not come within {self._settings.request_seconds:g} s"
            ) from None
        return None if coming.gone else bytes(body)


class _Coming:
    """A body on its way.

    Attributes:
        ended: Whether nothing more of it comes.
        gone: Whether that is because the client went away.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = self.gone = False

    async def piece(self) -> bytes:
        """What comes next of it."""
        message = await self._receive()
        self.gone = message["type"] != "http.request"
        self.ended = self.gone or not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def discard(self) -> None:
        """Read the rest of a body that is refused, for a moment.

        A connection that is closed while bytes lie unread takes with it what was sent last.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while not self.ended:
                    await self.piece()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, and then what the client does next."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
