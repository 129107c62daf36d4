"""Generated traffic, described in one line: ``poisson:rate=2,prompt=200,output=50,requests=9``.

docs/traces.md has the whole language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kvhouse.errors import TraceError
from kvhouse.replayer.conversations import Conversations
from kvhouse.replayer.gaps import arrivals
from kvhouse.replayer.lengths import (
    PRESETS,
    Distribution,
    LogNormal,
    PairSource,
    Quantiles,
    Uniform,
    empirical,
    independent,
)
from kvhouse.replayer.randomness import Uniforms
from kvhouse.replayer.trace_request import MOST_TOKENS, TraceRequest
from kvhouse.spec.fields import show

#: Reads a trace from which lengths are drawn.
ReadTrace = Callable[[str], Iterable[TraceRequest]]

_LENGTHS = ("prompt", "output", "lengths")
_COMMON = ("requests", "duration", "seed", "tenants", *_LENGTHS)
_TALK = ("turns", "pause", "system", "systems", "block", "context")
#: What each kind of traffic may be given.
KINDS = {
    "poisson": ("rate", *_COMMON),
    "gamma": ("rate", "cv", *_COMMON),
    "constant": ("rate", *_COMMON),
    "backlog": _COMMON,
    "conversations": ("rate", *_TALK, *_COMMON),
}
_DESCRIPTION = re.compile(rf"({'|'.join(KINDS)})(?::(.*))?", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_OUTSIDE_COMMA = re.compile(r",(?![^()]*\))")
_REQUESTS = re.compile(r"(?:^|,)\s*requests\s*=\s*(\d{1,20})", re.ASCII)
_MOST_CHARACTERS = 2000
_MOST_SEED = 2**64 - 1
#: Numbers beyond these give gaps that floats cannot hold.
_LEAST, _MOST = 1e-9, 1e12


@dataclass(frozen=True, slots=True)
class Generator:
    """Traffic that is drawn anew, and the same, at each iteration.

    Attributes:
        endless: Gives times in nanoseconds and the requests that arrive then, without end.
        requests: Stop after so many, if set.
        duration: Leave out what arrives so many seconds after time 0 or later, if set.
    """

    endless: Callable[[], Iterator[tuple[int, TraceRequest]]]
    requests: int | None
    duration: float | None

    def __iter__(self) -> Iterator[TraceRequest]:
        end = math.inf if self.duration is None else self.duration * 1e9
        for time, request in islice(self.endless(), self.requests):
            if time >= end:
                return
            yield request


def generator_of(source: str, read: ReadTrace) -> Generator | None:
    """The traffic that ``source`` describes; None where it is no description.

    Args:
        source: The text.
        read: Reads a trace that ``lengths`` names.

    Raises:
        TraceError: It is one and has a mistake.
    """
    match = _DESCRIPTION.fullmatch(source)
    if match is None:
        return None
    try:
        if len(source) > _MOST_CHARACTERS:
            raise TraceError(f"a description has at most {_MOST_CHARACTERS:,} characters")
        return _generator(_Options(match[1], match[2] or ""), read)
    except TraceError as error:
        shown = source if len(source) <= 80 and source.isprintable() else show(source)
        raise TraceError(f"{shown}: {error}") from None


def most_requests(source: str, limit: int | None = None) -> int | None:
    """How many requests a trace can have at most, by ``limit`` and its description; None if any."""
    match = _DESCRIPTION.fullmatch(source)
    asked = _REQUESTS.search(match[2] or "") if match else None
    counts = [limit] if limit is not None else []
    return min([*counts, int(asked[1])] if asked else counts, default=None)


class _Options:
    """The ``key=value`` pairs of a description, each read by name."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self._values: dict[str, str] = {}
        for item in _OUTSIDE_COMMA.split(text) if text.strip() else []:
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals or not value:
                raise TraceError(f"{show(item)} is not of the form name=value")
            if name not in KINDS[kind]:
                known = ", ".join(KINDS[kind])
                raise TraceError(f"{show(name)} is unknown: {kind} takes {known}")
            if name in self._values:
                raise TraceError(f"{name} is there twice")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def needed(self, name: str) -> str:
        if name not in self._values:
            raise TraceError(f"{name} is missing")
        return self._values[name]

    def number(self, name: str) -> float:
        """A finite number above 0; it must be there."""
        return _number(name, self.needed(name))

    def whole(self, name: str, default: int | None, least: int, most: int = MOST_TOKENS) -> int:
        """A whole number; it must be there where ``default`` is None."""
        if default is not None and name not in self._values:
            return default
        value = self.needed(name)
        if not re.fullmatch(r"\d{1,20}", value, re.ASCII) or not least <= int(value) <= most:
            raise TraceError(
                f"{name} is {show(value)}, not a whole number from {least} to {most:,}"
            )
        return int(value)

    def distribution(self, name: str) -> Distribution:
        return distribution_of(name, self.needed(name))


def _generator(options: _Options, read: ReadTrace) -> Generator:
    requests = options.whole("requests", None, 1) if options.text("requests") else None
    duration = options.number("duration") if options.text("duration") else None
    if requests is None and (duration is None or options.kind == "backlog"):
        raise TraceError(
            "requests is missing" + ("" if options.kind == "backlog" else ", or duration")
        )
    return Generator(_endless(options, read), requests, duration)


