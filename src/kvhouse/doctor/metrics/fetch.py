"""Asks a server for its metrics."""

from __future__ import annotations

from kvhouse.web.address import Address
from kvhouse.web.fetch import PATIENCE
from kvhouse.web.fetch import fetch as fetch_document


def is_url(text: str) -> bool:
    """Whether a command's argument is an address and no file."""
    return "://" in text[:16]


def fetch(url: str, patience: float = PATIENCE, key: str | None = None) -> bytes:
    """What a server answers with; ``/metrics`` is added where the address has no path.

    Args:
        url: An address of http or https, which may have a user and a password in it.
        patience: Seconds to wait at most.
        key: An API key to send, where the address has no login of its own.

    Raises:
        FetchError: It is no such address, or there was no answer, or too long a one.
    """
    address = Address.of(url)
    headers = {} if key is None or address.headers else {"Authorization": f"Bearer {key}"}
    return fetch_document(address.at(address.path or "/metrics"), headers, patience)
