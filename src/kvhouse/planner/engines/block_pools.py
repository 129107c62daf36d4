"""Engines with one pool of blocks over all layers: TensorRT-LLM, TGI, and smaller ones.

Sources: TensorRT-LLM, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp; TGI,
server/text_generation_server/models/flash_causal_lm.py; the others from their public logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.kv_dtypes import PLAIN, kv_type, narrow
from kvhouse.planner.engines.view import EngineView, Group, gib, held_parts
from kvhouse.spec.layers import FullAttention, LatentAttention, describe
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.sharding import shard


@dataclass(frozen=True, slots=True)
class Pool:
    """How one engine fills its pool.

    Attributes:
        name: The engine's name.
        block_size: Tokens in a block by default.
        fraction: Share of the free memory that the pool takes by default; 1 where the engine is
            told bytes.
        rounds_up: Whether a last block that fits in part is counted.
        kept_back: Blocks that no request is given.
    """

    name: str
    block_size: int
    fraction: float = 1.0
    rounds_up: bool = False
    kept_back: int = 0


POOLS = {
    "tensorrt-llm": Pool("TensorRT-LLM", 32, 0.9, rounds_up=True),
    "tgi": Pool("TGI", 1),
    "xinfer": Pool("xinfer", 64),
    "pegainfer": Pool("pegainfer", 16, kept_back=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Options of such an engine; None leaves one at the engine's default.

    Attributes:
        tp: Tensor parallel size.
        pp: Pipeline parallel size; the rank is that of the first stage.
        dtype: What the model computes in.
        kv_dtype: How keys and values are stored; ``auto`` is ``dtype``.
        block_size: Tokens in a block.
        max_model_len: The longest request.
        fraction: Share of ``free_bytes`` that the pool takes.
        free_bytes: Free memory once the model is loaded.
        available_bytes: Bytes of the pool, in place of the two above.
        blocks: Blocks of the pool, in place of all three.
    """

    tp: int = 1
    pp: int = 1
    dtype: str | None = None
    kv_dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    fraction: float | None = None
    free_bytes: int | None = None
    available_bytes: int | None = None
    blocks: int | None = None


def block_pool(pool: Pool, spec: ModelSpec, options: PoolOptions) -> EngineView:
    """How an engine with one pool holds a model on one rank.

    Raises:
        UnsupportedModel: It cannot be spread so, or not every layer keeps every token.
        KvhouseError: Unknown dtype, or no length limit.
    """
    length = spec.length_limit(options.max_model_len)
    rank = shard(spec, tp=options.tp, pp=options.pp)
    dtype = options.dtype or narrow(spec.dtype)
    fmt = kv_type(PLAIN, dtype if options.kv_dtype == "auto" else options.kv_dtype, pool.name)
    parts = [part for layer in rank.layers for part in held_parts(layer)]
    for part in parts:
        if type(part) not in (FullAttention, LatentAttention):
            raise UnsupportedModel(
                f"{spec.name}: how {pool.name} holds a layer of kind {describe(part)!r} is not "
                "known here"
            )
    per_token = sum(count * fmt.vector_bytes(n) for part in parts for count, n in part.vectors)
    block = pool.block_size if options.block_size is None else options.block_size
    if block < 1:
        raise KvhouseError(f"block size {block}: at least 1")
    size = per_token * block
    available = _available(pool, options)
    blocks = options.blocks
    if blocks is None and available is not None:
        whole, rest = divmod(max(0, available), size)
        blocks = whole + (pool.rounds_up and rest > 0)
    usable = None if blocks is None else max(0, blocks - pool.kept_back)
    tokens = None if usable is None else usable * block
    figures = {"bytes_per_token": per_token}
    if blocks is not None and usable is not None:
        figures |= {"pool_bytes": blocks * size, "usable_blocks": usable}

    def pages(count: int) -> int:
        return -(-count // block)

    group = Group(
        "full attention",
        len(parts),
        0,
        block,
        size,
        pages,
        f"{block} · {per_token:,}",
        f"ceil(n / {block})",
    )
    log = (
        ()
        if blocks is None
        else (f"{blocks} blocks of {block} tokens, {gib(blocks * size)} GiB, {tokens} tokens",)
    )
    return EngineView(
        engine=pool.name,
        version="any",
        groups=(group,),
        max_model_len=length,
        block_size=block,
        pool_block_bytes=size,
        available_bytes=available,
        blocks=blocks,
        kv_tokens=tokens,
        max_concurrency=None if usable is None else Fraction(usable, max(1, pages(length))),
        estimated_max_len=None if tokens is None else min(tokens, length),
        needed=lambda count: pages(count) * size,
        log_lines=log,
        figures=tuple(figures.items()),
    )


def _available(pool: Pool, options: PoolOptions) -> int | None:
    if options.available_bytes is not None or options.free_bytes is None:
        return options.available_bytes
    return int(options.free_bytes * (options.fraction or pool.fraction))
