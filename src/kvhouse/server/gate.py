"""The gate in front of the application: who may enter, and with how much."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvhouse.server.errors import ApiError
from kvhouse.server.keys import Keyring
from kvhouse.server.settings import ServerSettings

#: Paths that show nothing of anybody's and need no key.
OPEN_PATHS = frozenset({"/health", "/ui", "/openapi.json"})

#: Digits of a length that no body has.
_DIGITS = 18


class Gate:
    """Checks the key and reads the body, within its limits, before anything else is done.

    What it lets in finds the tenant's salt in ``scope["kvhouse.salt"]``.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._keys = Keyring(settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            scope["kvhouse.salt"] = self._salt(scope["path"], headers)
            body = await self._body(headers, receive)
        except ApiError as error:
            response = JSONResponse(error.body(), error.status_code, error.headers)
            await response(scope, receive, send)
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

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None where the client went away before it came."""
        most = self._settings.max_body
        said = headers.get("content-length", "0")
        if said.isdecimal() and (len(said) > _DIGITS or int(said) > most):
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not come within {self._settings.request_seconds:g} s"
            ) from None


def _too_large(most: int) -> ApiError:
    # The rest of the body would be taken for the next request.
    return ApiError(
        413, f"the body has more than {most:,} bytes: send less", headers={"connection": "close"}
    )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, and then what the client does next."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
