"""Elements and scales: how vectors are rounded to a KV format, in plain torch.

The formats with scales share two rules: zeros have scale 0; and what shares a scale with an
element that is not finite has the scale NaN and reads as NaN, while no other vector is touched.

In int8 and fp8 the largest element of a vector decides its scale, which is rounded up to bfloat16,
so that nothing is clipped. Elements too small for any scale round to zero or to the smallest.

int4 has 16 levels ``code - 8`` for each group of 32 elements (a vector's last group is filled up
with zeros). -8 has no counterpart, so the scale has a sign: -8 stands for the group's *peak*, its
element of largest magnitude, of two opposite ones the positive. ggml's Q4_0 has the same levels
(``quantize_row_q4_0_ref`` of https://github.com/ggml-org/llama.cpp). A step that is a little
smaller clips the peak and rounds all others better, so several are tried: of the scales
``peak * (f / -8)`` for each ``f`` of ``FACTORS``, rounded to bfloat16, the one with the least sum
of squared errors is taken. (Clipping where it lessens the squared error is known to matter at 4
bits: Banner et al. 2018, arXiv 1810.05723. They compute where; we compare a few.)

Compiled code gives the same bits, so the order of int4's arithmetic, all float32, is part of the
format:

- ``element / scale`` is rounded to the nearest integer, ties to even, then clipped to -8 and 7.
  Where the scale is 0, elements are divided by 1.
- The squares of ``element - level * scale`` are added up by halves: the last 16 to the first 16,
  of these sums the last 8 to the first 8, and so on.
- A later factor must have a lesser sum to be taken. The first one is 1: it is taken where the
  squares are too large or too small for float32.

Of a group of ``n`` elements, 32 or what is left of the vector, byte ``i`` holds element ``i`` in
its low half and element ``i + ceil(n / 2)`` in its high half.
"""

from __future__ import annotations

import torch

from kvhouse.formats import KVFormat

#: What the largest element is divided by to give the scale.
PEAKS = {"int8": 127.0, "fp8": 448.0}

#: The code of int4 that stands for zero.
ZERO_CODE = 8

#: What the step of int4 that just reaches the peak is multiplied by, in the order they are tried.
FACTORS = (1.0, 0.85, 0.9, 0.95, 1.05, 1.1)


def encode(vectors: torch.Tensor, kv_format: KVFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Round vectors to a format with scales.

    Args:
        vectors: float32 ``[..., size]``.
        kv_format: One with scales.

    Returns:
        The elements, ``[..., stored]`` in the dtype that ``Vectors.data`` has, and the scales,
        bfloat16 ``[..., groups]``.
    """
    if kv_format.name == "int4":
        return _encode_groups(vectors, kv_format.scaled or vectors.shape[-1])
    scales = _scales_up(vectors.abs().amax(-1, keepdim=True), PEAKS[kv_format.name])
    # What is not finite reads as NaN by its scale; its elements only have to be some number.
    steps = (vectors / _divisors(scales)).nan_to_num(0.0, 0.0, 0.0)
    if kv_format.name == "fp8":
        return steps.to(torch.float8_e4m3fn), scales
    return steps.round().clamp(-127, 127).to(torch.int8), scales


def decode(
    elements: torch.Tensor, scales: torch.Tensor, size: int, kv_format: KVFormat
) -> torch.Tensor:
    """What ``encode`` rounded vectors of ``size`` elements to, float32 ``[..., size]``."""
    if kv_format.bits < 8:
        steps = _unpack(elements, size, kv_format.scaled or size).float() - ZERO_CODE
    else:
        steps = elements.float()
    wide = scales.float().repeat_interleave(kv_format.scaled or size, dim=-1)
    return steps * wide[..., :size]


def _scales_up(peaks: torch.Tensor, most: float) -> torch.Tensor:
    """The scales of what has these largest elements, rounded up to bfloat16."""
    exact = (peaks / most).view(torch.int32)
    # The bits of a positive float grow with it; cutting off 16 of them gives a bfloat16.
    up = (exact + 0xFFFF) >> 16
    up = torch.where((up == 0) & (peaks > 0), 1, up)
    scales = up.to(torch.int16).view(torch.bfloat16)
    return torch.where(peaks.isfinite(), scales, torch.nan)


def _divisors(scales: torch.Tensor) -> torch.Tensor:
    """What elements are divided by, float32."""
    return torch.where(scales == 0, 1.0, scales.float())


def _encode_groups(vectors: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of int4, two to a byte, and the scales of groups of so many elements."""
    size = vectors.shape[-1]
    padded = torch.nn.functional.pad(vectors, (0, -size % group))
    groups = padded.view(*vectors.shape[:-1], -1, group)
    finite = groups.isfinite().all(-1, keepdim=True)
    groups = torch.where(finite, groups, 0.0)
    most, least = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    peaks = torch.where(most >= -least, most, least)
    scales, errors = torch.zeros_like(peaks), torch.full_like(peaks, torch.inf)
    for number, factor in enumerate(FACTORS):
        tried = (peaks * (factor / -8)).bfloat16().float()
        error = _squares(groups - _levels(groups, tried) * tried)
        better = (error < errors) | (number == 0)
        scales, errors = torch.where(better, tried, scales), torch.where(better, error, errors)
    codes = (_levels(groups, scales) + ZERO_CODE).to(torch.uint8).flatten(-2)[..., :size]
    # Adding 0 takes the sign off a zero.
    kept = torch.where(finite, (scales + 0.0).bfloat16(), torch.nan)
    return _pack(codes, group), kept[..., 0]


def _levels(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (groups / _divisors(scales)).round().clamp(-8, 7)


def _squares(errors: torch.Tensor) -> torch.Tensor:
    """Their sums over the last dimension, by halves."""
    sums = errors * errors
    while sums.shape[-1] > 1:
        first, last = sums.chunk(2, dim=-1)
        sums = first + last
    return sums


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
