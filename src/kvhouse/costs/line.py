"""The least times of steps in a row that each move and compute more than the last by the same."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

#: Most stretches are no longer than this; what is left after so many steps, numpy does at once.
_MANY = 64
#: Whole numbers below this are floats exactly.
_EXACT = 2**53


@dataclass(slots=True)
class Line:
    """Bytes and FLOPs of the first step, and what each later one adds.

    Attributes:
        bytes: Bytes moved in the first step.
        more_bytes: What each later step adds.
        flops: FLOPs of the first step.
        more_flops: What each later step adds.
        bandwidth: Bytes a second.
        flop_rate: FLOP/s.
        beside: Seconds that every step takes beside these.
    """

    bytes: int
    more_bytes: int
    flops: int
    more_flops: int
    bandwidth: float
    flop_rate: float
    beside: float = 0.0

    def spend(self, now: float, until: float, most: int) -> tuple[list[float], float]:
        """Take steps until a time has come or ``most`` are taken, at least one.

        The clock advances step by step, so it shows what it would if each step stood alone.

        Args:
            now: The clock before the first step, in seconds.
            until: Take no step that begins at this time or later, but for the first.
            most: Most steps.

        Returns:
            The seconds of each step, and the clock afterwards.
        """
        at_once = most >= 2 * _MANY and max(self._last(most)) < _EXACT
        moved, flops, bandwidth, rate = self.bytes, self.flops, self.bandwidth, self.flop_rate
        beside = self.beside
        more_bytes, more_flops, seconds = self.more_bytes, self.more_flops, []
        for _ in repeat(None, _MANY if at_once else most):
            step, compute = moved / bandwidth, flops / rate
            if compute > step:
                step = compute
            step += beside
            seconds.append(step)
            now += step
            if now >= until:
                return seconds, now
            moved += more_bytes
            flops += more_flops
        if at_once:
            rest = Line(moved, more_bytes, flops, more_flops, bandwidth, rate, beside)
            others, now = rest._spend_at_once(now, until, most - _MANY)
            seconds += others
        return seconds, now

    def _last(self, most: int) -> tuple[int, int]:
        return self.bytes + most * self.more_bytes, self.flops + most * self.more_flops

    def _spend_at_once(self, now: float, until: float, most: int) -> tuple[list[float], float]:
        """The same in numpy, whose sums along an array go from one to the next as well."""
        import numpy as np

        steps = np.arange(most)
        memory = (self.bytes + steps * self.more_bytes) / self.bandwidth
        compute = (self.flops + steps * self.more_flops) / self.flop_rate
        seconds = np.maximum(memory, compute) + self.beside
        clock = np.cumsum(np.concatenate(([now], seconds)))[1:]
        taken = min(most, int(np.searchsorted(clock, until)) + 1)
        return seconds[:taken].tolist(), float(clock[taken - 1])
