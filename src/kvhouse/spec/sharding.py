"""What one rank of several keeps: tensor parallelism within layers, pipeline stages of layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec.experts import Experts
from kvhouse.spec.layers import (
    Combined,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SharedKV,
    State,
    WithoutKV,
    describe,
)
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import (
    CompressedEntries,
    PendingTokens,
    PreviousGroup,
    SharedVector,
)
from kvhouse.spec.tensors import Convolution, Tensor

#: Kinds that hold one vector for all heads together, so every rank has all of it.
_REPLICATED = (
    Indexer,
    CompressedEntries,
    PendingTokens,
    PreviousGroup,
    SharedKV,
    WithoutKV,
)


def shard(spec: ModelSpec, tp: int = 1, pp: int = 1, stage: int = 0) -> ModelSpec:
    """The part of a model that one rank keeps.

    Tensor parallelism gives each rank ``query_heads / tp`` query heads and
    ``max(1, kv_heads / tp)`` KV heads (vLLM, ``ModelConfig.get_num_kv_heads``; SGLang alike), its
    share of recurrent states and convolutions (vLLM, ``mamba_utils.py``), and a full copy of MLA
    latents and indexer keys. Pipeline stages are contiguous, of the sizes of ``stage_sizes``.

    Weights are an estimate, and ``weights_basis`` says so: every weight is divided by ``tp`` and by
    the share of layers, rounded up; experts are cut like other matrices. Norms and other parts that
    each rank has whole are not counted twice. The output projection and the prediction layers are
    on the last stage. ``weights_unknown`` stays as it is.

    Args:
        spec: The whole model.
        tp: Ranks that share each layer.
        pp: Stages that the layers are dealt out to.
        stage: The rank's stage, from 0.

    Raises:
        KvhouseError: ``tp``, ``pp`` or ``stage`` is out of range.
        UnsupportedModel: Heads or channels do not divide, or a kind of layer cannot be cut.
    """
    if tp < 1:
        raise KvhouseError(f"tensor parallel size {tp}: at least 1")
    start, end = stage_bounds(len(spec.layers), pp, stage)
    if tp == pp == 1:
        return spec
    if pp > 1 and any(isinstance(layer, SharedKV) for layer in spec.layers):
        raise UnsupportedModel(
            f"{spec.name}: pipeline stages are not supported: some layers read the KV of an "
            "earlier layer, which may lie on another stage"
        )
    layers = tuple(_cut(spec.name, layer, tp) for layer in spec.layers[start:end])

    last = end == len(spec.layers)
    mtp = tuple(_cut(spec.name, layer, tp) for layer in spec.mtp_layers) if last else ()
    part = _Share(len(layers), tp * len(spec.layers))
    vocab = -(-spec.vocab_size // tp) if last else 0
    whole = replace(spec, layers=layers, vocab_size=vocab, mtp_layers=mtp)
    return _weights(spec, whole, part, tuple(_experts(spec, start, end, tp)))


@dataclass(frozen=True, slots=True)
class _Share:
    """What a rank has of weights that are divided alike: a fraction."""

    part: int
    whole: int

    def of(self, count: int) -> int:
        return -(-count * self.part // self.whole)


def _experts(spec: ModelSpec, start: int, end: int, tp: int) -> Iterator[Experts]:
    """The experts of a stage: layers that have them are taken to be spread evenly."""
    for group in spec.experts:
        first, after = (group.layers * edge // len(spec.layers) for edge in (start, end))
        if after > first:
            each = -(-group.parameters_each // tp)
            yield replace(group, layers=after - first, parameters_each=each)


def _weights(
    spec: ModelSpec, rank: ModelSpec, share: _Share, experts: tuple[Experts, ...]
) -> ModelSpec:
    """The rank with its share of the weights, where they are known."""
    stored = spec.stored_weight_bytes
    rank = replace(
        rank,
        stored_weight_bytes=None if stored is None else share.of(stored),
        mixer_parameters=share.of(spec.mixer_parameters),
        experts=experts,
    )
    if spec.parameters is None or spec.matmul_parameters is None:
        return rank
    head = spec.vocab_size * spec.hidden_size
    active = sum(group.active_parameters for group in spec.experts)
    matrices = spec.matmul_parameters - head - active
    others = spec.parameters - matrices - sum(group.parameters for group in spec.experts)
    dense = share.of(matrices)
    used = sum(group.active_parameters for group in experts)
    return replace(
        rank,
        parameters=dense + share.of(others) + sum(group.parameters for group in experts),
        matmul_parameters=dense + used + rank.vocab_size * spec.hidden_size,
        weights_basis="estimated",
        weights_note="a rank's share: every weight is divided alike, those that each has included",
    )


def stage_sizes(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, as vLLM deals them out (``get_pp_indices``).

    Every stage has ``layers // pp``; what is left over goes one each to the stages before the
    last, from the back.

    Raises:
        KvhouseError: Fewer layers than stages, or no stage.
    """
    if not 1 <= pp <= max(1, layers):
        raise KvhouseError(f"pipeline parallel size {pp}: 1 to {layers}, the number of layers")
    each, rest = divmod(layers, pp)
    extra = range(pp - 1 - rest, pp - 1)
    return tuple(each + (index in extra) for index in range(pp))


