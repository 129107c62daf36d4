"""The weights of a model from the tensor directory of its GGUF files.

Every byte that the files store is counted, once. Which weights a token is multiplied with follows
from the tensors' names, which are llama.cpp's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvhouse.errors import SpecError
from kvhouse.spec.experts import Experts
from kvhouse.spec.gguf_header import Tensor
from kvhouse.spec.gguf_metadata import Metadata

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
#: Tables that are looked up, not multiplied with.
_TABLES = (EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
#: Parts of a layer with two axes that are multiplied element by element.
_ELEMENTWISE = ("ssm_a", "ssm_d", "ssm_conv1d", "shortconv.conv", "time_mix_lerp", "time_mix_first")
#: How the names of tensors that hold all experts of a layer go on after the layer.
_EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps")


@dataclass(frozen=True, slots=True)
class Weights:
    """What the files hold.

    Attributes:
        parameters: Every weight, those of prediction layers included.
        matmul_parameters: Those that one token is multiplied with, as in ``ModelSpec``.
        stored: Bytes of all of them.
        further: Bytes of them that lie in layers which predict further tokens.
        experts: The routed experts.
        dtype: The float type of most weights, or the one that quantised blocks are widened to.
    """

    parameters: int
    matmul_parameters: int
    stored: int
    further: int
    experts: tuple[Experts, ...]
    dtype: str


def read_weights(data: Metadata, tensors: Mapping[str, Tensor], blocks: int) -> Weights:
    """Count the weights of a model with ``blocks`` layers apart from those for prediction.

    Raises:
        SpecError: The tensors contradict the metadata.
    """
    weights = [tensor for tensor in tensors.values() if not _is_rope_table(tensor)]
    used = data.each("expert_used_count", blocks) or [0] * blocks
    matmul, groups, further = 0, Counter[tuple[int, int, int]](), 0
    for layer, own in _by_layer(weights).items():
        if layer is not None and layer >= blocks:
            further += sum(tensor.bytes for tensor in own)
            continue
        routed = [tensor for tensor in own if _part(tensor) in _EXPERTS]
        matmul += sum(tensor.elements for tensor in own if _is_matrix(tensor))
        if routed and layer is not None:
            group = _group(data, routed, used[layer])
            matmul += group[1] * group[2]
            groups[group] += 1
    if _HEAD not in tensors:
        matmul += tensors[EMBEDDING].elements
    return Weights(
        parameters=sum(tensor.elements for tensor in weights),
        matmul_parameters=matmul,
        stored=sum(tensor.bytes for tensor in weights),
        further=further,
        experts=tuple(Experts(count, *group) for group, count in groups.items()),
        dtype=_dtype(weights),
    )


def _by_layer(weights: list[Tensor]) -> dict[int | None, list[Tensor]]:
    found: dict[int | None, list[Tensor]] = {}
    for tensor in weights:
        parts = tensor.name.split(".", 2)
        numbered = len(parts) == 3 and parts[0] == "blk" and len(parts[1]) < 8
        layer = int(parts[1]) if numbered and parts[1].isdecimal() else None
        found.setdefault(layer, []).append(tensor)
    return found


def _part(tensor: Tensor) -> str:
    """The name of a layer's tensor without the layer and without ``.weight``."""
    return tensor.name.split(".", 2)[-1].removesuffix(".weight")


def _is_matrix(tensor: Tensor) -> bool:
    part = _part(tensor)
    return (
        len(tensor.shape) > 1
        and tensor.name not in _TABLES
        and part not in _EXPERTS
        and not part.startswith(_ELEMENTWISE)
        and not tensor.name.endswith(".bias")
    )


def _group(data: Metadata, routed: list[Tensor], used: int) -> tuple[int, int, int]:
    """Experts in one layer, those that a token is sent to, and the weights of one."""
    counts = {tensor.shape[-1] for tensor in routed}
    if len(counts) != 1 or not 0 < used <= (count := counts.pop()):
        raise SpecError(
            f"{data.where}: contradicts itself: tensor {routed[0].name!r} has shape "
            f"{routed[0].shape}, and a token is sent to {used} experts"
        )
    return count, used, sum(tensor.elements for tensor in routed) // count


def _is_rope_table(tensor: Tensor) -> bool:
    """Whether a tensor holds rotary frequencies: constants of the position, not weights."""
    return "rope_freqs." in tensor.name or "rope_factors_" in tensor.name


def _dtype(weights: list[Tensor]) -> str:
    elements: Counter[str] = Counter()
    for tensor in weights:
        elements[tensor.type] += tensor.elements
    return _FLOATS.get(elements.most_common(1)[0][0], "float16")
