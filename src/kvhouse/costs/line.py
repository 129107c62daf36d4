"""The least times of steps in a row that each move and compute more than the last by the same."""

from __future__ import annotations

import math
from itertools import repeat
from operator import truediv


class Line:
    """Bytes and FLOPs of the first step, and what each later one adds.

    Attributes:
        bytes: Bytes moved in the first step.
        more_bytes: What each later step adds.
        flops: FLOPs of the first step.
        more_flops: What each later step adds.
        bandwidth: Bytes a second; a whole number stays one, so a quotient of two is rounded once.
        flop_rate: FLOP/s.
        beside: Seconds that every step takes beside these.
    """

    __slots__ = (
        *("bandwidth", "beside", "bytes", "flop_rate", "flops", "more_bytes", "more_flops"),
    )

    def __init__(
        self,
        bytes: int,
        more_bytes: int,
        flops: int,
        more_flops: int,
        bandwidth: int | float,
        flop_rate: int | float,
        beside: float = 0.0,
    ) -> None:
        self.bytes = bytes
        self.more_bytes = more_bytes
        self.flops = flops
        self.more_flops = more_flops
        self.bandwidth = bandwidth
        self.flop_rate = flop_rate
        self.beside = beside

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
        first = max(self.bytes / self.bandwidth, self.flops / self.flop_rate) + self.beside
        if first * most > until - now:
            # No step is shorter than the first, and rounding turns the clock back by less than
            # its last place in each; so this many are enough.
            late = until - now + most * math.ulp(until)
            most = min(most, max(1, int(late / first) + 2))
        if most == 1:
            return [first], now + first
        seconds = self._steps(most)
        for taken, step in enumerate(seconds):
            if now >= until and taken:
                return seconds[:taken], now
            now += step
        return seconds, now

    def _steps(self, count: int) -> list[float]:
        """Seconds of so many steps from the first on."""
        seconds = _quotients(self.bytes, self.more_bytes, count, self.bandwidth)
        last = self.flops + (count - 1) * self.more_flops
        # What is more at both ends of two straight lines is more everywhere between.
        rate = self.flop_rate
        if not (seconds[0] > self.flops / rate and seconds[-1] > last / rate):
            computed = _quotients(self.flops, self.more_flops, count, rate)
            seconds = list(map(max, seconds, computed))
        return [step + self.beside for step in seconds] if self.beside else seconds


def _quotients(first: int, more: int, count: int, divisor: int | float) -> list[float]:
    """So many numbers, each more than the last by the same, divided."""
    if not more:
        return [first / divisor] * count
    rising = range(first, first + count * more, more)
    if isinstance(divisor, float):
        return [number / divisor for number in rising]
    # mypyc divides whole numbers as floats, which large ones are not exactly.
    return list(map(truediv, rising, repeat(divisor)))
