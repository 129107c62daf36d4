"""Reader of GGUF files: from the headers to a ``ModelSpec``, or a refusal.

Sizes come from the metadata and are checked against the shapes of the tensors, so that neither
can mislead alone. Weights are counted from the tensors themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec.config import MOST_TOKENS
from kvhouse.spec.fields import Fields, show, show_path
from kvhouse.spec.gguf_header import Header, Tensor, read_header
from kvhouse.spec.gguf_layers import read_layers
from kvhouse.spec.gguf_metadata import Metadata, architectures
from kvhouse.spec.gguf_weights import EMBEDDING, read_weights
from kvhouse.spec.layers import FullAttention, LatentAttention, Layer, SlidingAttention
from kvhouse.spec.model import NO_LIMIT, ModelSpec

_HEAD = "output.weight"
#: More files than any model is split into.
MOST_PARTS = 2**10
#: How llama.cpp names the files of a split model.
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def read_gguf(path: Path, name: str) -> ModelSpec:
    """Read one GGUF file, or all files of a split model by any one of them; their headers only.

    Args:
        path: The file. The other files of a split model lie beside it, named as llama.cpp names
            them: ``STEM-00001-of-00003.gguf``.
        name: What the user calls the model.

    Raises:
        SpecError: A file is missing, damaged or contradicts itself.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    header = read_header(path)
    count = parts_of(header, show_path(path))
    if count == 1:
        return gguf_spec(header, name, show_path(path))
    headers = []
    for part in part_names(path.name, count, show_path(path)):
        beside = path.with_name(part)
        if not beside.exists():
            raise SpecError(f"{show_path(beside)}: this part of a split model is missing")
        headers.append(read_header(beside))
    return gguf_spec(joined(headers, show_path(path)), name, show_path(path))


def parts_of(header: Header, where: str) -> int:
    """In how many files the model is.

    Raises:
        SpecError: The number is impossible.
    """
    return Fields(header.metadata, where).optional_integer("split.count", MOST_PARTS, least=0) or 1


