"""Access logs of OpenAI-compatible servers: a JSON object a line, with a time and a ``usage``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from kvhouse.replayer.trace_lines import Line, nanoseconds_of
from kvhouse.replayer.trace_request import MOST_TOKENS
from kvhouse.replayer.trace_rows import Name, first_problem
from kvhouse.spec.fields import show

_Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]

#: Where a response may lie in a line: the line itself, a gateway's log, a batch's output.
_PLACES: tuple[tuple[str, ...], ...] = ((), ("response",), ("response", "body"))
_TIMES = ("created", "created_at", "timestamp", "time")

#: Numbers from here on cannot be seconds since 1970 (the year 5138), so they are a finer unit.
_UNITS = ((10**17, 1), (10**14, 10**3), (10**11, 10**6), (0, 10**9))


def _anywhere(*names: str) -> AliasChoices:
    return AliasChoices(*(AliasPath(*place, name) for place in _PLACES for name in names))


class _Details(BaseModel):
    cached_tokens: _Count | None = None


class _Usage(BaseModel):
    model_config = ConfigDict(strict=True)

    prompt_tokens: _Count = Field(validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    output_tokens: _Count = Field(
        default=0, validation_alias=AliasChoices("completion_tokens", "output_tokens")
    )
    details: _Details | None = Field(
        default=None,
        validation_alias=AliasChoices("prompt_tokens_details", "input_tokens_details"),
    )


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, str_strip_whitespace=True)

    time: Annotated[int | float | str, Field(union_mode="left_to_right")] | None = Field(
        default=None, validation_alias=_anywhere(*_TIMES)
    )
    usage: _Usage | None = Field(default=None, validation_alias=_anywhere("usage"))
    error: Any = Field(default=None, validation_alias=_anywhere("error"))
    tenant: Name | None = Field(default=None, validation_alias=AliasChoices("tenant", "user"))


def parse_access_log(text: str) -> Line | None:
    """Parse a line; None for a request that failed or gave no token.

    The time is ``created``, ``created_at``, ``timestamp`` or ``time``: seconds since 1970, or a
    finer unit where the number is too large for that, or an ISO 8601 text. ``usage`` has the names
    of chat completions or of responses.
    """
    try:
        entry = _Entry.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if entry.time is None:
        raise ValueError(f"has no time: none of {', '.join(_TIMES)}")
    usage = entry.usage
    if usage is None:
        if entry.error:
            return None
        raise ValueError("has neither usage nor error")
    if not usage.prompt_tokens or not usage.output_tokens:
        return None
    cached = (usage.details.cached_tokens if usage.details else None) or 0
    if cached > usage.prompt_tokens:
        raise ValueError(f"cached_tokens {cached:,} exceed prompt_tokens {usage.prompt_tokens:,}")
    line = Line(_nanoseconds(entry.time), usage.prompt_tokens, usage.output_tokens)
    return line._replace(tenant=entry.tenant, cached_tokens=cached)


def _nanoseconds(time: float | str) -> int:
    if isinstance(time, str):
        return nanoseconds_of(time, "the time")
    if not 0 <= time < 10**19:  # which a NaN is not either
        raise ValueError(f"the time is {show(time)}, not a moment since 1970")
    unit = next(unit for least, unit in _UNITS if time >= least)
    return round(time * unit)
