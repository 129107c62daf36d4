"""llama-server while it serves: the slots, what each prompt keeps of the one before, its end.

Sources: tools/server/server-context.cpp (before December 2025 server.cpp; before March 2025
examples/server/server.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvhouse.doctor.facts import Value
from kvhouse.doctor.line import Read, line

_SLOT = r"id {1,3}(\d{1,4}) \| task {1,2}-?\d{1,12} \| "


def _prompt(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """A prompt arrives; what it keeps is said by the line after it."""
    memory[f"prompt {match[1]}"] = int(match[3])
    yield "slot_context_tokens", int(match[2]), ""


def _kept(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """Cells that stay: of a prompt only the first such line, as further batches write it too."""
    tokens = memory.pop(f"prompt {match[1]}", None)
    if tokens is not None:
        yield "prompt_tokens", tokens, ""
        yield "kept_tokens", int(match[2]), ""


LLAMA_SERVER = (
    line(
        "llama.cpp",
        "update_slots: ",
        "new prompt, n_ctx_slot",
        _SLOT + r"new prompt, n_ctx_slot = (\d{1,9}), n_keep = -?\d{1,9}, "
        r"(?:task\.)?n_(?:prompt_)?tokens = (\d{1,9})",
        reading=_prompt,
        kind="series",
        only=True,
    ),
    line(
        "llama.cpp",
        "update_slots: ",
        ", end)",
        _SLOT + r".{0,40}?(?:kv cache rm|memory_seq_rm) \[(\d{1,9}), end\)",
        reading=_kept,
        kind="series",
        only=True,
    ),
    line(
        "llama.cpp",
        "update_slots: ",
        "forcing full prompt re-processing",
        r"forcing full prompt re-processing due to lack of cache",
        sets={"reprocessed": 1},
        kind="series",
        only=True,
    ),
    line(
        "llama.cpp",
        "stop processing: ",
        "",
        r"stop processing: n_(?:past|tokens) = <N>",
        "request_tokens",
        kind="series",
        only=True,
    ),
    line(
        "llama.cpp",
        "n_ctx_slot = ",
        "n_slots = ",
        r"n_slots = <N>, n_ctx_slot = <N>, kv_unified = '(true|false)'",
        "n_slots slot_context kv_unified",
    ),
    line(
        "llama.cpp",
        "new slot",
        "n_ctx_slot",
        r"new slot,? n_ctx(?:_slot)? = <N>",
        "slot_context",
    ),
)
