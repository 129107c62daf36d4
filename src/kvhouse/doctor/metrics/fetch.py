"""Asks a server for its metrics: bounded in time and size, and of no other kind of address."""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO
from urllib.parse import SplitResult, unquote, urlsplit

from kvhouse.doctor.mask import mask
from kvhouse.errors import KvhouseError

#: Seconds for one reply, from the request to its last byte.
PATIENCE = 10.0
#: A longer reply is refused: scrapes of large servers have some hundred kilobytes.
MOST_BYTES = 16 * 2**20
_PIECE = 2**16


class FetchError(KvhouseError):
    """A server that did not answer with metrics."""


def is_url(text: str) -> bool:
    """Whether a command's argument is an address and no file."""
    return "://" in text[:16]


def fetch(url: str, patience: float = PATIENCE) -> bytes:
    """What a server answers with; ``/metrics`` is added where the address has no path.

    Args:
        url: An address of http or https, which may have a user and a password in it.
        patience: Seconds to wait at most.

    Raises:
        FetchError: It is no such address, or there was no answer, or too long a one.
    """
    address = _Address.of(url)
    request = urllib.request.Request(address.url, headers=address.headers)
    opener = urllib.request.build_opener(_SameHost(address))
    deadline = time.monotonic() + patience
    try:
        with opener.open(request, timeout=patience) as reply:
            return _read(reply, deadline, address)
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchError(f"{address.shown}: answers {error.code} {mask(error.reason)}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(f"{address.shown}: no answer: {mask(str(reason))}") from None


@dataclass(frozen=True, slots=True)
class _Address:
    """An address, and what may be shown of it.

    Attributes:
        url: Without a user and a password.
        headers: What carries them instead.
        shown: For messages.
        host: Scheme, name and port.
    """

    url: str
    headers: dict[str, str]
    shown: str
    host: tuple[str, str | None, int | None]

    @staticmethod
    def of(url: str) -> _Address:
        shown = mask(url)
        try:
            parts = urlsplit(url)
            host = _host(parts)
        except ValueError:
            raise FetchError(f"{shown}: is no address") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
            raise FetchError(f"{shown}: give an address of http or https, or the name of a file")
        if any(not character.isprintable() or character == " " for character in url):
            raise FetchError(f"{shown}: is no address")
        headers = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        plain = parts._replace(
            netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/") or "/metrics"
        )
        return _Address(plain.geturl(), headers, shown, host)


def _host(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a server to another path, such as ``/metrics/``, and to no other server."""

    def __init__(self, address: _Address) -> None:
        self.address = address

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """A request for the other path."""
        if _host(urlsplit(newurl)) != self.address.host:
            fp.close()
            raise FetchError(
                f"{self.address.shown}: sends us to {mask(newurl)}: give that address if it is "
                "right"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(reply: http.client.HTTPResponse, deadline: float, address: _Address) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := reply.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise FetchError(f"{address.shown}: answers with more than {MOST_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise FetchError(f"{address.shown}: did not end its answer in time")
    return b"".join(pieces)
