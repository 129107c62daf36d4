"""Asks a server for its metrics."""

from __future__ import annotations

from kvhouse.web.address import Address
from kvhouse.web.fetch import PATIENCE
from kvhouse.web.fetch import fetch as fetch_document


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
    address = Address.of(url)
    return fetch_document(address.at(address.path or "/metrics"), patience=patience)
