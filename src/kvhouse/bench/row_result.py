"""The figures of one batch, with stable keys."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvhouse.replayer.results import Distribution

if TYPE_CHECKING:
    from kvhouse.engine.fast.paths import Paths
    from kvhouse.engine.watch import WatchedStep


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second over several passes."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Rate | None:
        """Of one value a pass; None of none."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a decode step that was split, and of its parts, which sum to it.

    Splitting makes a step a little slower, so rates are those of other steps.

    Attributes:
        steps: How many steps these are the means of.
        seconds: The whole step.
        model: What the network computes, but for what follows.
        attention: The kernel's; None where the model's own attention runs, which is then in
            ``model``.
        kv_writes: Bringing new keys and values into the pool; None likewise.
        sampling: From logits to tokens.
        scheduling: The rest: plans, packing, texts.
    """

    steps: int
    seconds: float
    model: float
    attention: float | None
    kv_writes: float | None
    sampling: float
    scheduling: float

    @classmethod
    def of(cls, steps: Sequence[WatchedStep], *, split: bool) -> StepTimes:
        """The means over ``steps``.

        Args:
            steps: At least one.
            split: Whether attention can be told from the model.
        """
        mean = {
            part: statistics.fmean(step.parts[part] for step in steps) for part in steps[0].parts
        }
        inside = 0.0 if split else mean["attention"] + mean["kv_writes"]
        return cls(
            steps=len(steps),
            seconds=statistics.fmean(step.seconds for step in steps),
            model=mean["model"] + inside,
            attention=mean["attention"] if split else None,
            kv_writes=mean["kv_writes"] if split else None,
            sampling=mean["sampling"],
            scheduling=mean["scheduling"],
        )


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a decode step reads, and how near it comes to the machine's limit.

    Attributes:
        steps: How many steps these are the means of: those that were not split.
        seconds: The whole step.
        weights: Bytes of weights, mean over the steps.
        kv: Bytes of keys, values and states, mean over the steps.
        bytes_per_second: Both, by the step's time.
        share_of_bandwidth: The same by what this machine's cores read together.
        floor_seconds: The least time that these bytes and the step's FLOPs take here.
        bound: Which of the two that is: ``bandwidth`` or ``compute``.
        share_of_floor: The floor by the step's time; 1 is the limit.
    """

    steps: int
    seconds: float
    weights: float
    kv: float
    bytes_per_second: float
    share_of_bandwidth: float
    floor_seconds: float
    bound: str
    share_of_floor: float

    @classmethod
    def of(
        cls,
        *,
        steps: int,
        seconds: float,
        weights: float,
        kv: float,
        bound: str,
        floor_seconds: float,
        bandwidth: float,
    ) -> StepBytes:
        """Of a step that took ``seconds``."""
        rate = (weights + kv) / seconds
        share = floor_seconds / seconds
        return cls(steps, seconds, weights, kv, rate, rate / bandwidth, floor_seconds, bound, share)


@dataclass(frozen=True, slots=True)
class RowResult:
    """The figures of a batch, all measured but for bytes and floor.

    Attributes:
        concurrency: Requests, submitted at once.
        prompt: Tokens of each prompt.
        generate: Tokens that each got.
        policy: How the pool was handed out.
        kv_format: How keys and values were stored.
        dtype: Weights and arithmetic.
        repeats: Passes that were measured.
        partial: Whether it ended before all were.
        prefill_tokens_per_second: Prompt tokens by the time to the last first token; where
            prompts take several steps, the first of the requests already decode in it.
        decode_tokens_per_second: Tokens by the time, from when all requests had their first token
            until one had its last; None where no step lay between.
        first_token_seconds: From the submission to each request's first token.
        decode_step: Where the time of such a step goes; None where none was split.
        decode_bytes: What such a step reads; None where there was none.
        bandwidth: Bytes per second that this machine's cores read together.
        bandwidth_source: How that was measured.
        kv_bytes: Bytes of the pool's tensors.
        paths: Which way the model's blocks were computed.
    """

    concurrency: int
    prompt: int
    generate: int
    policy: str
    kv_format: str
    dtype: str
    repeats: int
    partial: bool
    prefill_tokens_per_second: Rate | None
    decode_tokens_per_second: Rate | None
    first_token_seconds: Distribution | None
    decode_step: StepTimes | None
    decode_bytes: StepBytes | None
    bandwidth: float
    bandwidth_source: str
    kv_bytes: int
    paths: Paths

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values."""
        return asdict(self) | {"paths": self.paths.to_dict()}
