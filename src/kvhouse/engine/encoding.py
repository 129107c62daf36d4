"""Elements and scales: how vectors are rounded to a KV format, in plain torch.

The formats with scales share three rules:

- The largest element of what shares a scale decides it, and the scale is rounded up to bfloat16,
  so nothing is ever clipped.
- Zeros have scale 0. Elements too small for any scale round to zero or to the smallest there is.
- What shares a scale with an element that is not finite has the scale NaN and reads as NaN; no
  other vector is touched.

int4 has 16 levels of ``code - 7.5`` steps, symmetric and without a zero, so that the largest
element of either sign is a level. Of a group of ``n`` elements byte ``i`` holds element ``i`` in
its low half and element ``i + ceil(n / 2)`` in its high half.
"""

from __future__ import annotations

import torch

from kvhouse.formats import KVFormat

#: What the largest element is divided by to give the scale.
PEAKS = {"int8": 127.0, "fp8": 448.0, "int4": 7.5}


def encode(vectors: torch.Tensor, kv_format: KVFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Round vectors to a format with scales.

    Args:
        vectors: float32 ``[..., size]``.
        kv_format: One with scales.

    Returns:
        The elements, ``[..., stored]`` in the dtype that ``Vectors.data`` has, and the scales,
        bfloat16 ``[..., groups]``.
    """
    size, group = vectors.shape[-1], kv_format.scaled or vectors.shape[-1]
    padded = torch.nn.functional.pad(vectors, (0, -size % group))
    grouped = padded.view(*vectors.shape[:-1], -1, group)
    scales = _scales(grouped.abs().amax(-1), PEAKS[kv_format.name])
    divisor = torch.where(scales == 0, 1.0, scales.float())[..., None]
    # What is not finite reads as NaN by its scale; its elements only have to be some number.
    steps = (grouped / divisor).nan_to_num(0.0, 0.0, 0.0).flatten(-2)[..., :size]
    return _elements(steps, kv_format), scales


def decode(
    elements: torch.Tensor, scales: torch.Tensor, size: int, kv_format: KVFormat
) -> torch.Tensor:
    """What ``encode`` rounded vectors of ``size`` elements to, float32 ``[..., size]``."""
    if kv_format.bits < 8:
        steps = _unpack(elements, size, kv_format.scaled or size).float() - PEAKS["int4"]
    else:
        steps = elements.float()
    wide = scales.float().repeat_interleave(kv_format.scaled or size, dim=-1)
    return steps * wide[..., :size]


def _scales(peaks: torch.Tensor, most: float) -> torch.Tensor:
    """The scales of what has these largest elements, rounded up to bfloat16."""
    exact = (peaks / most).view(torch.int32)
    # The bits of a positive float grow with it; cutting off 16 of them gives a bfloat16.
    up = (exact + 0xFFFF) >> 16
    up = torch.where((up == 0) & (peaks > 0), 1, up)
    scales = up.to(torch.int16).view(torch.bfloat16)
    return torch.where(peaks.isfinite(), scales, torch.nan)


def _elements(steps: torch.Tensor, kv_format: KVFormat) -> torch.Tensor:
    if kv_format.name == "fp8":
        return steps.to(torch.float8_e4m3fn)
    if kv_format.name == "int8":
        return steps.round().clamp(-127, 127).to(torch.int8)
    codes = (steps + PEAKS["int4"]).round().clamp(0, 15).to(torch.uint8)
    return _pack(codes, kv_format.scaled or codes.shape[-1])


def _pack(codes: torch.Tensor, group: int) -> torch.Tensor:
    """Put two codes of 4 bits into each byte, group by group."""
    parts = []
    for run in torch.split(codes, group, dim=-1):
        half = -(-run.shape[-1] // 2)
        low, high = run[..., :half], run[..., half:]
        high = torch.nn.functional.pad(high, (0, half - high.shape[-1]))
        parts.append(low | (high << 4))
    return torch.cat(parts, dim=-1)


def _unpack(packed: torch.Tensor, size: int, group: int) -> torch.Tensor:
    """Take them apart again."""
    parts = [
        torch.cat((run & 15, run >> 4), dim=-1)[..., :width]
        for run, width in zip(
            torch.split(packed, -(-group // 2), dim=-1), _widths(size, group), strict=True
        )
    ]
    return torch.cat(parts, dim=-1)


def _widths(size: int, group: int) -> list[int]:
    return [min(group, size - start) for start in range(0, size, group)]
