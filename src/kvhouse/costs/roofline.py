"""Costs: the least time a step can take, from the bytes it moves and the FLOPs it does.

The roofline model (Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785): a step
takes at least as long as reading and writing its bytes at full bandwidth, and at least as long
as doing its arithmetic at the peak rate. Both are taken at efficiency 1 and fully overlapped, so
the result is a floor, never an estimate of what an engine reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvhouse.core.step import StepPlan
from kvhouse.costs.line import Line
from kvhouse.costs.reading import readings
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.weight_formats import weight_format


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step moves and computes, and the least time that takes.

    Attributes:
        weight_bytes: Weights read, once for all rows. Of a mixture of experts those that even
            routing would read: real routers prefer some experts and read fewer.
        kv_read_bytes: Keys, values and states read.
        kv_written_bytes: Keys, values and states written.
        matmul_flops: Products of activations with weights.
        attention_flops: Products of queries with keys and of probabilities with values.
        memory_seconds: All bytes at the device's bandwidth.
        compute_seconds: All FLOPs at the device's rate.
    """

    weight_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int
    matmul_flops: int
    attention_flops: int
    memory_seconds: float
    compute_seconds: float

    @property
    def bytes(self) -> int:
        """All bytes moved."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_written_bytes

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return self.matmul_flops + self.attention_flops

    @property
    def seconds(self) -> float:
        """The floor: the longer of the two."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> Literal["bandwidth", "compute"]:
        """Which of the two sets the floor."""
        return "compute" if self.compute_seconds > self.memory_seconds else "bandwidth"


def _flops_for(device: Device, dtype: str) -> tuple[float | None, str]:
    try:
        return device.flops_for(dtype)
    except KvhouseError:
        return None, "unknown"


