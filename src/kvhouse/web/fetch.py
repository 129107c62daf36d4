"""Asks a server for a document: bounded in time and size, and of no other kind of address."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future
from typing import IO
from urllib.parse import urlsplit

from kvhouse.web.address import Address, FetchError, host_of
from kvhouse.web.line import Handler, Line
from kvhouse.web.mask import mask
from kvhouse.web.proxy import proxy_for

#: Seconds for one reply, from the name of its server to the last byte.
PATIENCE = 10.0
#: A longer reply is refused: scrapes of large servers have some hundred kilobytes.
MOST_BYTES = 16 * 2**20
_PIECE = 2**16


def fetch(
    address: Address, headers: Mapping[str, str] | None = None, patience: float = PATIENCE
) -> bytes:
    """What a server answers with; redirects are followed to the same server only.

    Args:
        address: What to ask for.
        headers: To be sent as well.
        patience: Seconds to wait at most, redirects included.

    Raises:
        KvhouseError: The environment names a proxy of a kind that is not known.
        FetchError: There was no answer, or too long a one, or one that is an error.
    """
    proxy, line, answer = proxy_for(address.url), Line(), Future[bytes]()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({address.host[0]: proxy} if proxy else {}),
        _SameHost(address),
        Handler(line),
    )
    asked = urllib.request.Request(address.url, headers=address.headers | dict(headers or {}))

    def ask() -> None:
        try:
            answer.set_result(_ask(opener, asked, address, patience))
        except Exception as error:
            answer.set_exception(error)

    # Looking up a name cannot be ended, so that a thread does it which nobody has to wait for.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(patience)
    except TimeoutError:
        raise FetchError(f"{address.shown}: no answer within {patience:g} seconds") from None
    finally:
        line.cut()


def _ask(
    opener: urllib.request.OpenerDirector,
    asked: urllib.request.Request,
    address: Address,
    patience: float,
) -> bytes:
    """What is answered.

    Raises:
        FetchError: See ``fetch``.
        TimeoutError: For so long nothing came at all.
    """
    try:
        with opener.open(asked, timeout=patience) as reply:
            return _read(reply, address)
    except urllib.error.HTTPError as error:
        error.close()
        said = f"answers {error.code} {mask(error.reason)}".rstrip()
        raise FetchError(f"{address.shown}: {said}", error.code) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            raise reason from None
        raise FetchError(f"{address.shown}: no answer: {mask(str(reason))}") from None


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a server to another path, such as ``/metrics/``, and to no other server."""

    def __init__(self, address: Address) -> None:
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
        fp.close()  # or urllib would read all that comes with the redirect
        if host_of(urlsplit(newurl)) != self.address.host:
            raise FetchError(
                f"{self.address.shown}: sends us to {mask(newurl)}: give that address if it is "
                "right"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(reply: http.client.HTTPResponse, address: Address) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := reply.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise FetchError(f"{address.shown}: answers with more than {MOST_BYTES:,} bytes")
    return b"".join(pieces)
