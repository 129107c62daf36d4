"""How quantised checkpoints pack weights into integers, from a config's ``quantization_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvhouse.spec.fields import show


@dataclass(frozen=True, slots=True)
class Packing:
    """How many weights one element of a quantised tensor holds.

    Attributes:
        quantised: Whether any weights are quantised, so that scales may lie beside them.
        bits: By how the last part of a name ends, bits of one weight in integers of that name.
        unknown: Why the weights cannot be told; empty where they can.
    """

    quantised: bool
    bits: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


def packing_of(quantization: Mapping[str, object] | None) -> Packing:
    """How weights are packed, from a config's ``quantization_config``; None for none."""
    if quantization is None:
        return Packing(quantised=False)
    method = quantization.get("quant_method")
    if method in ("awq", "gptq", "gptqmodel", "auto-round", "intel/auto-round"):
        return _integers(method, "qweight", quantization.get("bits", quantization.get("w_bit")))
    if method in ("fp8", "fbgemm_fp8"):
        return Packing(quantised=True)
    if method == "mxfp4":
        return Packing(True, {"_blocks": 4})
    if method == "bitsandbytes":
        return Packing(True, {"weight": 4 if quantization.get("load_in_4bit") else 8})
    if (algorithm := quantization.get("quant_algo")) is not None:  # ModelOpt
        return Packing(True, {"weight": 4} if _packs(algorithm) else {})
    if method in ("compressed-tensors", "modelopt"):
        packed = "weight" if method == "modelopt" else "weight_packed"
        return _integers(method, packed, _bits_of_groups(quantization.get("config_groups")))
    return Packing(True, unknown=f"quantisation method {show(method)} is not known")


def _packs(algorithm: object) -> bool:
    """Whether ModelOpt packs two weights in a byte, in all layers or in some."""
    return isinstance(algorithm, str) and ("4" in algorithm or algorithm == "MIXED_PRECISION")


def _integers(method: object, name: str, bits: object) -> Packing:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        return Packing(True, unknown=f"of quantisation {show(method)} the bits are {show(bits)}")
    return Packing(True, {name: bits})


def _bits_of_groups(groups: object) -> object:
    """The bits of a weight, if they are the same in all groups of layers; else what there is."""
    found: list[object] = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if bits not in found:
            found.append(bits)
    return found[0] if len(found) == 1 else found
