"""API keys: who may ask, and what sets their prefix caches apart."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

_SCHEME = b"bearer "


class Keyring:
    """The keys of a server; without any, everyone may ask, and shares the prefix cache."""

    def __init__(self, keys: Sequence[str]) -> None:
        # Digests have one length, so a comparison tells nothing of a key's own.
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._salts = [sha256(b"kvhouse salt " + digest).hexdigest() for digest in self._digests]

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return not self._digests

    def salt(self, authorization: bytes | None) -> str | None:
        """The salt of the tenant whose key an ``Authorization`` header carries.

        Every key is compared in full, whichever it is, so that the time taken tells nothing.

        Raises:
            PermissionError: It carries none of the keys.
        """
        if self.open:
            return None
        given = authorization or b""
        scheme, token = given[: len(_SCHEME)].lower(), given[len(_SCHEME) :].strip()
        digest, found = sha256(token).digest(), None
        for known, salt in zip(self._digests, self._salts, strict=True):
            if compare_digest(known, digest):
                found = salt
        if found is None or scheme != _SCHEME:
            raise PermissionError
        return found
