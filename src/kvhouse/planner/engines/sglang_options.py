"""What SGLang is started with, as far as its KV depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show
from kvhouse.spec.layers import Layer
from kvhouse.spec.tensors import ELEMENT_BYTES

#: Options as its command line takes them, beside the length.
FLAGS = {
    "tp": "--tp-size",
    "dtype": "--dtype",
    "kv_dtype": "--kv-cache-dtype",
    "page_size": "--page-size",
    "mem_fraction_static": "--mem-fraction-static",
    "tokens": "--max-total-tokens",
    "swa_ratio": "--swa-full-tokens-ratio",
    "mamba_ratio": "--mamba-full-memory-ratio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangOptions:
    """SGLang's own options; None leaves one at the engine's default.

    Attributes:
        version: Release; None is the latest that is known.
        tp: Tensor parallel size.
        dtype: What the model computes in.
        kv_dtype: ``--kv-cache-dtype``.
        state_dtype: Dtype of recurrent states; float32 by default.
        page_size: ``--page-size``.
        context_length: ``--context-length``; by default the model's limit.
        mem_fraction_static: ``--mem-fraction-static``.
        free_before_bytes: Free memory before the weights are loaded.
        free_after_bytes: Free memory after.
        available_bytes: Bytes for all pools, in place of the three above.
        tokens: Tokens of the pool (``--max-total-tokens``).
        swa_ratio: ``--swa-full-tokens-ratio``: tokens of the window pool to those of the full one.
        mamba_ratio: ``--mamba-full-memory-ratio``: memory of states to that of tokens.
        window_pool: Whether windows have a pool of their own; by default what the version does.
        draft_layers: Layers of a draft model, whose pool has as many tokens.
    """

    version: str | None = None
    tp: int = 1
    dtype: str | None = None
    kv_dtype: str = "auto"
    state_dtype: str = "float32"
    page_size: int = 1
    context_length: int | None = None
    mem_fraction_static: float | None = None
    free_before_bytes: int | None = None
    free_after_bytes: int | None = None
    available_bytes: int | None = None
    tokens: int | None = None
    swa_ratio: float = 0.8
    mamba_ratio: float = 0.9
    window_pool: bool | None = None
    draft_layers: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a dtype that states cannot have.

        Raises:
            KvhouseError: ``state_dtype`` is unknown.
        """
        if self.state_dtype not in ELEMENT_BYTES:
            known = ", ".join(ELEMENT_BYTES)
            raise KvhouseError(f"state_dtype {show(self.state_dtype)}: choose one of {known}")

    def pool_bytes(self) -> int | None:
        """Bytes for all pools: what is free after loading, less the share that stays free.

        That share is of what was free before: ``after - before · (1 - fraction)``.
        """
        parts = (self.free_before_bytes, self.free_after_bytes, self.mem_fraction_static)
        before, after, fraction = parts
        if self.available_bytes is not None or before is None or after is None or fraction is None:
            return self.available_bytes
        return int(after - before * (1 - fraction))
