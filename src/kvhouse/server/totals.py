"""What the steps of an engine add up to, counted in its own thread."""

from __future__ import annotations

from typing import Any

from kvhouse.core.step import StepPlan, StepResult
from kvhouse.costs.reading import readings
from kvhouse.engine import Engine
from kvhouse.errors import UnsupportedModel


class StepTotals:
    """Sums over all steps; an observer of an engine. Counts only grow, so reading them is safe.

    Attributes:
        steps: Steps.
        seconds: Their time, measured by the executor.
        computed_tokens: Tokens computed, prompts and output.
        generated_tokens: Tokens sampled.
        admitted_tokens: Tokens that requests knew when they were admitted: their prompts, and
            after a preemption their own output. Each admission counts, so one of ``n`` answers to
            a prompt too; one that came to nothing because a load failed does not.
        found_tokens: Those of them that were found in the pool, or loaded from a tier.
        preemptions: How often a request lost its memory.
        decode_bytes: Bytes that steps of nothing but decoding had to read: the weights once, and
            every request's keys, values and states. None where the model's weights are not known.
        decode_seconds: The time of those steps.
    """

    def __init__(self, engine: Engine) -> None:
        self.steps = self.computed_tokens = self.generated_tokens = 0
        self.admitted_tokens = self.found_tokens = self.preemptions = 0
        self.seconds = self.decode_seconds = 0.0
        self.decode_bytes: int | None = 0
        self._scheduler = engine.scheduler
        self._spec, layout = engine.spec, engine.kv.layout
        self._dtype = layout.dtype
        self._state_bytes = self._spec.state_bytes(dtype=layout.dtype)
        self._readings = readings(self._spec, layout)
        self._weights: dict[int, int] = {}
        try:
            self._weight_bytes(1)
        except UnsupportedModel:
            self.decode_bytes = None

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        """Add a step."""
        self.steps += 1
        self.seconds += result.seconds
        self.generated_tokens += len(result.sampled)
        self.preemptions += len(plan.preempted)
        counts = [row.count for row in plan.rows]
        tokens = sum(counts)
        self.computed_tokens += tokens
        if plan.admitted:
            self._admit(plan, result)
        elif counts and tokens == len(counts) and self.decode_bytes is not None:
            self.decode_bytes += self._read_bytes([row.first for row in plan.rows])
            self.decode_seconds += result.seconds

    def _admit(self, plan: StepPlan, result: StepResult) -> None:
        """Add those that a step admitted. They begin behind what they found."""
        came = frozenset(plan.admitted) - plan.void(result.failed_loads)
        rows = [row for row in plan.rows if row.request in came]
        self.found_tokens += sum(row.first for row in rows)
        # A row that samples reaches to the last token that was known. Who has not come so far is
        # still there, and knows no more than before the step.
        self.admitted_tokens += sum(row.first + row.count for row in rows if row.samples)
        if more := {row.request for row in rows if not row.samples}:
            running = self._scheduler.running
            self.admitted_tokens += sum(one.known for one in running if one.id in more)

    def to_dict(self) -> dict[str, Any]:
        """The attributes by their names."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def _read_bytes(self, contexts: list[int]) -> int:
        """Bytes that one step reads which computes one token for each of these contexts."""
        read = len(contexts) * self._state_bytes
        for reading in self._readings:
            if reading.linear:
                read += sum(contexts) * reading.entry_bytes
            else:
                read += sum(map(reading.read_bytes, contexts))
        return read + self._weight_bytes(len(contexts))

    def _weight_bytes(self, tokens: int) -> int:
        """Weights that a step of so many tokens reads; of experts, those of even routing."""
        if tokens not in self._weights:
            self._weights[tokens] = self._spec.read_bytes(tokens, self._dtype).expected
        return self._weights[tokens]
