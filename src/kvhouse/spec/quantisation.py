"""How a checkpoint's weights are quantised, as its config or the file beside it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvhouse.spec.fields import Fields, show
from kvhouse.spec.weight_formats import Storage, WeightFormat, weight_format

_MOST_GROUP = 2**20
#: Formats of NVIDIA's Model Optimizer, by its names.
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
    "INT8_SQ": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
_NAMES = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")


def read_storage(stated: Mapping[str, object], where: str, dtype: str) -> Storage | str:
    """The formats of a quantised checkpoint, or why they are not known.

    Args:
        stated: The value of ``quantization_config``, or the content of ``hf_quant_config.json``.
        where: Its place, for messages.
        dtype: The dtype of what is not quantised.

    Raises:
        SpecError: A field in it is malformed.
    """
    inner = stated.get("quantization")
    values = inner if isinstance(inner, dict) else stated
    fields, plain = Fields(values, where), weight_format(dtype)
    parts = _mixed(fields) or _uniform(fields)
    if isinstance(parts, str):
        return parts
    mixers, matrices, experts = (part or plain for part in parts)
    return _with_exceptions(values, Storage(mixers, matrices, experts, plain))


_Parts = tuple[WeightFormat | None, WeightFormat | None, WeightFormat | None]


def _uniform(fields: Fields) -> _Parts | str:
    """One format for mixers, other matrices and experts."""
    method = (fields.text("quant_method") or "").lower()
    algorithm = fields.text("quant_algo") or fields.text("moe_quant_algo")
    if algorithm is not None:
        name = _MODELOPT.get(algorithm.upper())
        chosen = weight_format(name) if name else None
    elif method == "mxfp4":  # gpt-oss: the experts alone
        return None, None, weight_format("mxfp4")
    elif method in ("fp8", "fbgemm_fp8"):
        chosen = _fp8(fields)
    elif method in ("awq", "gptq", "auto-round", "auto-gptq"):
        bits = fields.optional_integer("bits", 8) or fields.optional_integer("w_bit", 8)
        chosen = _integer(bits or 4, _group(fields, "group_size", "q_group_size"), zero=True)
    elif method == "bitsandbytes":
        chosen = _bitsandbytes(fields)
    else:
        chosen = None
    if chosen is None:
        name = algorithm or method
        how = f"by {show(name)}, which is not known here" if name else "in a way it does not name"
        return f"its weights are quantised {how} ({fields.where})"
    return chosen, chosen, chosen


def _fp8(fields: Fields) -> WeightFormat:
    block = fields._find("weight_block_size")[1]
    if isinstance(block, list) and len(block) == 2 and all(_is_size(side) for side in block):
        return weight_format("fp8-block").grouped(block[0] * block[1])
    return weight_format("fp8")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 < value <= _MOST_GROUP


def _group(fields: Fields, *names: str) -> int | None:
    """Weights per scale; None for a row or a tensor, which some write as -1."""
    for name in names:
        value = fields._find(name)[1]
        if _is_size(value) and isinstance(value, int):
            return value
    return None


def _integer(bits: int, group: int | None, zero: bool) -> WeightFormat:
    """Whole numbers of ``bits`` bits with a float16 scale, and a zero point if there is one."""
    name = f"int{bits}"
    return WeightFormat(name, bits, group, 16 + (bits if zero else 0))


def _bitsandbytes(fields: Fields) -> WeightFormat:
    if not fields.flag("load_in_4bit", False):
        return weight_format("int8")
    four = weight_format("nf4")
    if not fields.flag("bnb_4bit_use_double_quant", False):
        return four
    # QLoRA (arXiv 2305.14314): scales of 8 bits, and a float32 for each 256 of them.
    return replace(four, group=64 * 256, scale_bits=8 * 256 + 32)


def _mixed(fields: Fields) -> _Parts | str | None:
    """Formats by layer, or by group of layers; None where nothing of the kind is stated."""
    by_part: dict[str, Counter[WeightFormat]] = {}
    layers = fields._find("quantized_layers")[1]
    groups = fields._find("config_groups")[1]
    if isinstance(layers, dict):
        for name, value in layers.items():
            algorithm = value.get("quant_algo") if isinstance(value, dict) else None
            chosen = _MODELOPT.get(str(algorithm).upper())
            if chosen is None:
                return f"its weights are quantised by {show(algorithm)}, which is not known here"
            by_part.setdefault(_part(str(name)), Counter())[weight_format(chosen)] += 1
    elif isinstance(groups, dict):
        for group in groups.values():
            if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
                continue
            chosen_format = _compressed(Fields(group["weights"], fields.where))
            if chosen_format is None:
                return f"its weights are quantised by {show(group['weights'])}, not known here"
            for target in _texts(group.get("targets")) or ["Linear"]:
                for part in ("mixer", "mlp", "expert") if target == "Linear" else (_part(target),):
                    by_part.setdefault(part, Counter())[chosen_format] += 1
    if not by_part:
        return None
    usual = {part: counts.most_common(1)[0][0] for part, counts in by_part.items()}
    return usual.get("mixer"), usual.get("mlp"), usual.get("expert")


def _compressed(weights: Fields) -> WeightFormat | None:
    """Weights of a group as compressed-tensors and Model Optimizer describe them."""
    bits, group = weights.optional_integer("num_bits", 16), _group(weights, "group_size")
    kind = weights.text("type") or "int"
    if kind == "int" and bits in (2, 3, 4, 8):
        return _integer(bits, group, zero=weights._find("symmetric")[1] is False)
    if kind != "float" or bits not in (4, 8):
        return None
    if bits == 8:
        block = weights._find("block_structure")[1]
        if isinstance(block, list) and len(block) == 2 and all(_is_size(side) for side in block):
            return weight_format("fp8-block").grouped(block[0] * block[1])
        return weight_format("mxfp8") if group == 32 else weight_format("fp8")
    return weight_format("mxfp4" if group == 32 else "nvfp4").grouped(group or 16)


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _part(name: str) -> str:
    """Which part of a layer a module is, by its name."""
    if "expert" in name and "shared_expert" not in name:
        return "expert"
    return "mixer" if "attn" in name or ".mixer." in name else "mlp"


def _with_exceptions(values: Mapping[str, object], storage: Storage) -> Storage:
    """Parts that are left alone in most layers, by the names that the config excepts."""
    names = [name for key in _NAMES for name in _texts(values.get(key))]
    layers = _layers_named(names, "")
    mixers = [name for name in names if "attn" in name and not _is_small(name)]
    shared = [name for name in names if "shared_expert" in name or "shared_mlp" in name]
    if _most(mixers, layers):
        storage = replace(storage, mixers=storage.rest)
    if _most(shared, layers) and storage.experts != storage.rest:
        storage = replace(storage, matrices=storage.rest)
    return storage


def _is_small(name: str) -> bool:
    """Modules of attention beside the large projections."""
    return any(part in name for part in ("norm", "indexer", "rotary", "kv_a_proj", "kv_b_proj"))


def _most(names: list[str], layers: set[str]) -> bool:
    """Whether names stand for most layers: through a wildcard, or one by one."""
    if any(".*" in name.split("attn")[0] or name.startswith(("*", "re:")) for name in names):
        return True
    return len(names) > 1 and 2 * len(_layers_named(names, "")) >= len(layers)


def _layers_named(names: Iterable[str], _: str) -> set[str]:
    return {part for name in names for part in name.split(".") if part.rstrip("*").isdigit()}