def part_names(name: str, count: int, where: str) -> list[str]:
    """The names of all files of a split model, from the name of one of them.

    Raises:
        SpecError: The name is not that of a part, so the others cannot be found.
    """
    match = _PART.fullmatch(name)
    if match is None or int(match["count"]) != count:
        raise SpecError(
            f"{where}: one of {count} files of a split model, but not named as such: the others "
            f"are looked for by names like STEM-00001-of-{count:05}.gguf"
        )
    return [f"{match['stem']}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]


def whole_models(names: list[str]) -> list[str]:
    """Of the names of files those of models, a split one by its first part, without projectors."""
    models = [name for name in names if name.lower().endswith(".gguf")]
    parts = {name: _PART.fullmatch(name) for name in models}
    return [
        name
        for name, part in parts.items()
        if (part is None or int(part["number"]) == 1) and not name.startswith("mmproj")
    ]


def joined(headers: list[Header], where: str) -> Header:
    """One header from those of all parts; the metadata is that of the first.

    Raises:
        SpecError: The parts do not belong together.
    """
    tensors: dict[str, Tensor] = {}
    for number, header in enumerate(headers):
        fields = Fields(header.metadata, f"{where}, part {number + 1}")
        if parts_of(header, fields.where) != len(headers):
            raise fields.error("split.count", f"is not {len(headers)}, as in the other parts")
        if (fields.optional_integer("split.no", MOST_PARTS, least=0) or 0) != number:
            raise fields.error("split.no", f"is not {number}, as the file's name says")
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise SpecError(f"{fields.where}: tensor {show(min(twice))} is in another part too")
        tensors |= header.tensors
    stated = Fields(headers[0].metadata, where).optional_integer("split.tensors.count", 2**32)
    if stated is not None and stated != len(tensors):
        raise SpecError(f"{where}: the parts hold {len(tensors)} tensors of {stated}")
    return Header(headers[0].metadata, tensors)


def gguf_spec(header: Header, name: str, where: str) -> ModelSpec:
    """What a model keeps, from a whole model's header; ``where`` names its source in messages.

    Raises:
        SpecError: The header contradicts itself.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    fields = Fields(header.metadata, where)
    data = Metadata(header.metadata, where, _architecture(fields))
    if not data.flag(data.key("attention.causal"), True):
        raise UnsupportedModel(f"{where}: not supported: an encoder, which keeps no KV")
    hidden = data.size("embedding_length")
    layers, further = read_layers(data, header.tensors)
    blocks = len(layers) // (data.maybe("num_loops") or 1)
    _check_layers(header.tensors, data, _stored_once(data, [*layers[:blocks], *further]))
    vocab = _vocabulary(header.tensors, where, hidden)
    weights = read_weights(data, header.tensors, blocks)
    limit = data.size("context_length", MOST_TOKENS)
    note = f"{weights.further:,} bytes of it in layers that predict further tokens"
    return ModelSpec(
        name=name,
        architecture=_class(data),
        layers=tuple(_without_idle_window(layer, limit) for layer in layers),
        hidden_size=hidden,
        vocab_size=vocab,
        max_length=NO_LIMIT if data.entry.get("no_limit") else limit,
        parameters=weights.parameters,
        matmul_parameters=weights.matmul_parameters,
        dtype=weights.dtype,
        stored_weight_bytes=weights.stored,
        weights_basis="stored",
        weights_note=note if weights.further else "",
        experts=weights.experts,
        mtp_layers=tuple(further),
    )


def _architecture(fields: Fields) -> str:
    architecture = fields.text("general.architecture")
    if architecture is None:
        raise fields.error("general.architecture", "is missing")
    entry = architectures().get(architecture)
    if entry is None:
        raise UnsupportedModel(
            f"{fields.where}: GGUF architecture {show(architecture)} is not supported: nothing is "
            "known of how its layers keep keys and values"
        )
    kind = fields.text("general.type")
    if kind not in (None, "model"):
        raise UnsupportedModel(f"{fields.where}: holds {show(kind)}, not a whole model")
    if "refused" in entry:
        raise UnsupportedModel(
            f"{fields.where}: GGUF architecture {architecture!r} is not supported: "
            f"{entry['refused']}"
        )
    return architecture


def _class(data: Metadata) -> str:
    """The class that runs the model in transformers."""
    mixture = data.maybe("expert_count") and data.entry.get("experts_class")
    return str(mixture or data.entry["class"])


def _without_idle_window(layer: Layer, longest: int) -> Layer:
    """Full attention in place of a window that is longer than any context."""
    if type(layer) is SlidingAttention and layer.window > longest:
        return FullAttention(layer.query_heads, layer.kv_heads, layer.key_dim, layer.value_dim)
    return layer


def _stored_once(data: Metadata, layers: list[Layer]) -> list[Layer]:
    """The layers whose weights are in the file: of two stacks that run in loops, each once."""
    stack = data.maybe("hrm.layers_per_stack")
    return layers[: 2 * stack] if stack else layers


def _check_layers(tensors: Mapping[str, Tensor], data: Metadata, layers: list[Layer]) -> None:
    """Check the matrices of each layer against the sizes in the metadata."""
    last = f"blk.{len(layers) - 1}."
    if not any(name.startswith(last) for name in tensors):
        raise SpecError(
            f"{data.where}: contradicts itself: by the metadata there are {len(layers)} layers, "
            "but there is no tensor of the last one"
        )
    for index, layer in enumerate(layers):
        for part in layer.parts:
            wanted = _wanted_rows(part, bool(data.entry.get("keys_as_values")))
            if not wanted:
                continue
            found = {
                name: _rows(tensors[f"blk.{index}.{name}.weight"])
                for name in dict.fromkeys(name for names in wanted for name in names)
                if f"blk.{index}.{name}.weight" in tensors
            }
            if found not in wanted:
                raise SpecError(
                    f"{data.where}: contradicts itself: of layer {index} the attention matrices "
                    f"have {_named(found)}; by the metadata there are {len(layers)} layers with "
                    f"{_named(wanted[0])}"
                )


def _wanted_rows(layer: Layer, keys_as_values: bool) -> list[dict[str, int]]:
    """By name the rows of the matrices that make what is kept, in each way they may be stored."""
    if isinstance(layer, LatentAttention):
        return [{"attn_kv_a_mqa": layer.rank + layer.rope_dim}]
    if not isinstance(layer, FullAttention):
        return []
    key, value = layer.kv_heads * layer.key_dim, layer.kv_heads * layer.value_dim
    apart = [{"attn_k": key, "attn_v": value}]
    if keys_as_values:
        apart.append({"attn_k": key})
    # Some models make a gate beside each query.
    query = layer.query_heads * layer.key_dim
    return [*apart, {"attn_qkv": query + key + value}, {"attn_qkv": 2 * query + key + value}]


def _rows(tensor: Tensor) -> int:
    return tensor.elements // tensor.shape[0]


def _named(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count} rows ({name})" for name, count in rows.items()) or "0 rows"


def _vocabulary(tensors: Mapping[str, Tensor], where: str, hidden: int) -> int:
    embedding = tensors.get(EMBEDDING)
    if embedding is None:
        raise SpecError(f"{where}: tensor {EMBEDDING!r} is missing")
    for tensor in (embedding, tensors.get(_HEAD, embedding)):
        if tensor.shape != (hidden, *embedding.shape[1:]) or len(tensor.shape) != 2:
            raise SpecError(
                f"{where}: contradicts itself: tensor {tensor.name!r} has shape "
                f"{tensor.shape}, the hidden size is {hidden}"
            )
    return embedding.shape[1]
