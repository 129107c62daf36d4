"""This machine's figures for steps that torch computes: beside numpy's float32, the own dtype."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from kvhouse.devices import Device, local

#: Sides of the square matrices; a small one may fit the caches better, a large one the threads.
_SIDES = (512, 1024, 2048)
_REPEATS = 4


@cache
def measured_for(dtype: str) -> Device:
    """``devices.local`` with the rate of torch's matrix product in ``dtype``, measured.

    Its bandwidth is that of ``local.measure``. Of several sides and passes the fastest counts,
    since a floor must not be higher than what the machine can do.
    """
    device = local.measure()
    rate = max(_rate(side, getattr(torch, dtype)) for side in _SIDES)
    flops = {**device.flops, dtype: max(rate, device.flops.get(dtype, 0.0))}
    source = f"{device.source}; {dtype}: torch matrix product on {torch.get_num_threads()} threads"
    return replace(device, flops=flops, source=source)


def _rate(side: int, dtype: torch.dtype) -> float:
    """Operations per second of a product of two square matrices."""
    matrix = torch.ones(side, side, dtype=dtype)
    out = torch.empty_like(matrix)
    torch.mm(matrix, matrix, out=out)
    return local.rate(lambda: torch.mm(matrix, matrix, out=out), 2 * side**3, _REPEATS)