def stage_bounds(layers: int, pp: int, stage: int) -> tuple[int, int]:
    """First layer of a stage, and the first after it.

    Raises:
        KvhouseError: There is no such stage.
    """
    sizes = stage_sizes(layers, pp)
    if not 0 <= stage < pp:
        raise KvhouseError(f"pipeline stage {stage}: 0 to {pp - 1}")
    start = sum(sizes[:stage])
    return start, start + sizes[stage]


def _cut(name: str, layer: Layer, tp: int) -> Layer:
    """One rank's part of a layer."""
    if isinstance(layer, Combined):
        return Combined(tuple(_cut(name, part, tp) for part in layer.members))
    if isinstance(layer, FullAttention):
        query = _divided(name, layer, "query heads", layer.query_heads, tp)
        return replace(layer, query_heads=query, kv_heads=_kv_heads(name, layer, tp))
    if isinstance(layer, LatentAttention | SharedVector):
        return replace(layer, query_heads=_divided(name, layer, "heads", layer.query_heads, tp))
    if isinstance(layer, State):
        return replace(layer, tensors=tuple(_piece(name, one, tp) for one in layer.tensors))
    if tp == 1 or isinstance(layer, _REPLICATED):
        return layer
    raise UnsupportedModel(
        f"{name}: tensor parallelism is not supported: a layer of kind {describe(layer)!r} "
        "cannot be cut"
    )


def _kv_heads(name: str, layer: FullAttention, tp: int) -> int:
    """KV heads of a rank; where there are fewer than ranks, each is copied."""
    if layer.kv_heads >= tp:
        return _divided(name, layer, "KV heads", layer.kv_heads, tp)
    if tp % layer.kv_heads:
        raise UnsupportedModel(
            f"{name}: {layer.kind}: {tp} ranks are not a multiple of {layer.kv_heads} KV heads"
        )
    return 1


def _divided(name: str, layer: Layer, what: str, count: int, tp: int) -> int:
    if count % tp:
        raise UnsupportedModel(f"{name}: {layer.kind}: {count} {what} do not divide by {tp} ranks")
    return count // tp


def _piece(name: str, tensor: Tensor | Convolution, tp: int) -> Tensor | Convolution:
    """One rank's part of a state."""
    if tp == 1:
        return tensor
    if tensor.units is None:
        raise UnsupportedModel(f"{name}: it is not known how ranks share out its states")
    if tensor.units % tp:
        raise UnsupportedModel(
            f"{name}: a state of {tensor.units} heads or channels does not divide by {tp} ranks"
        )
    units = tensor.units // tp
    if isinstance(tensor, Tensor):
        return replace(tensor, elements=tensor.elements // tp, units=units)
    groups = _groups(name, tensor.groups, tp)
    own = tensor.channels - tensor.groups * tensor.group_channels
    channels = own // tp + groups * tensor.group_channels
    return replace(tensor, channels=channels, units=units, groups=groups)


def _groups(name: str, groups: int, tp: int) -> int:
    """Mamba 2's groups on one rank; a single group is copied (vLLM, ``mamba_mixer2.py``)."""
    if groups % tp == 0:
        return groups // tp
    if groups == 1:
        return 1
    raise UnsupportedModel(f"{name}: {groups} state groups do not divide by {tp} ranks")
