"""vLLM, V1 engine: the page of each layer, that is its part of one block.

Sources: ``KVCacheSpec`` and its kinds in vllm/v1/kv_cache_interface.py, the models'
``get_kv_cache_spec`` and ``mamba_utils.py``, and for hybrids ``_align_hybrid_block_size`` in
vllm/platforms/interface.py (``HybridAttentionMambaModelConfig`` before 0.19).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import VLLM, KVType, kv_type
from kvhouse.planner.engines.view import held_parts
from kvhouse.planner.engines.vllm_options import (
    ALIGN_TO_BLOCK,
    DEFAULT_BLOCK,
    IN_FLIGHT_BATCHES,
    MAMBA_MODES,
    VllmOptions,
)
from kvhouse.spec.layers import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SlidingAttention,
    State,
    describe,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.tensors import ELEMENT_BYTES, Convolution

#: Bytes of an MLA token as ``fp8_ds_mla``: 512 in fp8, four float32 scales, 64 in 16 bits.
DS_MLA = 512 + 4 * 4 + 64 * 2
#: float32 scales of an indexer's fp8 keys, one for so many elements.
_SCALED = 128


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's part of a block.

    Attributes:
        kind: full, latent, window, chunk or state.
        name: What the layer keeps, in the words of ``kvhouse.spec``.
        block_size: Tokens in it.
        bytes: Its bytes.
        formula: How they come about.
        reach: The window or the chunk, in tokens; 0 for other kinds.
        states: States that a request keeps; 0 stands for one in every block.
        ranks: Ranks that share out a request's tokens (decode context parallelism).
    """

    kind: str
    name: str
    block_size: int
    bytes: int
    formula: str
    reach: int = 0
    states: int = 0
    ranks: int = 1

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks that a request of ``tokens`` takes at most (``max_memory_usage_bytes``)."""
        size = self.block_size * self.ranks
        if self.kind == "state" and self.states:
            return self.states
        if self.kind == "window":
            return -(-min(self.reach - 1 + in_flight, tokens) // size) + 1
        if self.kind == "chunk":
            return -(-min(self.reach + in_flight, tokens) // size)
        return -(-tokens // size)

    def count(self, in_flight: int) -> str:
        """The same in words."""
        size = self.block_size * self.ranks
        if self.kind == "state" and self.states:
            return f"{self.states} per request"
        if self.kind == "window":
            return f"ceil(min({self.reach} - 1 + {in_flight}, n) / {size}) + 1"
        if self.kind == "chunk":
            return f"ceil(min({self.reach} + {in_flight}, n) / {size})"
        return f"ceil(n / {size})"

    def in_full(self) -> Page:
        """The page of a layer that is given full length, as where the hybrid manager is off."""
        local = self.kind in ("window", "chunk")
        return replace(self, kind="full", reach=0) if local else self

    def sized(self, block_size: int) -> Page:
        """The page of an attention layer with blocks of another size."""
        per_token = self.bytes // self.block_size
        return replace(
            self,
            block_size=block_size,
            bytes=per_token * block_size,
            formula=f"{block_size} · {per_token:,}",
        )


def layer_pages(spec: ModelSpec, options: VllmOptions) -> list[Page]:
    """The pages of one rank's layers, each with the block that it will have.

    Raises:
        UnsupportedModel: The engine has no page for a kind of layer.
        KvhouseError: An option does not fit the model.
    """
    dtype = options.compute_dtype(spec)
    parts = [part for layer in spec.layers for part in held_parts(layer)]
    sparse = any(isinstance(part, Indexer) for part in parts)
    block = options.block_size or DEFAULT_BLOCK
    attention = [
        None if isinstance(part, State) else _attention(spec, part, options, dtype, block, sparse)
        for part in parts
    ]
    states = [_state_bytes(part, options, dtype) for part in parts if isinstance(part, State)]
    present = [page for page in attention if page is not None]
    if options.dcp > 1 and any(page.kind in ("window", "chunk") for page in present):
        raise UnsupportedModel(
            f"{spec.name}: vLLM does not spread the tokens of layers with windows over ranks"
        )
    if not states:
        return present
    if not present:
        length = spec.length_limit(options.max_model_len)
        return [
            _state_page(part, options, size, length)
            for part, size in zip(parts, states, strict=True)
        ]
    chunk = next((part.chunk for part in parts if isinstance(part, State)), None)
    block = _hybrid_block(present, max(states), options, chunk)
    padded = max(page.bytes // page.block_size * block for page in present)
    return [
        _state_page(part, options, padded, block) if page is None else page.sized(block)
        for part, page in zip(parts, attention, strict=True)
    ]


def state_page_bytes(spec: ModelSpec, options: VllmOptions) -> int:
    """Bytes of one layer's state on this rank before padding; 0 where there is none."""
    dtype = options.compute_dtype(spec)
    parts = [part for layer in spec.layers for part in layer.parts]
    return max((_state_bytes(p, options, dtype) for p in parts if isinstance(p, State)), default=0)


