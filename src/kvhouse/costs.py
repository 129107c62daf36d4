"""Costs: the least time a step can take, from the bytes it moves and the FLOPs it does.

The roofline model (Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785): a step
takes at least as long as reading and writing its bytes at full bandwidth, and at least as long
as doing its arithmetic at the peak rate. Both are taken at efficiency 1 and fully overlapped, so
the result is a floor, never an estimate of what an engine reaches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kvhouse.core.step import StepPlan
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.reach import Reach


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step moves and computes, and the least time that takes.

    Attributes:
        weight_bytes: Weights read, once for all rows.
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


@dataclass(frozen=True, slots=True)
class _Reading:
    """Layers of one reach, and what a row of a step reads, writes and computes in them.

    Attributes:
        reach: Which tokens the layers keep.
        stride: Tokens for which one entry is kept.
        entry_bytes: Bytes of an entry in all these layers.
        pair_flops: FLOPs in all of them for a query token and one token it attends to.
        other_tokens: Tokens of another input, where the reach is that.
    """

    reach: Reach
    stride: int
    entry_bytes: int
    pair_flops: int
    other_tokens: int

    def read_bytes(self, first: int) -> int:
        """Bytes of earlier steps that a row beginning at ``first`` reads, each of them once.

        The step's own tokens are written, and a fused kernel need not read them back.
        """
        if self.reach.kind == "another":
            return self._other_bytes * (first > 0)
        return self._between(self.reach.first(first), first)

    def written_bytes(self, first: int, count: int) -> int:
        """Bytes that a row of ``count`` tokens must leave behind for the token after it.

        What no later token sees need not be written. Another input is written with the first row.
        """
        if self.reach.kind == "another":
            return self._other_bytes * (first == 0)
        end = first + count
        return self._between(max(first, self.reach.first(end)), end)

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
        if self.reach.kind == "window":
            growing = min(count, max(0, self.reach.tokens - first))
            return _rising(first, growing) + (count - growing) * self.reach.tokens
        if self.reach.kind == "chunk":
            return self._within_chunks(first + count) - self._within_chunks(first)
        return _rising(first, count)

    def _within_chunks(self, tokens: int) -> int:
        chunks, rest = divmod(tokens, self.reach.tokens)
        return chunks * _rising(0, self.reach.tokens) + _rising(0, rest)


def _flops_for(device: Device, dtype: str) -> tuple[float | None, str]:
    try:
        return device.flops_for(dtype)
    except KvhouseError:
        return None, "unknown"


def _rising(first: int, count: int) -> int:
    """Pairs of each token from ``first`` on with every token up to and including itself."""
    return count * first + count * (count + 1) // 2


def _readings(spec: ModelSpec, layout: KVLayout) -> list[_Reading]:
    """The model's layers by reach."""
    flops: dict[Reach, int] = {}
    for layer in spec.layers:
        for part in layer.parts:
            flops[part.reach] = flops.get(part.reach, 0) + part.attention_flops(1)
    return [
        _Reading(
            kind.reach,
            kind.stride,
            kind.entry_bytes,
            flops.pop(kind.reach, 0),
            kind.other_tokens,
        )
        for _, kind in layout.kinds
    ]


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
        self.weight_dtype = weight_dtype or spec.dtype
        # Of a file that mixes types the average width is taken for the matrices.
        self._weights_stored = spec.weight_bytes(weight_dtype)
        #: FLOP/s used, and the dtype that this rate is for: see ``Device.flops_for``.
        #: None and "unknown" where the device has none; bandwidth alone then makes the floor.
        self.flop_rate, self.compute_dtype = _flops_for(device, self.weight_dtype)
        self._readings = _readings(spec, layout)
        self._state_bytes = spec.state_bytes(dtype=layout.dtype)
        # The output projection is needed only for rows that sample. Where it is narrower than the
        # residual stream (OPT-350M), the other rows are counted a little too low: still a floor.
        self._head = spec.vocab_size * spec.hidden_size
        self._parameters, matmul_parameters = spec.counted()
        self._body = matmul_parameters - self._head

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

    def prefill(self, tokens: int) -> StepCost:
        """The cost of one whole prompt in one step, its first new token sampled."""
        return self._cost([(0, tokens, True)])

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
        read_parameters = (self._body + self._head * bool(samples)) * bool(tokens)
        weight_bytes = read_parameters * self._weights_stored // self._parameters
        matmul_flops = 2 * times * (self._body * tokens + self._head * samples)
        return StepCost(
            weight_bytes,
            kv_read,
            kv_written,
            matmul_flops,
            attention_flops,
            memory_seconds=(weight_bytes + kv_read + kv_written) / self.device.bandwidth,
            compute_seconds=(matmul_flops + attention_flops) / (self.flop_rate or math.inf),
        )
