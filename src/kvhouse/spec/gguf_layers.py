"""The layers of a model from a GGUF file's metadata, as llama.cpp reads it.

Most of it is in keys below the architecture's name. What llama.cpp lays down in its code for one
architecture (how often a layer attends to everything, a window that no key names) is in
``gguf_architectures.json``, taken from ``src/models`` of its repository. The result is what the
model needs: where llama.cpp keeps more, such as the whole context of a window that it does not
use, that is the engine's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.config import MOST_LAYERS, MOST_TOKENS
from kvhouse.spec.fields import show
from kvhouse.spec.gguf_metadata import Metadata
from kvhouse.spec.gguf_states import read_state
from kvhouse.spec.layers import (
    ChunkedAttention,
    Combined,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SharedKV,
    SlidingAttention,
    State,
    WithoutKV,
)

#: Loops over all layers that are believed.
_MOST_LOOPS = 2**6


@dataclass(frozen=True, slots=True)
class Heads:
    """What each layer has of heads: queries, keys, and the elements of a key and a value."""

    queries: list[int]
    keys: list[int]
    key_dims: tuple[int, int]
    value_dims: tuple[int, int]

    def attention(
        self, index: int, window: int | None = None, chunk: int | None = None
    ) -> FullAttention:
        """The attention of layer ``index``; layers with a window may have heads of their own."""
        local = window is not None
        sizes = (self.queries[index], self.keys[index], self.key_dims[local])
        if window is not None:
            return SlidingAttention(*sizes, self.value_dims[local], window)
        if chunk is not None:
            return ChunkedAttention(*sizes, self.value_dims[local], chunk)
        return FullAttention(*sizes, self.value_dims[local])


def read_layers(data: Metadata, tensors: Collection[str]) -> tuple[list[Layer], list[Layer]]:
    """Every layer in order, and apart from them those that predict further tokens.

    Args:
        data: The file's metadata.
        tensors: The names of its tensors, which tell for some models what a layer has.

    Raises:
        SpecError: A key is missing or impossible.
        UnsupportedModel: The layers are of a kind that cannot be counted.
    """
    blocks = data.size("block_count", MOST_LAYERS)
    further = data.maybe("nextn_predict_layers", MOST_LAYERS) or 0
    if further >= blocks:
        problem = f"is {further}, but there are {blocks} layers in all"
        raise data.error(data.key("nextn_predict_layers"), problem)
    probe = f"blk.{blocks - further}.nextn.eh_proj.weight"
    if data.entry.get("compressed") and probe not in tensors:
        further = 0  # named in the metadata, left out of the file
    count = blocks - further
    one = _reader(data, count, blocks, tensors)
    own = _own_kv(data, blocks)
    layers = [one(index) if index < own else SharedKV() for index in range(count)]
    loops = data.maybe("num_loops", _MOST_LOOPS) or 1
    return layers * loops, [_plain(data, one(index)) for index in range(count, blocks)]


def _plain(data: Metadata, layer: Layer) -> Layer:
    """A prediction layer, which attends to everything."""
    if isinstance(layer, State):
        raise UnsupportedModel(f"{data.where}: a layer that predicts tokens has a state")
    return layer


def _own_kv(data: Metadata, layers: int) -> int:
    """Layers from the first on that have KV of their own."""
    shared = data.maybe("attention.shared_kv_layers")
    if shared is None:
        return min(int(data.entry.get("own_kv", layers)), layers)
    if shared >= layers:
        problem = f"is {shared}, but there are {layers} layers"
        raise data.error(data.key("attention.shared_kv_layers"), problem)
    return layers - shared


def _reader(
    data: Metadata, count: int, blocks: int, tensors: Collection[str]
) -> Callable[[int], Layer]:
    """The function that gives layer ``index``."""
    if data.entry.get("state") == "always":
        state = read_state(data)
        return lambda _: state
    if data.entry.get("compressed"):
        return _compressed(data, blocks)
    if data.maybe("attention.kv_lora_rank"):
        attends = _latent(data, blocks)
    else:
        attends = _attention(data, count, blocks)
    attends = _with_indexer(data, count, attends, tensors)
    return _with_states(data, count, blocks, attends)


def heads(data: Metadata, blocks: int) -> Heads:
    """Heads of each layer; what is left out follows llama.cpp's rules."""
    queries = data.each("attention.head_count", blocks)
    if queries is None:
        raise data.error(data.key("attention.head_count"), "is missing")
    keys = data.each("attention.head_count_kv", blocks) or queries
    for query, key in zip(queries, keys, strict=True):
        if key and (not query or query % key):
            problem = f"is {key}, which does not divide the {query} query heads"
            raise data.error(data.key("attention.head_count_kv"), problem)
    dims = [_dims(data, vector, max(queries)) for vector in ("key", "value")]
    return Heads(queries, keys, dims[0], dims[1])


