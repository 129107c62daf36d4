"""Several linear layers of one input as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvhouse.engine.fast.vocabulary import NotUnderstood


def join(layers: Sequence[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One weight ``[sum of outputs, inputs]`` and one bias for layers that read the same.

    The layers' own parameters become views of it, so nothing is held twice and they go on
    working; joining them again finds what was joined.

    Raises:
        NotUnderstood: Some of them have a bias and others none.
    """
    biases = [layer.bias for layer in layers]
    if any(bias is None for bias in biases) and not all(bias is None for bias in biases):
        raise NotUnderstood("some of its joined projections have a bias and others none")
    weight = _joined([layer.weight for layer in layers])
    return weight, None if biases[0] is None else _joined(biases)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0].data
    whole = _as_they_lie(parts)
    if whole is None:
        whole = torch.cat([part.data for part in parts])
        for part, own in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
            part.data = own
    return whole


def _as_they_lie(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The whole, if the parts lie one behind the other in one allocation."""
    first = parts[0]
    end = first.data_ptr()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (same and part.is_contiguous() and part.data_ptr() == end):
            return None
        end += part.numel() * part.element_size()
    rows = sum(len(part) for part in parts)
    return first.data.as_strided((rows, *first.shape[1:]), first.stride())
