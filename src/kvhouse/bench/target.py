"""What a load is sent to: whoever answers a prompt token by token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        prompt: Token ids, random ones that begin alike where the trace says so.
        new_tokens: How many tokens are wanted, whatever they are.
    """

    prompt: list[int]
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that came at once; as many as can be told before the answer is whole."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer came to, in the target's own count.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        cached_tokens: Prompt tokens that it had in its cache; None where it does not say.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


class Failed(Exception):
    """A request came to nothing.

    Attributes:
        kind: ``connection``, ``timeout``, ``cut``, ``malformed``, ``rejected``, ``server``, or
            ``http_`` and a status.
        reason: What there is to say, in a line.
        retry_after: Seconds after which the target wants to be asked again; None where it did not
            say.
    """

    def __init__(self, kind: str, reason: str, retry_after: float | None = None) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason
        self.retry_after = retry_after


class Target(Protocol):
    """Answers requests.

    Attributes:
        about: What it is and how it is asked, by stable keys.
        vocab_size: Prompts are ids below it.
    """

    about: dict[str, Any]
    vocab_size: int

    def ask(self, request: Ask) -> AsyncGenerator[Piece | Usage, None]:
        """The answer as it comes: pieces, then at most one ``Usage``.

        Closing it, or cancelling whoever waits for it, ends the request on the other side too.

        Raises:
            Failed: The request came to nothing.
        """
        ...
