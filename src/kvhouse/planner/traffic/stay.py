"""How long a request stays, and how many are there at once: Little's law at a fixed point."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.planner.traffic.sample import Traffic

#: The largest mean batch that is looked for; traffic that needs a larger one is too much.
MOST_BATCH = 2**14
#: The least share of the roofline that is taken for an engine's.
LEAST_EFFICIENCY = 1e-6
#: The largest number of requests whose probability is looked at.
_MOST_REQUESTS = 4 * MOST_BATCH
#: What may be left out of the tail of that distribution.
_TAIL = 1e-7


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the requests that are there at a moment, the mean over their stays.

    Whoever stays long is met more often, so these are longer than the mean of the arrivals.

    Attributes:
        held: Tokens known so far: the prompt, and of the output half while it decodes.
        prompt: Tokens of the whole prompt.
        output: Tokens of the whole output.
    """

    held: float
    prompt: float
    output: float


class Stay:
    """The modelled stay of a traffic's requests in an engine that has memory for all of them.

    A stay is the request's own prefill, and a decode step for each output token after the first,
    which the prefill gives. Prefill and decode take turns: the prompts that arrive keep the device
    busy for a share ``rate x prefill`` of the time, and decode steps have the rest. A step
    takes as long as the requests in it make it, and a request meets in it, beside itself, as many
    as there are on average (Poisson arrivals see time averages).

    All times are roofline floors divided by ``efficiency``.
    """

    def __init__(self, traffic: Traffic, roofline: Roofline, efficiency: float = 1.0) -> None:
        """Sum up the sample.

        Args:
            traffic: The lengths; its rate is not looked at.
            roofline: What times prefills and steps.
            efficiency: Share of the roofline that the engine reaches.

        Raises:
            KvhouseError: ``efficiency`` is not in [1e-6, 1].
        """
        if not LEAST_EFFICIENCY <= efficiency <= 1:
            raise KvhouseError(
                f"efficiency {efficiency}: give a share of at least {LEAST_EFFICIENCY:g} and at "
                "most 1"
            )
        self.roofline, self.efficiency = roofline, efficiency
        lengths = traffic.lengths
        times = {p: roofline.prefill(p).seconds / efficiency for p in {p for p, _ in lengths}}
        count, steps = len(lengths), sum(output - 1 for _, output in lengths)
        #: Mean seconds of a prefill, and mean number of decode steps.
        self.prefill_seconds = math.fsum(times[prompt] for prompt, _ in lengths) / count
        self.decode_steps = steps / count
        # Prompt and output, weighted with the time of the prefill and with the decode steps.
        self._prefilling = [
            math.fsum(times[pair[0]] * pair[which] for pair in lengths) / count for which in (0, 1)
        ]
        self._decoding = [
            sum((pair[1] - 1) * pair[which] for pair in lengths) / count for which in (0, 1)
        ]
        # Step i of a request's output - 1 finds prompt + i - 1 tokens: their mean over all steps.
        prompt, output = self._decoding
        self.decode_context = round((prompt + output / 2) * count / steps - 1) if steps else 0
        self._steps: dict[int, float] = {}

    def step(self, batch: float) -> float:
        """Seconds of a decode step; between two whole batches, interpolated."""
        below = math.floor(batch)
        rest = batch - below
        low = self._step(below)
        return low + rest * (self._step(below + 1) - low) if rest else low

    def _step(self, batch: int) -> float:
        if batch not in self._steps:
            cost = self.roofline.decode_floor(batch, self.decode_context)
            self._steps[batch] = cost.seconds / self.efficiency
        return self._steps[batch]

    @property
    def ceiling(self) -> float:
        """Tokens per second of decode at the largest batch looked at, prefill aside."""
        return MOST_BATCH / self._step(MOST_BATCH)

    @property
    def work(self) -> float:
        """Device seconds that a request takes at least: its prefill, its tokens at the ceiling."""
        return self.prefill_seconds + self.decode_steps / self.ceiling

    def seconds(self, rate: float, batch: float) -> float:
        """A request's stay at ``rate`` if ``batch`` requests, itself included, share the steps."""
        return self.prefill_seconds + self.decode_steps * self._turn(rate, batch)

    def _turn(self, rate: float, batch: float) -> float:
        """Seconds from one decode step to the next, prefills in between included."""
        return self.step(batch) / (1 - rate * self.prefill_seconds)

    def mean_batch(self, rate: float) -> float | None:
        """``B`` for which ``B = rate x seconds(rate, 1 + B)``; None where there is none.

        The extra 1 is the request itself, beside the ``B`` that it meets.
        """
        if rate * self.work >= 1:
            return None

        def enough(batch: float) -> bool:
            return rate * self.seconds(rate, 1 + batch) <= batch

        high = 1.0
        while not enough(high):
            high *= 2
            if high > MOST_BATCH:
                return None
        return _bisect(enough, 0.0, high)

    def distribution(self, rate: float) -> list[float] | None:
        """Probability of 0, 1, 2, … requests in the system, up to where hardly any is left.

        The requests share the device as customers share a processor whose speed depends on their
        number. For Poisson arrivals and lengths of any distribution the probability of ``n`` is
        then proportional to the product of ``rate x seconds(j) / j`` for ``j`` to ``n`` (Cohen
        1979, The multiple phase service network with generalized processor sharing, Acta
        Informatica 12). Where stays do not grow with the batch this is the Poisson distribution
        of M/G/infinity; where they do, its tail is longer.

        Returns:
            None where there is no such state, or where it reaches past the batches looked at.
        """
        if rate * self.work >= 1:
            return None
        logs, log, count = [0.0], 0.0, 0
        most = 0.0
        while True:
            count += 1
            if count > _MOST_REQUESTS:
                return None
            ratio = rate * self.seconds(rate, count) / count
            log += math.log(ratio)
            logs.append(log)
            most = max(most, log)
            if ratio < 1 and log - most + math.log(ratio / (1 - ratio)) < math.log(_TAIL):
                break
        weights = [math.exp(log - most) for log in logs]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def quantile(self, rate: float, share: float) -> int | None:
        """The number of requests that is not exceeded for ``share`` of the time."""
        probabilities = self.distribution(rate)
        if probabilities is None:
            return None
        below = list(accumulate(probabilities))
        return min(bisect_left(below, share), len(below) - 1)

    def lengths(self, rate: float, batch: float | None) -> Lengths:
        """Lengths met at a moment; without a batch, as if all were decoding."""
        if not self.decode_steps:
            before, turn = 1.0, 0.0
        elif batch is None:
            before, turn = 0.0, 1.0
        else:
            before, turn = 1.0, self._turn(rate, 1 + batch)
        stay = before * self.prefill_seconds + turn * self.decode_steps
        prompt, output = (
            (before * early + turn * late) / stay
            for early, late in zip(self._prefilling, self._decoding, strict=True)
        )
        half = turn * self._decoding[1] / 2 / stay
        # A millionth of a token is rounding, and must not count as a token more.
        return Lengths(round(prompt + half, 6), round(prompt, 6), round(output, 6))

    def largest_rate(self, fits: Callable[[float], bool]) -> float:
        """The largest rate at which ``fits`` holds, to a part in ten thousand; 0 for none."""
        highest = 1 / self.work

        def too_much(rate: float) -> bool:
            return not fits(rate)

        if not fits(highest * 1e-6):
            return 0.0
        found = _bisect(too_much, highest * 1e-6, highest, accuracy=1e-4)
        return found * (1 - 1e-4)


def _bisect(
    holds: Callable[[float], bool], low: float, high: float, accuracy: float = 1e-12
) -> float:
    """The least number from which on ``holds`` is true, taken to be so at ``high``."""
    while high - low > accuracy * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
