"""An address of http or https, and what may be shown of it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, unquote, urlsplit

from kvhouse.errors import KvhouseError
from kvhouse.web.mask import mask

#: Scheme, name and port.
Host = tuple[str, str | None, int | None]


class FetchError(KvhouseError):
    """A server that did not give what was asked for.

    Attributes:
        status: The status that it answered with; None where that is not what was wrong.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    """An address.

    Attributes:
        url: Without a user and a password.
        headers: What carries them instead.
        shown: For messages.
        host: Which server it is.
    """

    url: str
    headers: dict[str, str]
    shown: str
    host: Host

    @staticmethod
    def of(url: str) -> Address:
        """Read an address, which may have a user and a password in it.

        Raises:
            FetchError: It is none of http or https.
        """
        shown = mask(url)
        try:
            parts = urlsplit(url)
            host = host_of(parts)
        except ValueError:
            raise FetchError(f"{shown}: is no address") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
            raise FetchError(f"{shown}: give an address such as http://127.0.0.1:8000")
        if any(not character.isprintable() or character == " " for character in url):
            raise FetchError(f"{shown}: is no address")
        headers = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        return Address(plain.geturl(), headers, shown, host)

    @property
    def path(self) -> str:
        """The path, without a slash at its end; empty for none."""
        return urlsplit(self.url).path.rstrip("/")

    def at(self, path: str, query: str | None = None) -> Address:
        """The same server at another path; the query stays where none is given."""
        parts = urlsplit(self.url)._replace(path=path)
        return replace(self, url=(parts if query is None else parts._replace(query=query)).geturl())


def host_of(parts: SplitResult) -> Host:
    """Which server an address is of."""
    return parts.scheme, parts.hostname, parts.port
