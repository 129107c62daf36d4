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
class TokenLogprobs:
    """How likely the model held tokens of one position, as natural logarithms.

    They are the model's own, before temperature, penalties and what leaves tokens out.

    Attributes:
        chosen: Log-probability of the token that was chosen.
        top: The likeliest tokens and their log-probabilities, the likeliest first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of a request.

    Attributes:
        request: The request's id.
        id: The token's id.
        text: The text that comes with this token: "" while a character is incomplete or a stop
            text may have begun, for special tokens, and where the model has no tokenizer.
        sample: Which of several answers to one prompt it belongs to, from 0.
        logprobs: How likely it was, where that is asked for.
        finish_reason: Why the request ended, at its last token; None before.
    """

    request: int
    id: int
    text: str
    sample: int = 0
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that has ended.

    Attributes:
        request: The request's id.
        prompt_tokens: Length of its prompt.
        token_ids: Every new token, those that stopped it included.
        text: Their text up to a stop text, special tokens left out; "" where the model has no
            tokenizer.
        finish_reason: Why it ended.
        error: What went wrong, where the reason is an error.
        sample: Which of several answers to one prompt it is, from 0.
        stopped_by: The text or the token that stopped it.
        logprobs: For each new token, how likely it was; empty where that was not asked for.
        cached_tokens: Tokens of the prompt that were found in the pool, or loaded from a tier
            below it, and not computed for this request.
    """

    request: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: str | None = None
    sample: int = 0
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one or more steps gave, in the order in which it came."""

    tokens: tuple[Token, ...]
    completions: tuple[Completion, ...]
