"""Traffic, as the planner wants it: how often requests come, and how long they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvhouse.errors import KvhouseError

#: Requests per second beyond anything that one device could be asked for.
MOST_RATE = 10**9


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A sample of lengths in tokens. A percentile is the value at its rank, rounded up."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Percentiles:
        """Of at least one value."""
        ordered = sorted(values)
        p50, p90, p99 = (ordered[-(-share * len(ordered) // 100) - 1] for share in (50, 90, 99))
        return cls(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that come at random moments, a Poisson stream, with lengths from one sample.

    Attributes:
        rate: Requests per second.
        lengths: Tokens of prompt and output of each request of the sample, all equally likely.
        basis: Whether rate and lengths were given, or measured in a trace.
    """

    rate: float
    lengths: tuple[tuple[int, int], ...]
    basis: Literal["given", "measured"] = "given"

    def __post_init__(self) -> None:
        """Refuse what is no traffic.

        Raises:
            KvhouseError: A rate out of range, no lengths, or a prompt or output below 1 token.
        """
        if not 0 < self.rate <= MOST_RATE:
            raise KvhouseError(
                f"rate {self.rate}: give requests per second, above 0 and at most {MOST_RATE:,}"
            )
        if not self.lengths:
            raise KvhouseError("traffic without lengths: give at least one prompt and output")
        if any(prompt < 1 or output < 1 for prompt, output in self.lengths):
            raise KvhouseError("traffic: prompts and outputs have at least 1 token")

    @classmethod
    def given(cls, rate: float, prompt_tokens: int, output_tokens: int) -> Traffic:
        """Requests that are all alike.

        Args:
            rate: Requests per second.
            prompt_tokens: Length of each prompt.
            output_tokens: Length of each output.

        Raises:
            KvhouseError: See the class.
        """
        return cls(rate, ((prompt_tokens, output_tokens),))

    @classmethod
    def measured(cls, requests: Iterable[tuple[float, int, int]]) -> Traffic:
        """Rate and lengths of a trace.

        The rate is the number of gaps between arrivals over the time from the first to the last.

        Args:
            requests: Arrival in seconds, prompt and output tokens of each.

        Raises:
            KvhouseError: Fewer than two moments of arrival, or see the class.
        """
        rows = sorted(requests)
        seconds = rows[-1][0] - rows[0][0] if rows else 0.0
        if not seconds > 0:
            raise KvhouseError(
                f"a trace of {len(rows)} requests within {seconds} s has no rate: give more of it, "
                "or state the rate and the lengths"
            )
        lengths = tuple((prompt, output) for _, prompt, output in rows)
        return cls((len(rows) - 1) / seconds, lengths, "measured")

    @property
    def prompts(self) -> Percentiles:
        """Lengths of the prompts."""
        return Percentiles.of([prompt for prompt, _ in self.lengths])

    @property
    def outputs(self) -> Percentiles:
        """Lengths of the outputs."""
        return Percentiles.of([output for _, output in self.lengths])

    @property
    def totals(self) -> Percentiles:
        """Lengths of prompt and output together."""
        return Percentiles.of([prompt + output for prompt, output in self.lengths])
