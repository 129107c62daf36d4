"""Formats of weights: bytes of a matrix as it is stored, scales included.

The plain dtypes store every weight of a model. The others are quantised: they store the matrices of
the layers, while embedding tables, the output projection, norms and biases keep the dtype that the
model is published in, as the usual tools leave them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvhouse.errors import SpecError

#: Bytes of one weight, by the name that configs use for its dtype.
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights of a matrix are stored.

    Attributes:
        name: As a user names it.
        bits: Bits of one weight.
        group: Weights that share one scale; None where a scale serves a whole row or tensor, which
            is left out: it adds less than one part in a thousand.
        scale_bits: Bits beside each group: its scale, and its zero point if it has one.
        quantised: Whether only the matrices of the layers have this format.
        arithmetic: The dtype that matrices of it are multiplied in where a device can, by the name
            that devices have for it; None for the dtype that the model computes in.
        note: Where the figures come from, and what they leave out.
    """

    name: str
    bits: int
    group: int | None = None
    scale_bits: int = 0
    quantised: bool = True
    arithmetic: str | None = None
    note: str = ""

    def bytes(self, weights: int) -> int:
        """Bytes of ``weights`` weights, rounded up; every group is taken as full."""
        bits = weights * self.bits
        if self.group:
            bits += -(-weights // self.group) * self.scale_bits
        return -(-bits // 8)

    def grouped(self, group: int | None) -> WeightFormat:
        """The same with groups of another size; None for one scale per row or tensor."""
        return replace(self, group=group)


_ROWS = "scales per tensor or per row are not counted: below 0.1 %"

_FORMATS = (
    *(WeightFormat(name, 8 * size, quantised=False) for name, size in DTYPE_BYTES.items()),
    WeightFormat("fp8", 8, arithmetic="float8", note=_ROWS),
    # DeepSeek-V3 (arXiv 2412.19437): a float32 scale for each block of 128 by 128.
    WeightFormat(
        "fp8-block",
        8,
        128 * 128,
        32,
        arithmetic="float8",
        note="blocks of 128 × 128, float32 scales",
    ),
    WeightFormat("int8", 8, arithmetic="int8", note=_ROWS),
    # GPTQ and AWQ as their tools write them: groups of 128, a float16 scale, a 4-bit zero point.
    WeightFormat("int4", 4, 128, 20, note="groups of 128, float16 scales and 4-bit zero points"),
    # OCP Microscaling Formats specification 1.0: blocks of 32 with an 8-bit scale.
    WeightFormat("mxfp4", 4, 32, 8, note="blocks of 32, 8-bit scales"),
    WeightFormat("mxfp8", 8, 32, 8, arithmetic="float8", note="blocks of 32, 8-bit scales"),
    # NVFP4: blocks of 16 with an fp8 scale; one float32 per tensor is not counted.
    WeightFormat("nvfp4", 4, 16, 8, arithmetic="float4", note="blocks of 16, fp8 scales"),
    # bitsandbytes NF4 with double quantisation off: blocks of 64 with a float32 maximum.
    WeightFormat("nf4", 4, 64, 32, note="blocks of 64, float32 scales"),
)

#: Every format of weights, by name.
WEIGHT_FORMATS = {weight_format.name: weight_format for weight_format in _FORMATS}


def weight_format(name: str) -> WeightFormat:
    """The format of that name.

    Raises:
        SpecError: There is none; the message lists those there are.
    """
    if name not in WEIGHT_FORMATS:
        known = ", ".join(WEIGHT_FORMATS)
        raise SpecError(f"unknown weight dtype {name!r}: choose one of {known}")
    return WEIGHT_FORMATS[name]


@dataclass(frozen=True, slots=True)
class Storage:
    """How a quantised checkpoint stores its parts.

    Attributes:
        mixers: Matrices of attention, or of whatever mixes tokens in its place.
        matrices: Other matrices of the layers that every token passes through.
        experts: Matrices of routed experts.
        rest: Everything else: tables, output projection, norms, biases.
    """

    mixers: WeightFormat
    matrices: WeightFormat
    experts: WeightFormat
    rest: WeightFormat

    @classmethod
    def of(cls, name: str, published: str) -> Storage:
        """All weights in the format ``name``, of a model published in the dtype ``published``."""
        chosen = weight_format(name)
        rest = weight_format(published) if chosen.quantised else chosen
        return cls(chosen, chosen, chosen, rest)

    @property
    def name(self) -> str:
        """The formats in words."""
        return ", ".join(dict.fromkeys(part.name for part in self._parts))

    @property
    def quantised(self) -> bool:
        """Whether any part is."""
        return any(part.quantised for part in self._parts)

    @property
    def _parts(self) -> tuple[WeightFormat, ...]:
        return self.mixers, self.matrices, self.experts, self.rest
