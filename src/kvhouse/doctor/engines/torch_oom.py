"""PyTorch's allocator when it gives up, under transformers or under any engine on it.

Sources: c10/cuda/CUDACachingAllocator.cpp, of version 2.1 and later, and before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvhouse.doctor.facts import Value
from kvhouse.doctor.line import Read, line

_UNIT = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"(\d{1,12}(?:\.\d{1,9})? (?:bytes|[KMG]iB))"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
#: Each part of the message, new and old, with the fact that it gives.
_PARTS = (
    ("oom_total_bytes", re.compile(rf"total capaci?ty of {_SIZE}|; {_SIZE} total capacity")),
    ("oom_free_bytes", re.compile(rf"of which {_SIZE} is free|; {_SIZE} free;")),
    ("oom_process_bytes", re.compile(rf"this process has {_SIZE} memory in use")),
    (
        "oom_allocated_bytes",
        re.compile(rf"{_SIZE} is allocated by PyTorch|; {_SIZE} already alloc"),
    ),
    ("oom_unallocated_bytes", re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")),
    ("oom_reserved_bytes", re.compile(rf"{_SIZE} reserved in total by PyTorch")),
)
_OTHERS = re.compile(rf"Process \d{{1,9}} has {_SIZE} memory in use")


def _bytes(text: str) -> int:
    number, unit = text.split(" ")
    return int(float(number) * _UNIT[unit])


def _oom(match: re.Match[str], _memory: dict[str, Value]) -> Iterable[Read]:
    text = match.string[match.start() :]
    tried = _TRIED.search(text)
    if tried:
        yield "oom_tried_bytes", _bytes(tried[1]), tried[0]
    for name, regex in _PARTS:
        found = regex.search(text)
        if found:
            yield name, _bytes(next(group for group in found.groups() if group)), found[0]
    others = list(_OTHERS.finditer(text))
    if others:
        shown = "; ".join(found[0] for found in others)
        yield "oom_others_bytes", sum(_bytes(found[1]) for found in others), shown


TORCH = (
    line(
        "torch",
        "memory",
        "out of memory. Tried to allocate",
        r"(?:CUDA|HIP|XPU|NPU) out of memory\. (?=Tried to allocate)",
        reading=_oom,
        sets={"error": "oom"},
    ),
)
