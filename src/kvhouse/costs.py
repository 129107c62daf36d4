"""Costs: the least time a step can take, from the bytes it moves and the FLOPs it does.

The roofline model (Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785): a step
takes at least as long as reading and writing its bytes at full bandwidth, and at least as long
as doing its arithmetic at the peak rate. Both are taken at efficiency 1 and fully overlapped, so
the result is a floor, never an estimate of what an engine reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvhouse.core.step import StepPlan
from kvhouse.devices import Device
from kvhouse.layout import KVLayout
from kvhouse.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step moves and computes, and the least time that takes.

    Attributes:
        weight_bytes: Weights read, once for all rows.
        kv_read_bytes: Keys and values read.
        kv_written_bytes: Keys and values written.
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
class _Work:
    """What a step's cost depends on, summed over its rows.

    Attributes:
        tokens: Tokens computed.
        samples: Rows that need logits.
        context: Tokens whose KV is read: of each row those of earlier steps, once. The step's
            own are written, and a fused kernel need not read them back.
        attended: Pairs of a computed token and a token at or before it.
    """

    tokens: int
    samples: int
    context: int
    attended: int


class Roofline:
    """The cost of steps of one model, laid out in one way, on one device.

    What it leaves out is small, and leaving it out keeps the floor a floor: embedding look-ups,
    norms, activations and the attention's softmax.
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
            KvhouseError: Unknown dtype, or no FLOP/s known for it.
        """
        self.spec = spec
        self.layout = layout
        self.device = device
        self.weight_dtype = weight_dtype or spec.dtype
        # Of a file that mixes types the average width is taken for the matrices.
        self._weights_stored = spec.weight_bytes(weight_dtype)
        #: FLOP/s used, and the dtype that this rate is for: see ``Device.flops_for``.
        self.flop_rate, self.compute_dtype = device.flops_for(self.weight_dtype)
        self._kv_token_bytes = layout.bytes_per_token
        # The output projection is needed only for rows that sample. Where it is narrower than the
        # residual stream (OPT-350M), the other rows are counted a little too low: still a floor.
        self._head = spec.vocab_size * spec.hidden_size
        self._parameters, matmul_parameters = spec.counted()
        self._body = matmul_parameters - self._head
        # Full attention's FLOPs are proportional to the context, so one figure serves.
        self._attention_flops = sum(layer.attention_flops(1) for layer in spec.layers)

    def step(self, plan: StepPlan) -> StepCost:
        """The cost of one planned step; zero for a plan without rows."""
        tokens = samples = context = attended = 0
        for row in plan.rows:
            tokens += row.count
            samples += row.samples
            context += row.first
            attended += _attended(row.first, row.count)
        return self._cost(_Work(tokens, samples, context, attended))

    def decode_floor(self, batch: int, context: int) -> StepCost:
        """The cost of ``batch`` rows of one token each.

        Args:
            batch: Requests decoding together.
            context: Tokens that each has in the pool before the step.
        """
        return self._cost(_Work(batch, batch, batch * context, batch * (context + 1)))

    def prefill(self, tokens: int) -> StepCost:
        """The cost of one whole prompt in one step, its first new token sampled."""
        return self._cost(_Work(tokens, 1, 0, _attended(0, tokens)))

    def _cost(self, work: _Work) -> StepCost:
        read_parameters = (self._body + self._head * bool(work.samples)) * bool(work.tokens)
        weight_bytes = read_parameters * self._weights_stored // self._parameters
        kv_read = work.context * self._kv_token_bytes
        kv_written = work.tokens * self._kv_token_bytes
        matmul_flops = 2 * (self._body * work.tokens + self._head * work.samples)
        attention_flops = self._attention_flops * work.attended
        return StepCost(
            weight_bytes,
            kv_read,
            kv_written,
            matmul_flops,
            attention_flops,
            memory_seconds=(weight_bytes + kv_read + kv_written) / self.device.bandwidth,
            compute_seconds=(matmul_flops + attention_flops) / self.flop_rate,
        )


def _attended(first: int, count: int) -> int:
    """Pairs of each token from ``first`` on with every token up to and including itself."""
    return count * first + count * (count + 1) // 2
