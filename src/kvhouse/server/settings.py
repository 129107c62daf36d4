"""What a server allows and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvhouse.errors import KvhouseError

#: Bodies of all requests together: so many of the longest, and so many bytes at least.
_BODIES, _LEAST_HELD = 16, 64 * 2**20

#: Most answers to one request: its prompts times its ``n``.
MOST_ANSWERS = 128


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server allows and for how long.

    Attributes:
        model: The name that requests must give.
        api_keys: Who may ask; empty for everyone. Requests with different keys share no blocks.
        max_body: Longest body of a request, in bytes.
        max_prompt: Longest prompt, in tokens; None for all but one token of
            the longest request.
        max_queue: Most answers that may wait for memory; more are refused with status 429.
        max_connections: Most connections at once; more are answered with status 503. A process
            that may open fewer files has fewer.
        request_seconds: How long a request may take from its head to its last token, the time that
            its body takes included.
        grace_seconds: How long running requests may go on after the server was told to end.

    Raises:
        KvhouseError: A limit out of range, or a key that no header can carry.
    """

    model: str
    api_keys: Sequence[str] = field(default=(), repr=False)
    max_body: int = 4 * 2**20
    max_prompt: int | None = None
    max_queue: int = 256
    max_connections: int = 1000
    request_seconds: float = 600.0
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_body", "max_prompt", "max_queue", "max_connections"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise KvhouseError(f"{name} {value}: must be at least 1")
        if not 0 < self.request_seconds < 1e9:
            raise KvhouseError(f"request time {self.request_seconds}: give seconds above 0")
        if not 0 <= self.grace_seconds < 1e9:
            raise KvhouseError(f"grace time {self.grace_seconds}: give seconds, 0 or more")
        for place, key in enumerate(self.api_keys, 1):
            # A key is a secret: the message says which one, and nothing of it.
            if not key.isascii() or not key.isprintable() or not key or " " in key:
                raise KvhouseError(
                    f"API key number {place}: give printable ASCII characters without spaces"
                )

    @property
    def max_held(self) -> int:
        """Most bytes of bodies that all requests may hold together, from first byte to answer."""
        return max(_BODIES * self.max_body, _LEAST_HELD)
