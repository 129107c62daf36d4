"""Reads what an OpenAI-compatible server sends for a streamed completion."""

from __future__ import annotations

import json
from typing import Any

from kvhouse.bench.target import Failed, Piece, Usage
from kvhouse.spec.fields import show

#: Characters of a server's words that are passed on.
_WORDS = 200
#: More tokens than any answer has: a larger count is a damaged one.
_MOST_TOKENS = 10**9


class Answer:
    """One answer, event by event.

    Attributes:
        ended: Whether the server said that the answer is whole.
    """

    def __init__(self) -> None:
        self.ended = False

    def read(self, data: str) -> list[Piece | Usage]:
        """What an event's data holds.

        A piece without text counts as a token, for a token's text may be incomplete, unless it
        only says why the answer ended.

        Raises:
            Failed: It is an error, or nothing that the API knows.
        """
        if data.strip() == "[DONE]":
            self.ended = True
            return []
        content = _object(data)
        if content.get("error") is not None:
            raise Failed("server", words(content["error"]))
        choices = content.get("choices")
        if not isinstance(choices, list):
            raise Failed("malformed", f"an event without choices: {short(data)}")
        parts: list[Piece | Usage] = []
        for choice in choices:
            if not isinstance(choice, dict) or not isinstance(choice.get("text", ""), str):
                raise Failed("malformed", f"a choice that is none: {short(data)}")
            reason = choice.get("finish_reason")
            if reason in ("error", "abort"):
                raise Failed("server", f"the server ended the answer: {reason}")
            self.ended = self.ended or reason is not None
            if choice.get("text") or reason is None:
                parts.append(Piece(1))
        usage = _usage(content.get("usage"))
        return [*parts, usage] if usage else parts


def words(error: object) -> str:
    """What a server's error says, in a line."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        error = inner.get("message", inner) if isinstance(inner, dict) else inner
    return short(error if isinstance(error, str) else json.dumps(error, default=str))


def words_of_body(text: str) -> str:
    """The same of an answer's body, which may be no JSON at all."""
    try:
        return words(json.loads(text))
    except (ValueError, RecursionError):
        return short(text)


def short(text: str) -> str:
    """Someone else's words in a line."""
    line = " ".join(text.split())[:_WORDS]
    return (line if line.isprintable() else show(line)) or "no further words"


def _object(data: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise Failed("malformed", f"an event that is no JSON: {short(data)}") from None
    if not isinstance(content, dict):
        raise Failed("malformed", f"an event that is no object: {short(data)}")
    return content


def _usage(usage: object) -> Usage | None:
    """The counts; None where there are none, as in every event but the last."""
    if not isinstance(usage, dict):
        return None
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None or output is None:
        raise Failed("malformed", "a usage without whole numbers of tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, output, _count(cached))


def _count(value: object) -> int | None:
    """The number of tokens that a value is, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _MOST_TOKENS else None
