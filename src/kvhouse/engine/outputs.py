"""What the engine gives back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of a request.

    Attributes:
        request: The request's id.
        id: The token's id.
        text: The text that this token completes: "" while a character is incomplete, for special
            tokens, and where the model has no tokenizer.
    """

    request: int
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that has ended.

    Attributes:
        request: The request's id.
        prompt_tokens: Length of its prompt.
        token_ids: Every new token, the one that stopped it included.
        text: Their text, special tokens left out; "" where the model has no tokenizer.
        finish_reason: Why it ended.
        error: What went wrong, where the reason is an error.
    """

    request: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one or more steps gave, in the order in which it came."""

    tokens: tuple[Token, ...]
    completions: tuple[Completion, ...]