class Roofline:
    """The cost of steps of one model, laid out in one way, on one device.

    What it leaves out is small, and leaving it out keeps the floor a floor: embedding look-ups,
    norms, activations, the attention's softmax and tokens that wait to be compressed.
    """

    def __init__(
        self, spec: ModelSpec, layout: KVLayout, device: Device, weight_dtype: str | None = None
    ) -> None:
        """Prepare the per-token figures.

        Args:
            spec: The model.
            layout: How its KV lies in memory.
            device: Where it runs.
            weight_dtype: Dtype of the weights and of the arithmetic; by default weights as stored,
                arithmetic in the spec's dtype.

        Raises:
            UnsupportedModel: The model's weights are not known.
            KvhouseError: Unknown dtype.
        """
        self.spec = spec
        self.layout = layout
        self.device = device
        self._weight_dtype = weight_dtype
        #: FLOP/s used, and the dtype that this rate is for: see ``Device.flops_for``.
        #: None and "unknown" where the device has none; bandwidth alone then makes the floor.
        self.flop_rate, self.compute_dtype = _flops_for(device, _arithmetic(spec, weight_dtype))
        self._bandwidth, self._rate = float(device.bandwidth), self.flop_rate or math.inf
        self._readings = readings(spec, layout)
        #: Whether a decoding row costs more by the same with every token: all layers keep and read
        #: every token.
        self.linear = all(reading.linear for reading in self._readings)
        self._entry_bytes = sum(reading.entry_bytes for reading in self._readings)
        self._pair_flops = sum(reading.pair_flops for reading in self._readings)
        self._state_bytes = spec.state_bytes(dtype=layout.dtype)
        # The output projection is needed only for rows that sample. Where it is narrower than the
        # residual stream (OPT-350M), the other rows are counted a little too low: still a floor.
        self._head = spec.vocab_size * spec.hidden_size
        self._body = spec.counted()[1] - self._head
        #: Only how many experts are read goes by the tokens.
        self._routed = bool(spec.experts)
        self._weights_read: dict[tuple[int, bool], int] = {}

    def step(self, plan: StepPlan) -> StepCost:
        """The cost of one planned step; zero for a plan without rows."""
        return self._cost([(row.first, row.count, row.samples) for row in plan.rows])

    def decode_floor(self, batch: int, context: int) -> StepCost:
        """The cost of ``batch`` rows of one token each.

        Args:
            batch: Requests decoding together.
            context: Tokens that each has in the pool before the step.
        """
        return self._cost([(context, 1, True)], batch)

    def prefill(self, tokens: int, cached: int = 0) -> StepCost:
        """The cost of one whole prompt in one step, its first new token sampled.

        Args:
            tokens: Tokens of the prompt.
            cached: How many of them are in the pool already; fewer than ``tokens``.
        """
        return self._cost([(cached, tokens - cached, True)])

    def chunk(self, first: int, tokens: int) -> StepCost:
        """The cost of computing ``tokens`` tokens from position ``first`` on, nothing sampled."""
        return self._cost([(first, tokens, False)])

    def line(
        self,
        decoding: int,
        before: int,
        rows: Sequence[tuple[int, int, bool]] = (),
        *,
        going_on: bool = False,
    ) -> Line:
        """The cost of steps in a row, where ``linear``; the first is exactly what ``step`` says.

        Args:
            decoding: Rows of one token that every step has; each samples.
            before: Tokens that these have together in the pool before the first step.
            rows: Further rows of the first step: first position, tokens, and whether they sample.
            going_on: Whether every later step has these rows too, each with as many next tokens;
                none of them may begin at position 0. Otherwise no later step has them.
        """
        tokens = samples = more = more_pairs = decoding
        states = 2 * decoding
        read, pairs = before, 0
        for first, count, sampled in rows:
            tokens += count
            samples += sampled
            states += 1 + (first > 0)
            read += first
            pairs += count * first + count * (count + 1) // 2
            if going_on:
                more += count
                more_pairs += count * count
        moved = (
            self._weight_bytes(tokens, samples > 0)
            + (read + tokens) * self._entry_bytes
            + states * self._state_bytes
        )
        flops = 2 * (self._body * tokens + self._head * samples)
        flops += self._pair_flops * (before + decoding + pairs)
        return Line(
            moved,
            more * self._entry_bytes,
            flops,
            more_pairs * self._pair_flops,
            self._bandwidth,
            self._rate,
        )

    def _cost(self, rows: list[tuple[int, int, bool]], times: int = 1) -> StepCost:
        """The cost of rows of ``(first position, tokens, samples)``, each taken ``times`` times."""
        tokens = samples = resumed = kv_read = kv_written = attention_flops = 0
        for first, count, sampled in rows:
            tokens += count
            samples += sampled
            resumed += first > 0
            for reading in self._readings:
                kv_read += reading.read_bytes(first)
                kv_written += reading.written_bytes(first, count)
                attention_flops += reading.flops(first, count)
        # A state is written whole, and read whole unless it only begins.
        kv_read = times * (kv_read + resumed * self._state_bytes)
        kv_written = times * (kv_written + len(rows) * self._state_bytes)
        attention_flops *= times
        weight_bytes = self._weight_bytes(times * tokens, samples > 0)
        matmul_flops = 2 * times * (self._body * tokens + self._head * samples)
        return StepCost(
            weight_bytes,
            kv_read,
            kv_written,
            matmul_flops,
            attention_flops,
            memory_seconds=(weight_bytes + kv_read + kv_written) / self._bandwidth,
            compute_seconds=(matmul_flops + attention_flops) / self._rate,
        )

    def _weight_bytes(self, tokens: int, sampled: bool) -> int:
        """Weights that a step of so many tokens reads, those of its experts as routing is even."""
        key = (tokens if self._routed else tokens > 0, sampled)
        found = self._weights_read.get(key)
        if found is None:
            read = self.spec.read_bytes(tokens, self._weight_dtype, sampled=sampled)
            found = self._weights_read[key] = read.expected
        return found


def _arithmetic(spec: ModelSpec, weight_dtype: str | None) -> str:
    """The dtype in which matrices are multiplied: that of their format where it has one."""
    if weight_dtype is not None:
        stored = weight_format(weight_dtype)
    elif spec.storage is not None:
        stored = spec.storage.matrices
    else:
        return spec.dtype
    return stored.arithmetic or (spec.dtype if stored.quantised else stored.name)
