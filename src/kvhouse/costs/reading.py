"""What the layers of one reach read, write and compute in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.layout import KVLayout
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.reach import Reach


@dataclass(frozen=True, slots=True)
class Reading:
    """Layers of one reach, and what a row of a step reads, writes and computes in them.

    Attributes:
        reach: Which tokens the layers keep.
        stride: Tokens for which one entry is kept.
        entry_bytes: Bytes of an entry in all these layers.
        pair_flops: FLOPs in all of them for a query token and one token it attends to.
        other_tokens: Tokens of another input, where the reach is that.
        attended: How many of the kept tokens a query reads at most; None for all.
    """

    reach: Reach
    stride: int
    entry_bytes: int
    pair_flops: int
    other_tokens: int
    attended: int | None = None

    def read_bytes(self, first: int) -> int:
        """Bytes of earlier steps that a row beginning at ``first`` reads, each of them once.

        The step's own tokens are written, and a fused kernel need not read them back.
        """
        if self.reach.kind == "another":
            return self._other_bytes * (first > 0)
        oldest = self.reach.first(first)
        if self.attended is not None:
            oldest = max(oldest, first - self.attended)
        return self._between(oldest, first)

    def written_bytes(self, first: int, count: int) -> int:
        """Bytes that a row of ``count`` tokens must leave behind for the token after it.

        What no later token sees need not be written. Another input is written with the first row.
        """
        if self.reach.kind == "another":
            return self._other_bytes * (first == 0)
        end = first + count
        return self._between(max(first, self.reach.first(end)), end)

    @property
    def linear(self) -> bool:
        """Whether a row reads all earlier tokens, one entry each, and attends to them."""
        return self.reach.kind == "all" and self.stride == 1 and self.attended is None

    @property
    def even(self) -> bool:
        """Whether the same holds of all tokens of a window, if they are not all earlier ones."""
        windowed = self.reach.kind == "window" and self.stride == 1 and self.attended is None
        return self.linear or windowed

    @property
    def _other_bytes(self) -> int:
        return self.other_tokens // self.stride * self.entry_bytes

    def _between(self, first: int, end: int) -> int:
        """Bytes of the entries that the tokens from ``first`` to before ``end`` complete."""
        return (end // self.stride - first // self.stride) * self.entry_bytes

    def flops(self, first: int, count: int) -> int:
        """FLOPs of attention for ``count`` tokens from position ``first`` on."""
        return self.pair_flops * self._pairs(first, count)

    def _pairs(self, first: int, count: int) -> int:
        """Pairs of a token of the row and one that it attends to, itself included."""
        if self.reach.kind == "another":
            return count * self.other_tokens
        if self.reach.kind == "chunk":
            return self._within_chunks(first + count) - self._within_chunks(first)
        most = min(self.reach.tokens or first + count, self.attended or first + count)
        growing = min(count, max(0, most - first))
        return _rising(first, growing) + (count - growing) * most

    def _within_chunks(self, tokens: int) -> int:
        chunks, rest = divmod(tokens, self.reach.tokens)
        return chunks * _rising(0, self.reach.tokens) + _rising(0, rest)


def readings(spec: ModelSpec, layout: KVLayout) -> list[Reading]:
    """The model's layers by what they reach and how much of it they attend to."""
    flops: dict[tuple[Reach, int | None], int] = {}
    for layer in spec.layers:
        for part in layer.parts:
            key = (part.reach, part.attended)
            flops[key] = flops.get(key, 0) + part.attention_flops(1)
    found = []
    for _, kind in layout.kinds:
        entry_bytes: dict[int | None, int] = {}
        for part in kind.layers:
            taken = part.token_bytes(kind.format, kind.dtype)
            entry_bytes[part.attended] = entry_bytes.get(part.attended, 0) + taken
        found += [
            Reading(
                kind.reach,
                kind.stride,
                taken,
                flops.pop((kind.reach, attended), 0),
                kind.other_tokens,
                attended,
            )
            for attended, taken in entry_bytes.items()
        ]
    return found


class WindowReading:
    """All layers of one window's length together.

    Attributes:
        entry_bytes: Bytes of a token in them.
        pair_flops: FLOPs in them for a query token and one token it attends to.
        kept: Of a row of one token, the tokens that it leaves behind for later ones.
    """

    def __init__(self, readings: Sequence[Reading], window: int) -> None:
        self._readings = [reading for reading in readings if reading.reach.tokens == window]
        self.entry_bytes = sum(reading.entry_bytes for reading in self._readings)
        self.pair_flops = sum(reading.pair_flops for reading in self._readings)
        self.kept = min(1, window - 1)

    def bytes(self, first: int, count: int) -> int:
        """Bytes that a row reads and writes."""
        return sum(
            reading.read_bytes(first) + reading.written_bytes(first, count)
            for reading in self._readings
        )

    def flops(self, first: int, count: int) -> int:
        """FLOPs of a row's attention."""
        return sum(reading.flops(first, count) for reading in self._readings)


def _rising(first: int, count: int) -> int:
    """Pairs of each token from ``first`` on with every token up to and including itself."""
    return count * first + count * (count + 1) // 2