def _endless(
    options: _Options, read: ReadTrace
) -> Callable[[], Iterator[tuple[int, TraceRequest]]]:
    seed, tenants = options.whole("seed", 0, 0, _MOST_SEED), options.whole("tenants", 0, 0)
    pairs = _pairs(options, seed, read)
    if options.kind == "conversations":
        rate, turns = options.number("rate"), options.distribution("turns")
        pause, system = options.number("pause"), options.whole("system", 0, 0)
        systems, block = options.whole("systems", 1, 1), options.whole("block", 16, 1)
        context = options.whole("context", MOST_TOKENS, 2)
        return lambda: Conversations(
            rate, pairs(), turns, pause, system, systems, block, context, tenants, seed
        ).endless()
    if options.kind == "backlog":
        return lambda: _independent(_zeros(), pairs(), tenants, seed)
    rate = options.number("rate")
    cv = {"poisson": 1.0, "constant": 0.0}.get(options.kind)
    burst = options.number("cv") if cv is None else cv
    return lambda: _independent(arrivals(rate, burst, seed), pairs(), tenants, seed)


def _independent(
    times: Iterator[int], pairs: PairSource, tenants: int, seed: int
) -> Iterator[tuple[int, TraceRequest]]:
    """Requests that have nothing to do with each other."""
    owners = Uniforms(seed, "tenant")
    for time in times:
        prompt, output = pairs()
        tenant = f"tenant-{owners.below(tenants) + 1}" if tenants else None
        yield time, TraceRequest(time / 1e9, prompt, output, tenant=tenant)


def _zeros() -> Iterator[int]:
    while True:
        yield 0


def _pairs(options: _Options, seed: int, read: ReadTrace) -> Callable[[], PairSource]:
    """What makes a fresh source of lengths."""
    named = options.text("lengths")
    if named is None:
        prompt, output = options.distribution("prompt"), options.distribution("output")
        return lambda: independent(prompt, output, seed)
    if options.text("prompt") or options.text("output"):
        raise TraceError("lengths stands for prompt and output: give one or the other")
    if named in PRESETS:
        preset = PRESETS[named]
        return lambda: independent(*preset, seed)
    if _DESCRIPTION.fullmatch(named):
        raise TraceError(f"lengths is {show(named)}: give a trace or one of {', '.join(PRESETS)}")
    return lambda: empirical(read(named), seed)


def distribution_of(name: str, text: str) -> Distribution:
    """The distribution that a text such as ``lognormal(1155,0.9)`` names.

    Args:
        name: What it is for, for messages.
        text: A whole number, ``uniform(low,high)``, ``lognormal(mean,sigma)`` with ``max=`` if
            wanted, or ``quantiles(p50=…,p90=…,max=…)`` with any quantiles and ``min=`` if wanted.

    Raises:
        TraceError: It is none of them.
    """
    if re.fullmatch(r"\d{1,20}", text, re.ASCII):
        return Uniform(int(text), int(text))
    match = _CALL.fullmatch(text)
    if match is None:
        raise TraceError(f"{name} is {show(text)}: give a number, {_FORMS}")
    arguments: dict[str, float] = {}
    names = _ARGUMENTS.get(match[1], ())
    for index, item in enumerate(match[2].split(",")):
        key, equals, value = (part.strip() for part in item.rpartition("="))
        if not equals:
            key = names[index] if index < len(names) else str(index + 1)
        if key in arguments:
            raise TraceError(f"{name} has {show(key)} twice")
        arguments[key] = _number(f"{name}'s {key[:20]}", value)
    return _called(name, match[1], arguments)


_FORMS = "uniform(low,high), lognormal(mean,sigma,max) or quantiles(p50=,p90=,max=)"
_ARGUMENTS = {
    "fixed": ("value",),
    "uniform": ("low", "high"),
    "lognormal": ("mean", "sigma", "max"),
    "quantiles": (),
}


def _called(name: str, function: str, arguments: dict[str, float]) -> Distribution:
    known, given = _ARGUMENTS.get(function), set(arguments)
    if function == "quantiles":
        return _quantiles(name, arguments)
    if known is None or not set(known) - {"max"} <= given <= set(known):
        raise TraceError(f"{name} is {function[:20]}({', '.join(arguments)[:60]}): give {_FORMS}")
    values = [arguments[key] for key in known if key in arguments]
    if function == "lognormal":
        return LogNormal(*values)
    if any(value != int(value) for value in values):
        raise TraceError(f"{name}: {function} takes whole numbers")
    return Uniform(int(values[0]), int(values[-1]))


def _quantiles(name: str, arguments: dict[str, float]) -> Distribution:
    points = {0.0: arguments.pop("min", 1.0)}
    for key, value in arguments.items():
        percent = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,6})?)", key, re.ASCII)
        if percent is None and key != "max":
            raise TraceError(f"{name}: {show(key)} is none of min, p50, p90, p99.9 or max")
        points[float(percent[1]) / 100 if percent else 1.0] = value
    return Quantiles(sorted(points.items()))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _LEAST <= value <= _MOST:  # which a NaN is not either
        raise TraceError(f"{name} is {show(text)}, not a number from 1e-9 to 1e12")
    return value
