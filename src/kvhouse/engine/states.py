"""Recurrent states in the pool's slots: exactly the bytes that the spec says, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kvhouse.core.step import Row
from kvhouse.engine.carriers import States
from kvhouse.engine.kv import KVTensors
from kvhouse.errors import UnsupportedModel
from kvhouse.spec import ModelSpec
from kvhouse.spec.tensors import Convolution, Tensor


@dataclass(frozen=True, slots=True)
class _Field:
    """Where one tensor of a layer lies in a slot.

    Attributes:
        layer: Number of the layer.
        start: First byte.
        stop: One past the last.
        stored: Its shape and dtype in the slot.
        held: Its shape and dtype in the model. Of a convolution the model may hold one column
            more, on the left, that is never read again.
    """

    layer: int
    start: int
    stop: int
    stored: tuple[torch.Size, torch.dtype]
    held: tuple[torch.Size, torch.dtype]


@dataclass(frozen=True, slots=True)
class _Before:
    """What a slot held before a row changed it."""

    request: int
    first: int
    content: torch.Tensor


class StateSlots:
    """Reads and writes the states of requests.

    A step may be interrupted after some of its rows have changed their states, and those rows
    then come again. Keys and values would be written over with the same; a state would absorb
    the same tokens twice. So what a slot held before its last change is kept until the request
    has gone on.

    Args:
        kv: The pool.
        spec: What the model keeps, in the order of a slot's bytes.
        sample: States of the model itself, for the shapes of its tensors.

    Attributes:
        bytes: The pool's slots, uint8 ``[slots, slot_bytes]``.

    Raises:
        UnsupportedModel: The model's states are not what the spec says.
    """

    def __init__(self, kv: KVTensors, spec: ModelSpec, sample: States) -> None:
        self.bytes = kv.states
        self._fields = tuple(_fields(spec, kv.layout.dtype, sample))
        if sum(field.stop - field.start for field in self._fields) != kv.layout.slot_bytes:
            raise UnsupportedModel(
                f"{spec.name}: the engine has no tensors for all that its layers keep in a slot"
            )
        self._before: dict[int, _Before] = {}

    def begin(self, rows: Sequence[Row]) -> None:
        """Make every row's slot hold what it held when the row's first token was next."""
        for row in rows:
            assert row.slot is not None, "each request of a model with states has a slot"
            before = self._before.pop(row.slot, None)
            if before and (before.request, before.first) == (row.request, row.first):
                self.bytes[row.slot] = before.content

    def read(self, row: Row) -> States | None:
        """Where a row goes on: copies of the states, or None where it is the request's first."""
        if not row.first:
            return None
        states: States = {}
        slot = self.bytes[row.slot]
        for field in self._fields:
            shape, dtype = field.stored
            # A field may start at any byte; a copy of it is aligned.
            stored = slot[field.start : field.stop].clone().view(dtype).view(shape)
            shape, dtype = field.held
            if shape != stored.shape:
                stored = torch.nn.functional.pad(stored, (shape[-1] - stored.shape[-1], 0))
            states.setdefault(field.layer, []).append(stored.to(dtype))
        return states

    def write(self, row: Row, states: States) -> None:
        """Put a row's new states into its slot."""
        slot = self.bytes[row.slot]
        if row.first:
            assert row.slot is not None
            self._before[row.slot] = _Before(row.request, row.first, slot.clone())
        left = {layer: iter(tensors) for layer, tensors in states.items()}
        for field in self._fields:
            shape, dtype = field.stored
            kept = next(left[field.layer])[..., -shape[-1] :].to(dtype).contiguous()
            slot[field.start : field.stop] = kept.view(-1).view(torch.uint8)


def _fields(spec: ModelSpec, dtype: str, sample: States) -> Iterator[_Field]:
    """Each layer's tensors in turn, against those of the model itself."""
    start = 0
    for number, layer in enumerate(spec.layers):
        kept = [tensor for part in layer.parts for tensor in part.state]
        held = list(sample.get(number, ()))
        for tensor in kept:
            left = tensor.bytes(dtype)
            while left > 0 and held:
                field = _field(number, start, tensor, dtype, held.pop(0))
                yield field
                start, left = field.stop, left - (field.stop - field.start)
            if left:
                raise _other_states(spec, number)
        if held:
            raise _other_states(spec, number)


def _field(
    layer: int, start: int, tensor: Tensor | Convolution, dtype: str, held: torch.Tensor
) -> _Field:
    shape, narrow = held.shape, getattr(torch, tensor.dtype or dtype)
    if isinstance(tensor, Convolution) and shape[-1] == tensor.kernel:
        shape = torch.Size((*shape[:-1], tensor.kernel - 1))
    if torch.promote_types(held.dtype, narrow) != narrow:
        raise UnsupportedModel(
            f"layer {layer} keeps a state in {_name(held.dtype)}, which does not fit into the "
            f"{_name(narrow)} of its description: the engine cannot run it"
        )
    stop = start + shape.numel() * narrow.itemsize
    return _Field(layer, start, stop, (shape, narrow), (held.shape, held.dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _other_states(spec: ModelSpec, layer: int) -> UnsupportedModel:
    return UnsupportedModel(
        f"{spec.name}: layer {layer} keeps other states than its description says: "
        "the engine cannot run it"
    )
