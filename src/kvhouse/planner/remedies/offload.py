"""Loading a request's KV from the host's memory against computing it again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError

#: Lengths looked at, evenly spaced on a logarithmic scale; between two of them what is faster is
#: taken to change at most once.
_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class OffloadBreakEven:
    """Where loading KV over a link is faster than a prefill; both sides are modelled floors.

    The prefill is the roofline's, at full FLOP/s and bandwidth, and the link is at full bandwidth
    too. An engine computes slower than its floor, so in practice loading wins at more lengths
    than these unless the link falls short by more.

    Attributes:
        link: Bytes per second of the link.
        latency: Seconds before the first byte arrives.
        longest: The longest length looked at.
        ranges: First and last length in tokens of each stretch where loading wins; a short one at
            the start is where the prefill only waits for the weights. Empty: never.
        load_seconds: Time to load a request of ``longest`` tokens.
        prefill_seconds: Time to compute it.
    """

    link: float
    latency: float
    longest: int
    ranges: tuple[tuple[int, int], ...]
    load_seconds: float
    prefill_seconds: float

    @property
    def text(self) -> str:
        """The ranges in words."""
        if not self.ranges:
            return f"never faster than recomputing up to {self.longest:,} tokens"
        if self.ranges == ((1, self.longest),):
            return f"faster than recomputing at every length up to {self.longest:,} tokens"
        parts = [f"{first:,} to {last:,}" for first, last in self.ranges]
        return f"faster than recomputing at {' and '.join(parts)} tokens"


def offload_break_even(
    roofline: Roofline, link: float, longest: int, latency: float = 0.0
) -> OffloadBreakEven:
    """Compare ``kv_bytes(n) / link + latency`` with the floor of a prefill of ``n`` tokens.

    Args:
        roofline: The model on its device; with its layout's format the bytes are counted.
        link: Bytes per second from the host's memory, such as ``Device.host_link``.
        longest: The longest request, in tokens.
        latency: Seconds that a load takes beside its bytes.

    Raises:
        KvhouseError: The link, the latency or the length is out of range, or the device's FLOP/s
            are not known.
    """
    if roofline.flop_rate is None:
        raise KvhouseError(
            f"offload on {roofline.device.name}: its FLOP/s are not known, so neither is the time "
            "to recompute: state them in a device file"
        )
    if not link > 0 or latency < 0 or longest < 1:
        raise KvhouseError(
            f"offload over {link} B/s with {latency} s of latency up to {longest} tokens: give a "
            "bandwidth above 0, a latency of at least 0 and a length of at least 1"
        )
    spec, layout = roofline.spec, roofline.layout

    def load(tokens: int) -> float:
        needed = spec.kv_bytes(
            tokens, layout.format, dtype=layout.dtype, encoder_tokens=layout.other_tokens
        )
        return needed / link + latency

    def wins(tokens: int) -> bool:
        return load(tokens) < roofline.prefill(tokens).seconds

    return OffloadBreakEven(
        link=link,
        latency=latency,
        longest=longest,
        ranges=_ranges(wins, longest),
        load_seconds=load(longest),
        prefill_seconds=roofline.prefill(longest).seconds,
    )


def _ranges(wins: Callable[[int], bool], longest: int) -> tuple[tuple[int, int], ...]:
    """Stretches of 1 to ``longest`` where ``wins`` holds."""
    lengths = sorted({round(longest ** (i / (_SAMPLES - 1))) for i in range(_SAMPLES)})
    found: list[tuple[int, int]] = []
    start = 1 if wins(1) else None
    for before, after in pairwise(lengths):
        if wins(after) == (start is not None):
            continue
        changed = before + 1 + _first_change(wins, before, after)
        if start is None:
            start = changed
        else:
            found.append((start, changed - 1))
            start = None
    return (*found, (start, longest)) if start is not None else tuple(found)


def _first_change(wins: Callable[[int], bool], before: int, after: int) -> int:
    """Tokens after ``before + 1`` at which ``wins`` is first what it is at ``after``."""
    at_end = wins(after)
    return bisect_left(range(before + 1, after), True, key=lambda n: wins(n) == at_end)