def _attention(
    spec: ModelSpec, part: Layer, options: VllmOptions, dtype: str, block: int, sparse: bool
) -> Page:
    fmt = kv_type(VLLM, dtype if options.kv_dtype in _AUTO else options.kv_dtype, "vLLM")
    if isinstance(part, LatentAttention) and part.window is None:
        return _latent(part, options, fmt, block, sparse)
    if isinstance(part, Indexer) and part.dtype is None and not part.positions:
        size = part.keys + -(-part.keys // _SCALED) * 4
        text = f"{block} · {size}"
        return Page("latent", part.kind, block, block * size, text, ranks=options.dcp)
    kinds = {FullAttention: "full", SlidingAttention: "window", ChunkedAttention: "chunk"}
    kind = kinds.get(type(part))
    if kind is None or not isinstance(part, FullAttention):
        raise UnsupportedModel(
            f"{spec.name}: how vLLM pages a layer of kind {describe(part)!r} is not known here"
        )
    key, value = fmt.vector_bytes(part.key_dim), fmt.vector_bytes(part.value_dim)
    reach = part.window if isinstance(part, SlidingAttention) else 0
    reach = part.chunk if isinstance(part, ChunkedAttention) else reach
    size = block * part.kv_heads * (key + value)
    text = f"{block} · {part.kv_heads} · ({key} + {value})"
    return Page(kind, part.kind, block, size, text, reach, ranks=options.dcp)


_AUTO = ("auto", "fp8_ds_mla")


def _latent(
    part: LatentAttention, options: VllmOptions, fmt: KVType, block: int, sparse: bool
) -> Page:
    """An MLA page; a sparse model in fp8 is stored as ``fp8_ds_mla`` (vLLM, DeepSeek-V3.2)."""
    packed = options.kv_dtype == "fp8_ds_mla" or (sparse and options.kv_dtype.startswith("fp8"))
    if packed and (part.rank, part.rope_dim) != (512, 64):
        raise KvhouseError(
            f"fp8_ds_mla holds a latent of 512 and 64 elements, not {part.rank} and {part.rope_dim}"
        )
    size = DS_MLA if packed else fmt.vector_bytes(part.rank + part.rope_dim)
    text = f"{block} · {size}" if packed else f"{block} · ({part.rank} + {part.rope_dim} elements)"
    return Page("latent", part.kind, block, block * size, text, ranks=options.dcp)


def _state_bytes(part: State, options: VllmOptions, dtype: str) -> int:
    """Bytes of a state: drafted tokens widen convolutions, other tensors have a dtype of their own.

    vLLM keeps recurrent states in the model's dtype unless the config or a flag says otherwise
    (``MambaStateDtypeCalculator``).
    """
    total = 0
    for tensor in part.tensors:
        if isinstance(tensor, Convolution):
            total += tensor.bytes(dtype, tensor.kernel - 1 + options.speculative_tokens)
        else:
            own = None if options.state_dtype == "auto" else options.state_dtype
            used = own or tensor.served or dtype
            total += tensor.elements * ELEMENT_BYTES[used]
    return total


def _state_page(part: Layer, options: VllmOptions, padded: int, block: int) -> Page:
    mode = cache_mode(part, options)
    states = {"none": 1, "align": 2, "all": 0}[mode]
    if states:
        states += options.speculative_tokens
    return Page("state", part.kind, block, padded, f"a state, padded to {padded:,}", 0, states)


def cache_mode(part: Layer, options: VllmOptions) -> str:
    """How states are kept: the last one, the last at a block's end as well, or every block's.

    With prefix caching, kernels that can keep every block's state do (Mamba 2), and others keep
    the last two (``MambaModelConfig`` in vllm/model_executor/models/config.py).
    """
    if options.mamba_cache_mode is not None:
        return options.mamba_cache_mode
    every = isinstance(part, State) and part.chunk is not None
    if not options.prefix_caching or (not every and options.release < MAMBA_MODES):
        return "none"
    return "all" if every else "align"


def _hybrid_block(pages: list[Page], state: int, options: VllmOptions, chunk: int | None) -> int:
    """Tokens of an attention block that holds as many bytes as a state."""
    per_token = max(page.bytes // page.block_size for page in pages)
    align = _kernel_block(pages, options)
    if options.block_size and options.release >= ALIGN_TO_BLOCK:
        align = max(align, options.block_size)
    part = State((), chunk)
    if cache_mode(part, options) == "all" and chunk:
        step = lcm(chunk, align)
        least = step * -(-state // (step * per_token))
    else:
        least = align * -(-state // (align * per_token))
    return max(least, options.block_size or 0)


def _kernel_block(pages: list[Page], options: VllmOptions) -> int:
    if options.kernel_block is not None:
        return options.kernel_block
    if all(page.kind != "latent" for page in pages):
        return 16
    return 128 if options.release >= IN_FLIGHT_BATCHES else 64
