"""Step times as a sum of what a step has to do, each part at a rate that was measured.

A roofline says what a step takes at least; this says what it takes on a machine whose rates are
known, such as those of a calibration. Both answer the same questions, so a replay takes either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvhouse.core.step import StepPlan
from kvhouse.costs.line import Line
from kvhouse.costs.reading import WindowReading, readings
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.model import ModelSpec

#: First position, tokens, and whether the row samples.
PlainRow = tuple[int, int, bool]

#: Times are added up in whole attoseconds, so the sum is the same in whatever order it is made.
_SECOND = 10**18


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step has to do.

    Attributes:
        tokens: Tokens computed.
        samples: Rows that give a token.
        rows: Rows.
        decode_bytes: Keys and values of earlier tokens that rows of one token read.
        chunk_bytes: The same of rows of several tokens.
        chunk_flops: FLOPs of attention of rows of several tokens.
    """

    tokens: int
    samples: int
    rows: int
    decode_bytes: int
    chunk_bytes: int
    chunk_flops: int


@dataclass(frozen=True, slots=True)
class StepRates:
    """Seconds of each part; a step takes their sum.

    Attributes:
        knots: Numbers of tokens, ascending.
        knot_seconds: What a step of so many tokens takes beside all else; between two of them a
            straight line, beyond the last the last line goes on.
        sampling: Seconds of a step in which any row samples.
        sample: Seconds of each row that does.
        row: Seconds of a row.
        decode_byte: Seconds of a byte that rows of one token read.
        chunk_byte: The same of rows of several tokens.
        chunk_flop: Seconds of a FLOP of their attention.

    Raises:
        KvhouseError: The knots are no ascending numbers of tokens with a time for each.
    """

    knots: tuple[int, ...]
    knot_seconds: tuple[float, ...]
    sampling: float
    sample: float
    row: float
    decode_byte: float
    chunk_byte: float
    chunk_flop: float

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.knots, self.knots[1:], strict=False))
        if not (self.knots and ascending and len(self.knots) == len(self.knot_seconds)):
            raise KvhouseError("step rates: numbers of tokens must ascend, with a time for each")

    def slower(self, factor: float) -> StepRates:
        """The rates of a machine on which every step takes ``factor`` times as long."""
        return StepRates(
            self.knots,
            tuple(factor * seconds for seconds in self.knot_seconds),
            factor * self.sampling,
            factor * self.sample,
            factor * self.row,
            factor * self.decode_byte,
            factor * self.chunk_byte,
            factor * self.chunk_flop,
        )


def between(knots: Sequence[int], tokens: int) -> tuple[int, int, int]:
    """Where ``tokens`` lies among knots.

    Returns:
        The index of the knot from which the line goes to the next one, how far along it
        ``tokens`` lies, and the whole way; with one knot alone ``(0, 0, 1)``.
    """
    if len(knots) == 1:
        return 0, 0, 1
    at = min(max(bisect_right(knots, tokens) - 1, 0), len(knots) - 2)
    return at, tokens - knots[at], knots[at + 1] - knots[at]


class Parts:
    """Takes steps of a model apart.

    Args:
        spec: The model.
        layout: How its KV lies in memory.
    """

    def __init__(self, spec: ModelSpec, layout: KVLayout) -> None:
        self._readings = readings(spec, layout)
        #: As ``Roofline.linear``.
        self.linear = all(reading.even for reading in self._readings)
        #: Bytes and FLOPs of a token in the layers that read every token, and of those of windows.
        whole = [reading for reading in self._readings if reading.linear]
        self.entry_bytes = sum(reading.entry_bytes for reading in whole)
        self.pair_flops = sum(reading.pair_flops for reading in whole)
        self.windows = [WindowReading(self._readings, window) for window in layout.windows]

    def of(self, rows: Iterable[PlainRow]) -> StepParts:
        """What rows have to do together."""
        tokens = samples = number = decode_bytes = chunk_bytes = chunk_flops = 0
        for first, count, sampled in rows:
            number += 1
            tokens += count
            samples += sampled
            read = sum(reading.read_bytes(first) for reading in self._readings)
            if count == 1:
                decode_bytes += read
            else:
                chunk_bytes += read
                chunk_flops += sum(reading.flops(first, count) for reading in self._readings)
        return StepParts(tokens, samples, number, decode_bytes, chunk_bytes, chunk_flops)


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes.

    Attributes:
        seconds: That.
    """

    seconds: float


class FittedSteps:
    """How long steps of one model take at known rates."""

    def __init__(self, spec: ModelSpec, layout: KVLayout, rates: StepRates) -> None:
        """Prepare the rates.

        Args:
            spec: The model.
            layout: How its KV lies in memory.
            rates: Seconds of each part of a step.
        """
        self.layout = layout
        self.rates = rates
        self._parts = Parts(spec, layout)
        #: As ``Roofline.linear``.
        self.linear = self._parts.linear
        self._knots = tuple(map(_whole, rates.knot_seconds))
        self._sampling, self._sample = _whole(rates.sampling), _whole(rates.sample)
        self._row = _whole(rates.row)
        self._decode, self._chunk = _whole(rates.decode_byte), _whole(rates.chunk_byte)
        self._flop = _whole(rates.chunk_flop)

    def step(self, plan: StepPlan) -> StepTime:
        """How long one planned step takes."""
        return self.of([(row.first, row.count, row.samples) for row in plan.rows])

    def of(self, rows: Sequence[PlainRow]) -> StepTime:
        """How long a step with these rows takes; nothing without rows."""
        return StepTime(self._sum(self._parts.of(rows)) / _SECOND if rows else 0.0)

    def line(
        self,
        decoding: int,
        before: int,
        rows: Sequence[PlainRow] = (),
        seen: Sequence[tuple[int, int]] = (),
        *,
        going_on: bool = False,
    ) -> Line:
        """As ``Roofline.line``: the first step is exactly what ``step`` says.

        A ``Line`` divides amounts by a rate; here they are attoseconds, and a second has 10¹⁸.
        """
        parts = self._parts.of(rows)
        decode_bytes = before * self._parts.entry_bytes + parts.decode_bytes
        more_bytes = decoding * self._parts.entry_bytes
        for number, window in enumerate(self._parts.windows):
            there, growing = seen[number]
            decode_bytes += there * window.entry_bytes
            more_bytes += growing * window.entry_bytes
        first = StepParts(
            decoding + parts.tokens,
            decoding + parts.samples,
            decoding + parts.rows,
            decode_bytes,
            parts.chunk_bytes,
            parts.chunk_flops,
        )
        more = more_bytes * self._decode
        for _, count, _ in rows if going_on else ():
            read = count * self._parts.entry_bytes
            more += read * (self._decode if count == 1 else self._chunk)
            more += (count > 1) * count * count * self._parts.pair_flops * self._flop
        return Line(self._sum(first), more, 0, 0, _SECOND, 1.0)

    def _sum(self, parts: StepParts) -> int:
        """Attoseconds of a step."""
        at, along, way = between(self.rates.knots, parts.tokens)
        here = self._knots[at]
        if along:
            here += (self._knots[at + 1] - here) * along // way
        return (
            max(here, 0)
            + self._sampling * (parts.samples > 0)
            + self._sample * parts.samples
            + self._row * parts.rows
            + self._decode * parts.decode_bytes
            + self._chunk * parts.chunk_bytes
            + self._flop * parts.chunk_flops
        )


def _whole(seconds: float) -> int:
    return round(seconds * _SECOND)
