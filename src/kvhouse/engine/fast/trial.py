"""A block of ours against the original's output, on what the original was given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvhouse.core.step import Row
from kvhouse.engine.fast.block import Block, Turn
from kvhouse.engine.fast.ends import Ends
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.fast.watch import Seen
from kvhouse.engine.kernels.reference import attend_row
from kvhouse.engine.kv import LayerKV
from kvhouse.engine.packed import PackedRow

#: How far a block may be off: the root mean square of the errors of what it adds to the stream,
#: over that of what it adds. What the stream's own dtype rounds off is not counted. In narrow
#: dtypes a block's own rounding is left, up to 6 % in Gemma-3-270M; that it is the right block has
#: been tried in float32, on a narrow model of its class, by then (``support``).
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}

#: The same where keys and values are rounded, some of them the other way after a rounding before.
FORMAT_TOLERANCES = {"bf16": 5e-3, "fp16": 1e-3, "fp8": 3e-2, "int8": 1e-2, "int4": 1e-1}


@dataclass(frozen=True, slots=True)
class OneRow:
    """Attention of one layer over the keys of a single row, which no pool keeps."""

    kept: LayerKV

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scale: float,
        *,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend``."""
        assert key is not None, f"layer {layer} brings keys"
        assert value is not None, "and values"
        row = PackedRow(Row(0, 0, len(query), True, ()), 0)
        k, v = key.float(), value.float()
        return attend_row(query, k, v, row, 0, self.kept.reach, scale, softcap, sinks)


def compare(
    block: Block, turn: Turn, kept: LayerKV, given: torch.Tensor, wanted: torch.Tensor
) -> None:
    """Compare what a block makes of the stream with what the original made of it.

    Args:
        block: The block.
        turn: Cosines and sines.
        kept: What its layer keeps.
        given: The stream before it, ``[T, hidden]``.
        wanted: The stream after the original.

    Raises:
        NotUnderstood: They differ by more than rounding.
    """
    _compare(block(given, OneRow(kept), turn), wanted, given)


def compare_logits(ends: Ends, seen: Seen) -> None:
    """Compare embedding, norm and head with the original's.

    Raises:
        NotUnderstood: They differ by more than rounding.
    """
    stream = ends.stream(seen.input_ids)
    if not torch.equal(stream, seen.inputs[0]):
        raise NotUnderstood("its embedding is not what its first block is given")
    for before, after in zip(seen.outputs, seen.inputs[1:], strict=False):
        if not torch.equal(before, after):
            raise NotUnderstood("something happens between its blocks")
    _compare(ends.logits(seen.outputs[-1]), seen.logits, torch.zeros(()))


def _compare(got: torch.Tensor, wanted: torch.Tensor, base: torch.Tensor) -> None:
    share = _off(got, wanted, base)
    if not share <= TOLERANCES.get(wanted.dtype, 0.0):
        raise NotUnderstood(f"it computes something else than the original, off by {share:.1e}")


def refuse_other(got: torch.Tensor, wanted: torch.Tensor, kv_format: str) -> None:
    """Compare logits of compiled code with those of torch on pages of one format.

    Raises:
        NotUnderstood: They differ by more than rounding.
    """
    share = _off(got, wanted, torch.zeros(()))
    tolerance = max(TOLERANCES.get(wanted.dtype, 0.0), FORMAT_TOLERANCES.get(kv_format, 0.0))
    if not share <= tolerance:
        raise NotUnderstood(f"compiled code computes something else, off by {share:.1e}")


def _off(got: torch.Tensor, wanted: torch.Tensor, base: torch.Tensor) -> float:
    """The error of what was added to ``base``, over what was added, as root mean squares."""
    dtype = wanted.dtype
    rounding = 2 * torch.finfo(dtype).eps * wanted.abs().float()
    error = ((got.float() - wanted.float()).abs() - rounding).clamp_min(0)
    added = wanted.float() - base.float()
    return float(error.square().mean().sqrt() / added.square().mean().sqrt())
