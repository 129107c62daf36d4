"""The connections of a fetch, which another thread can cut."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from contextlib import suppress
from typing import Any


class Line:
    """All connections of one fetch.

    A socket's own timeout begins anew with each byte, so that a server may go on for ever with a
    byte now and then. What bounds the time is that the line is cut.
    """

    def __init__(self) -> None:
        self._connections: list[_Plain] = []
        self._is_cut = False

    def plain(self, host: str, /, **options: Any) -> http.client.HTTPConnection:  # noqa: ANN401 - as urllib says
        """A connection of http.

        Raises:
            TimeoutError: The line has been cut.
        """
        return self._noted(_Plain(host, **options))

    def secure(self, host: str, /, **options: Any) -> http.client.HTTPConnection:  # noqa: ANN401 - as urllib says
        """A connection of https.

        Raises:
            TimeoutError: The line has been cut.
        """
        return self._noted(_Secure(host, **options))

    def _noted(self, connection: _Plain) -> http.client.HTTPConnection:
        connection.line = self
        self._connections.append(connection)
        self.check()
        return connection

    def check(self) -> None:
        """Go on only where the line is whole.

        Raises:
            TimeoutError: It has been cut.
        """
        if self._is_cut:
            raise TimeoutError

    def cut(self) -> None:
        """End whatever is read from any connection, and let no other be made."""
        self._is_cut = True
        for connection in list(self._connections):
            connection.cut()


class Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Has urllib make its connections by a line."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server."""
        return self.do_open(self._line.plain, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server, through TLS with the certificates that Python trusts."""
        return self.do_open(self._line.secure, req)


class _Plain(http.client.HTTPConnection):
    line: Line
    _reading: socket.socket | None = None

    def getresponse(self) -> http.client.HTTPResponse:
        # With the head urllib lets go of the socket, from which the body is still to be read.
        self._reading = self.sock
        self.line.check()
        return super().getresponse()

    def cut(self) -> None:
        connected = self._reading or self.sock
        if connected is not None:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Secure(_Plain, http.client.HTTPSConnection):
    pass
