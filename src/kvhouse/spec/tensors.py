"""Tensors of fixed size that a layer keeps of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Bytes of one element of a tensor that is not in the KV format, by the dtype's usual name.
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of fixed size; ``dtype`` None stands for the dtype that the model computes in.

    ``units`` is the number of equal pieces, heads or channels, that tensor parallelism can share
    out; None where it is not known how to cut. ``served`` is the dtype that the config itself
    asks of an engine that serves the model, where it states one. Neither changes what is kept, so
    tensors that differ in them alone are equal.
    """

    elements: int
    dtype: str | None = None
    units: int | None = field(default=None, compare=False)
    served: str | None = field(default=None, compare=False)

    def bytes(self, dtype: str) -> int:
        """Bytes of it in a model that computes in ``dtype``."""
        return self.elements * ELEMENT_BYTES[self.dtype or dtype]


@dataclass(frozen=True, slots=True)
class Convolution:
    """The inputs that a causal convolution still needs: the last ``kernel - 1`` of each channel.

    ``units`` is the number of equal pieces that tensor parallelism can share out, as in
    ``Tensor``. Of the channels, ``groups`` times ``group_channels`` belong to groups (Mamba 2's B
    and C) that are whole on every rank; the other channels are shared out.
    """

    channels: int
    kernel: int
    dtype: str | None = None
    units: int | None = field(default=None, compare=False)
    groups: int = field(default=0, compare=False)
    group_channels: int = field(default=0, compare=False)

    def bytes(self, dtype: str, columns: int | None = None) -> int:
        """Bytes in a model that computes in ``dtype``; ``columns`` by default ``kernel - 1``."""
        kept = self.kernel - 1 if columns is None else columns
        return self.channels * kept * ELEMENT_BYTES[self.dtype or dtype]