def _dims(data: Metadata, vector: str, queries: int) -> tuple[int, int]:
    """Elements of a key or value in a layer without a window, and in one with a window."""
    plain = data.maybe(f"attention.{vector}_length")
    if plain is None:
        hidden = data.size("embedding_length")
        if not 0 < queries <= hidden:
            problem = f"is {queries}; the hidden size is {hidden}"
            raise data.error(data.key("attention.head_count"), problem)
        plain = hidden // queries
    return plain, data.maybe(f"attention.{vector}_length_swa") or plain


def _attention(data: Metadata, count: int, blocks: int) -> Callable[[int], Layer]:
    own = heads(data, blocks)
    window, local = _windows(data, count)
    chunk = data.entry.get("chunk") if local and window is None else None

    def one(index: int) -> Layer:
        if not own.keys[index]:
            return WithoutKV()
        if index in local:
            return own.attention(index, window, chunk)
        return own.attention(index)

    return one


def _windows(data: Metadata, count: int) -> tuple[int | None, set[int]]:
    """The window in tokens, and the layers that have it. A chunk has None in place of a window."""
    entry, key = data.entry, "attention.sliding_window"
    stated = data.optional_integer(data.key(key), MOST_TOKENS, least=0)
    window = entry.get("window") if stated is None else stated
    chunked = "chunk" in entry and stated != 0
    if not window and not chunked:
        return None, set()
    pattern = data.values.get(data.key("attention.sliding_window_pattern"))
    if isinstance(pattern, list):
        slides = data.each("attention.sliding_window_pattern", count) or []
        local = {index for index, one in enumerate(slides) if one}
    else:
        local = _patterned(data, count, window)
    return (None if chunked else window), local


def _patterned(data: Metadata, count: int, window: int | None) -> set[int]:
    """The layers with a window by a period: all but the last, or the first, of every so many."""
    entry, name = data.entry, "attention.sliding_window_pattern"
    period = data.optional_integer(data.key(name), MOST_LAYERS, least=0)
    period = entry.get("period") if period is None else period
    if period is None:
        longest = data.maybe("context_length", MOST_TOKENS)
        if window and longest and window > longest:
            return set()
        raise UnsupportedModel(
            f"{data.where}: not supported: field {data.key('attention.sliding_window')!r}: some "
            f"layers keep only the last {window} tokens, and which do is not stated"
        )
    if period == 0:
        return set(range(count))
    full = 0 if entry.get("full_first") else period - 1
    return {index for index in range(count) if index % period != full}


