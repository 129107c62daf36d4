"""vLLM, V0 engine: blocks of all layers alike, on the GPU and in swap space.

Source: ``CacheEngine.get_cache_block_size`` and ``Worker.determine_num_available_blocks`` of
vllm/worker up to 0.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import VLLM, KVType, kv_type
from kvhouse.planner.engines.option_values import flags
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.view import EngineView, Group, held_parts
from kvhouse.planner.engines.vllm_options import DEFAULT_BLOCK, FLAGS, NO_MEMORY, VllmOptions
from kvhouse.spec.layers import FullAttention, LatentAttention, Layer, describe
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.sharding import shard

#: MLA was cached as a latent from here on; before, as keys and values of every head.
_LATENT = Version((0, 7, 0))
#: What a decompressed head of MLA was padded to (PR 4650).
_PADDED_HEAD = 256


def vllm_v0(spec: ModelSpec, options: VllmOptions) -> EngineView:
    """How vLLM's V0 engine pages a model: every layer in full, whatever its window.

    The rank is that of the first pipeline stage.

    Raises:
        UnsupportedModel: It cannot be spread so, or has layers that the engine does not page.
    """
    length = spec.length_limit(options.max_model_len)
    rank = shard(spec, tp=options.tp, pp=options.pp)
    dtype = options.compute_dtype(spec)
    name = dtype if options.kv_dtype == "auto" else options.kv_dtype
    fmt = kv_type(VLLM, name, "vLLM")
    parts = [part for layer in rank.layers for part in held_parts(layer)]
    per_token = sum(_token_bytes(spec.name, part, fmt, options.release) for part in parts)
    block = options.block_size or DEFAULT_BLOCK
    size = per_token * block
    available, blocks = options.pool_bytes(), options.blocks
    if blocks is None and available is not None:
        blocks = max(0, available) // size
    tokens = None if blocks is None else blocks * block
    cpu_blocks = options.swap_bytes // size

    def pages(count: int) -> int:
        return -(-count // block)

    group = Group(
        name="full attention",
        layers=len(parts),
        padding=0,
        block_size=block,
        block_bytes=size,
        blocks=pages,
        formula=f"{block} · {per_token:,}",
        count=f"ceil(n / {block})",
    )
    return EngineView(
        engine="vLLM V0",
        version=str(options.release),
        groups=(group,),
        max_model_len=length,
        block_size=block,
        pool_block_bytes=size,
        available_bytes=available,
        blocks=blocks,
        kv_tokens=tokens,
        max_concurrency=None if tokens is None else Fraction(tokens, length),
        estimated_max_len=None if tokens is None else min(tokens, length),
        needed=lambda count: pages(count) * size,
        log_lines=_log(blocks, cpu_blocks, block, length),
        flags=(f"--max-model-len {min(length, tokens or length)}", *flags(options, FLAGS)),
        figures=(("cpu_blocks", cpu_blocks),),
        capacity=lambda count: (count * block, Fraction(count * block, length)),
    )


def _log(blocks: int | None, cpu_blocks: int, block: int, length: int) -> tuple[str, ...]:
    if blocks is None:
        return ()
    if not blocks:
        return (f"# GPU blocks: 0, # CPU blocks: {cpu_blocks}", NO_MEMORY)
    tokens = blocks * block
    lines = (
        f"# GPU blocks: {blocks}, # CPU blocks: {cpu_blocks}",
        f"Maximum concurrency for {length} tokens per request: {tokens / length:.2f}x",
    )
    if length <= tokens:
        return lines
    return (
        *lines,
        f"ValueError: the model's max seq len ({length}) is larger than the maximum number of "
        f"tokens that can be stored in KV cache ({tokens})",
    )


def _token_bytes(name: str, part: Layer, fmt: KVType, release: Version) -> int:
    if isinstance(part, LatentAttention):
        if release >= _LATENT:
            return fmt.vector_bytes(part.rank + part.rope_dim)
        return 2 * part.query_heads * fmt.vector_bytes(_PADDED_HEAD)
    if isinstance(part, FullAttention) and not part.across:
        return sum(count * fmt.vector_bytes(size) for count, size in part.vectors)
    raise UnsupportedModel(
        f"{name}: how vLLM's V0 engine pages a layer of kind {describe(part)!r} is not known here"
    )


def kv_budget(
    total: float, utilization: float, used: Sequence[float], graphs: float = 0
) -> tuple[float, float]:
    """What vLLM may use of a device, and what is left of it for KV, in the unit of ``total``.

    ``utilization · total``, and from that what is ``used`` (weights, what other libraries hold,
    the peak of activations), and from about 0.21 on the estimate for CUDA graphs (``Worker`` of
    both engines, ``determine_available_memory``).

    Raises:
        KvhouseError: ``utilization`` is not between 0 and 1.
    """
    if not 0 < utilization <= 1:
        raise KvhouseError(f"utilization {utilization}: above 0, at most 1")
    budget = utilization * total
    return budget, budget - sum(used) - graphs


#: What vLLM leaves free when it suggests ``--kv-cache-memory`` (``compile_or_warm_up_model``).
SUGGESTION_MARGIN = 150 * 2**20
