"""What vLLM is started with, as far as its KV depends on it, and its versions' turning points."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.kv_dtypes import model_dtype, narrow
from kvhouse.planner.engines.version import Version
from kvhouse.spec.fields import show
from kvhouse.spec.layers import Layer
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.tensors import ELEMENT_BYTES

#: Window layers are given less than full length (the hybrid KV cache manager); before it, every
#: layer of a hybrid is charged as full attention, and concurrency is tokens over length.
HYBRID = Version((0, 9, 2))
#: ``--kv-cache-memory-bytes`` gives the memory outright, past utilization and profiling.
MEMORY_BYTES = Version((0, 11, 0))
#: Kinds of nearly as many layers form groups of the larger count, to save padding.
CLOSE_COUNTS = Version((0, 11, 0))
#: That holds up to one and a half times the smaller count; before, one and a quarter.
CLOSER_COUNTS = Version((0, 19, 0))
#: The states of hybrids have the modes none, align and all; before, prefix caching means all.
MAMBA_MODES = Version((0, 14, 0))
#: Memory needed is summed over groups, padding layers included; before, over the layers.
NEEDED_BY_GROUP = Version((0, 16, 0))
#: The block of a hybrid is also a multiple of the block size that was asked for.
ALIGN_TO_BLOCK = Version((0, 20, 0))
#: Printed tokens are the concurrency times the length; before, blocks over groups.
TOKENS_BY_CONCURRENCY = Version((0, 20, 1))
#: Window layers reserve the tokens of every batch in flight, and pages may be padded.
IN_FLIGHT_BATCHES = Version((0, 33, 0))

#: Options as the command line takes them, beside the length and the memory.
FLAGS = {
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "dcp": "--decode-context-parallel-size",
    "dtype": "--dtype",
    "kv_dtype": "--kv-cache-dtype",
    "state_dtype": "--mamba-ssm-cache-dtype",
    "block_size": "--block-size",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "prefix_caching": "--enable-prefix-caching",
    "mamba_cache_mode": "--mamba-cache-mode",
    "blocks": "--num-gpu-blocks-override",
}
#: What it stops with where weights and the like leave nothing (``check_enough_kv_cache_memory``).
NO_MEMORY = (
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine."
)
DEFAULT_BLOCK = 16
#: vLLM on CPUs (vllm/platforms/cpu.py).
CPU_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """vLLM's own options; None leaves one at the engine's default.

    Attributes:
        version: Release, such as ``0.11``; None is the latest that is known.
        tp: Tensor parallel size.
        pp: Pipeline parallel size.
        dcp: Decode context parallel size: ranks that share out the tokens of a request.
        dtype: What the model computes in; by default that of its weights, float32 narrowed to 16
            bits.
        kv_dtype: ``--kv-cache-dtype``; ``auto`` is ``dtype``.
        state_dtype: ``--mamba-ssm-cache-dtype``; by default what the model's config asks for, or
            ``dtype``.
        block_size: ``--block-size``.
        kernel_block: The least block that the attention backend can do, which blocks of hybrids
            are aligned to; by default 16, and for MLA 64, or 128 from 0.33 on.
        max_model_len: ``--max-model-len``; by default the model's own limit.
        max_num_batched_tokens: ``--max-num-batched-tokens``; only models with windows need it.
        concurrent_batches: Batches in flight: 2 with asynchronous scheduling, more with stages.
        prefix_caching: ``--enable-prefix-caching``, for hybrids; off by default.
        mamba_cache_mode: ``--mamba-cache-mode``: none, align or all.
        speculative_tokens: Tokens drafted per step.
        draft_layers: Layers that a speculating engine keeps beside the model's own; where tokens
            are drafted, by default those of the model that predict several tokens.
        hybrid: Whether window layers are given less than full length; by default what the version
            does, and not for chunked attention.
        utilization: ``--gpu-memory-utilization``.
        total_bytes: The device's memory; ``available_bytes`` is then the rest of the sum.
        used_bytes: Memory that is not KV: weights, activations, what else the process holds.
        available_bytes: Bytes for KV on each rank.
        blocks: Blocks of the pool (``--num-gpu-blocks-override``).
        swap_bytes: ``--swap-space`` of the V0 engine, in bytes.
    """

    version: str | None = None
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    dtype: str | None = None
    kv_dtype: str = "auto"
    state_dtype: str | None = None
    block_size: int | None = None
    kernel_block: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    concurrent_batches: int | None = None
    prefix_caching: bool = False
    mamba_cache_mode: str | None = None
    speculative_tokens: int = 0
    draft_layers: tuple[Layer, ...] | None = None
    hybrid: bool | None = None
    utilization: float = 0.9
    total_bytes: int | None = None
    used_bytes: int | None = None
    available_bytes: int | None = None
    blocks: int | None = None
    swap_bytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        """Refuse sizes below their least.

        Raises:
            KvhouseError: A size is out of range.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise KvhouseError(f"{name} {value}: at least {least}")
        if self.state_dtype not in (None, "auto", *ELEMENT_BYTES):
            known = ", ".join(ELEMENT_BYTES)
            raise KvhouseError(f"state_dtype {show(self.state_dtype)}: choose one of {known}")
        if self.mamba_cache_mode not in (None, "none", "align", "all"):
            raise KvhouseError(
                f"mamba_cache_mode {show(self.mamba_cache_mode)}: none, align or all"
            )

    @property
    def release(self) -> Version:
        """The version, to compare."""
        return Version.of(self.version)

    def compute_dtype(self, spec: ModelSpec) -> str:
        """The dtype that the model runs in.

        Raises:
            KvhouseError: No such dtype.
        """
        name = narrow(spec.dtype) if self.dtype in (None, "auto") else model_dtype(self.dtype or "")
        if name not in ELEMENT_BYTES:
            raise KvhouseError(
                f"dtype {show(self.dtype)}: choose one of {', '.join(ELEMENT_BYTES)}"
            )
        return name

    def drafting(self, spec: ModelSpec) -> tuple[Layer, ...]:
        """The layers that draft tokens."""
        if self.draft_layers is not None:
            return self.draft_layers
        return spec.mtp_layers if self.speculative_tokens else ()

    def pool_bytes(self) -> int | None:
        """Bytes for KV: given, or utilization of the total less what is used; None if unknown."""
        if self.available_bytes is not None or self.total_bytes is None or self.used_bytes is None:
            return self.available_bytes
        return int(self.total_bytes * self.utilization) - self.used_bytes


_LEAST = {
    **dict.fromkeys(("tp", "pp", "dcp", "block_size", "kernel_block", "max_model_len"), 1),
    **dict.fromkeys(("max_num_batched_tokens", "concurrent_batches"), 1),
    **dict.fromkeys(("speculative_tokens", "blocks", "swap_bytes", "total_bytes"), 0),
}