def _latent(data: Metadata, blocks: int) -> Callable[[int], Layer]:
    """Latent attention, in whichever of two ways the file states its sizes.

    Newer files state the vector that is kept as the length of a key. In older ones, which
    llama.cpp runs with keys and values unfolded, that key is the unfolded one.
    """
    if data.maybe("attention.sliding_window"):
        raise UnsupportedModel(f"{data.where}: not supported: latent attention with a window")
    rank = data.size("attention.kv_lora_rank")
    queries = data.each("attention.head_count", blocks)
    if queries is None or not all(queries):
        raise data.error(data.key("attention.head_count"), f"is {show(queries)}")
    if data.maybe("attention.key_length_mla"):
        rope = data.size("attention.key_length") - rank
        if rope < 0:
            problem = f"is less than the rank of the latent, {rank}"
            raise data.error(data.key("attention.key_length"), problem)
    else:
        rope = data.size("rope.dimension_count")
    form = "_mla" if data.maybe("attention.key_length_mla") else ""
    unfolded = [data.maybe(f"attention.{vector}_length{form}") for vector in ("key", "value")]
    selected = data.maybe("attention.indexer.top_k")
    return lambda index: LatentAttention(
        queries[index],
        rank,
        rope,
        selected=selected,
        unfolded=sum(length or 0 for length in unfolded) if all(unfolded) else None,
    )


def _with_indexer(
    data: Metadata,
    count: int,
    attends: Callable[[int], Layer],
    tensors: Collection[str],
) -> Callable[[int], Layer]:
    """Beside the attention an indexer's keys, in the layers that have an indexer of their own."""
    keys = data.maybe("attention.indexer.key_length")
    if keys is None:
        return attends
    own = data.each("attention.indexer.types", count)
    name = data.entry.get("indexer_tensor")

    def one(index: int) -> Layer:
        has = own is None or index >= count or own[index] > 0
        if name is not None:
            has = f"blk.{index}.{name}" in tensors
        return Combined((attends(index), Indexer(keys))) if has else attends(index)

    return one


def _with_states(
    data: Metadata, count: int, blocks: int, attends: Callable[[int], Layer]
) -> Callable[[int], Layer]:
    """The layers that have a state in place of attention, or beside it."""
    kind = data.entry.get("state")
    if kind is None:
        return attends
    state = read_state(data)
    if kind == "beside":
        return lambda index: Combined((attends(index), state))
    recurrent = _recurrent(data, kind, count, blocks)
    return lambda index: state if index in recurrent else attends(index)


def _recurrent(data: Metadata, kind: str, count: int, blocks: int) -> set[int]:
    if kind == "interval":
        given = data.each("attention.recurrent_layers", count)
        if given is not None:
            return {index for index, one in enumerate(given) if one}
        period = data.maybe("full_attention_interval") or int(data.entry["interval"])
        return {index for index in range(count) if (index + 1) % period}
    keys = data.each("attention.head_count_kv", blocks)
    if keys is None:
        raise data.error(data.key("attention.head_count_kv"), "is missing")
    widths = data.each("feed_forward_length", blocks) or [0] * blocks
    mlps = kind == "no_kv_heads_no_mlp"
    return {i for i in range(count) if not keys[i] and not (mlps and widths[i])}


def _compressed(data: Metadata, blocks: int) -> Callable[[int], Layer]:
    """DeepSeek-V4: the ratio by which each layer compresses what lies before its window."""
    from kvhouse.spec.config import Config
    from kvhouse.spec.pattern_rules import CSA, HCA, SLIDING
    from kvhouse.spec.plain_models import one_layer

    ratios = data.each("attention.compress_ratios", blocks)
    kinds = {0: SLIDING, 4: CSA, 128: HCA}
    if ratios is None or set(ratios) - kinds.keys():
        key = data.key("attention.compress_ratios")
        raise data.error(key, f"is {show(ratios)}, not 0, 4 or 128 for each layer")
    fields = {
        "num_attention_heads": data.size("attention.head_count"),
        "head_dim": data.size("attention.key_length"),
        "sliding_window": data.size("attention.sliding_window"),
        "index_head_dim": data.size("attention.indexer.key_length"),
        "compress_rates": {CSA: 4, HCA: 128},
    }
    config = Config(fields, data.where, "deepseek_v4")
    return lambda index: one_layer(config, index, kinds[ratios[index]])
