"""llama.cpp, llama-server and what is built on them; ik_llama.cpp.

Sources: src/llama-kv-cache.cpp (before July 2025 llama-kv-cache-unified.cpp, before April 2025
llama-context.cpp and llama.cpp), llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp,
llama-model.cpp, ggml-cuda.cu, tools/server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvhouse.doctor.facts import Value
from kvhouse.doctor.line import Read, line, value_of


def _cache(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """A cache of cells: the model's, or of a model with windows one of its two."""
    part = str(memory.get("cache", ""))
    prefix = f"{part}_" if part else ""
    if not part and memory.get("caches"):
        prefix = "draft_"
    memory["caches"] = True
    names = (
        *("mib", "cells", "layers", "seqs"),
        *("type_k", "k_mib", "type_v", "v_mib"),
    )
    for name, text in zip(names, match.groups(), strict=True):
        if text is None:
            continue
        if name.startswith("type_"):
            if prefix in ("", "non_swa_"):
                yield name, text, match[0]
        elif name == "seqs":
            yield name, text.replace(" ", ""), match[0]
        else:
            full = "kv_mib" if name == "mib" and not part else name
            yield f"{prefix}{full}", value_of(name, text), match[0]


def _part(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    part = "non_swa" if match[1] == "non-SWA" else "swa"
    memory["cache"] = part
    yield f"{part}_cells", int(match[2]), match[0]


def _buffer(match: re.Match[str], memory: dict[str, Value]) -> Iterable[Read]:
    """A buffer on one device: the device is part of the name, as each has its own.

    A model with windows has two caches, whose buffers on a device are one figure.
    """
    kind = {"KV": "kv_buffer", "RS": "state_buffer", "compute": "compute"}
    name = f"{kind.get(match[2], 'model')}:{match[1]}_mib"  # old builds leave "model" out
    size = float(match[3])
    if match[2] == "KV":
        part = str(memory.get("cache", ""))
        memory[f"{name}:{part}"] = size
        other = memory.get(f"{name}:{_OTHER.get(part, part)}", 0.0) if part in _OTHER else 0.0
        size = round(size + float(other), 2)
    yield name, size, match[0]


#: The other one of a model's two caches.
_OTHER = {"swa": "non_swa", "non_swa": "swa"}


def _self(match: re.Match[str], _memory: dict[str, Value]) -> Iterable[Read]:
    """One cache for everything, K and V apart where the build says so."""
    yield "kv_mib", value_of("kv_mib", match[1]), match[0]
    if match[2] and match[4]:
        yield "type_k", match[2], match[0]
        yield "k_mib", value_of("k_mib", match[3]), match[0]
        yield "type_v", match[4], match[0]
        yield "v_mib", value_of("v_mib", match[5]), match[0]
    if match[6]:
        yield "type_k", match[6], match[0]
        yield "c_kv_mib", value_of("c_kv_mib", match[7]), match[0]


_SIZE = r"<F> (?:MiB|MB)"
_CONTEXT = r"(?:llama_context|llama_new_context_with_model|llama_init_from_model): "

_CACHES = (
    line(
        "llama.cpp",
        "llama_",
        " cells, ",
        rf"llama_kv_cache\w{{0,12}}: size = {{0,8}}{_SIZE} \( {{0,8}}<N> cells, {{1,4}}<N> layers"
        rf"(?:, {{0,4}}(\d{{1,4}}(?:/ ?\d{{1,4}})?) seqs)?\)"
        rf"(?:, K \((\w{{1,12}})\): {{0,8}}{_SIZE}, V \((\w{{1,12}})\): {{0,8}}{_SIZE})?",
        reading=_cache,
    ),
    line(
        "llama.cpp",
        "llama_",
        "SWA KV cache, size = ",
        r"creating {1,8}(non-SWA|SWA) KV cache, size = <N> cells",
        reading=_part,
    ),
    line(
        "llama.cpp",
        "llama_",
        "llama_memory_recurrent: size",
        rf"llama_memory_recurrent: size = {{0,8}}{_SIZE} \( {{0,8}}<N> cells?, {{1,4}}<N> layers"
        rf"(?:, {{0,4}}<N> seqs[^)]{{0,24}})?\)"
        rf"(?:, R \(\w{{1,12}}\): {{0,8}}{_SIZE}, S \(\w{{1,12}}\): {{0,8}}{_SIZE})?",
        "recurrent_mib cells layers_printed n_seq_max r_mib s_mib",
    ),
    line(
        "llama.cpp",
        "llama_",
        "self size",
        rf"(?:KV|kv) self size {{0,4}}= {{0,8}}{_SIZE}(?:, K \((\w{{1,12}})\): {{0,8}}{_SIZE}, "
        rf"V \((\w{{1,12}})\): {{0,8}}{_SIZE}|, c\^KV \((\w{{1,12}})\): {{0,8}}{_SIZE})?",
        reading=_self,
    ),
    line(
        "llama.cpp",
        " buffer size",
        "",
        rf"(?<![\w\[\]:.\-()])([\w\[\]:.\-()]{{1,60}}) {{1,4}}(KV|RS|model|compute) buffer size "
        rf"{{0,4}}= {{0,8}}{_SIZE}",
        reading=_buffer,
    ),
    line(
        "llama.cpp",
        " buffer size",
        "load_tensors: ",
        rf"load_tensors: {{1,12}}([\w\[\]:.\-()]{{1,60}})( )buffer size {{0,4}}= {{0,8}}{_SIZE}",
        reading=_buffer,
    ),
)

_OPTIONS = tuple(
    line("llama.cpp", "llama_", name, rf"{_CONTEXT}{name} {{0,24}}= {{0,8}}{value}", fact)
    for name, value, fact in (
        ("n_ctx", "<N>", "n_ctx"),
        ("n_seq_max", "<N>", "n_seq_max"),
        ("n_ubatch", "<N>", "n_ubatch"),
        ("kv_unified", r"(true|false)", "kv_unified"),
        ("flash_attn", r"(\w{1,12})", "flash_attention"),
    )
)

_MODEL = (
    line(
        "llama.cpp",
        "llama_",
        "n_ctx_train",
        r"n_ctx_(?:per_)?seq \(<N>\) < n_ctx_train \(<N>\)",
        "context_per_sequence trained_length",
    ),
    line(
        "llama.cpp",
        "general.name",
        "",
        r"general\.name {1,40}(?:str {1,24})?= (.{1,80})",
        "model",
    ),
    line(
        "llama.cpp",
        "load_model: loading model",
        "",
        r"load_model: loading model '([^']{1,300})'",
        "model_file",
    ),
    line(
        "llama.cpp", "build: ", "", r"\bbuild: <N> \([0-9a-f]{7,12}\)", "build_number", starts=True
    ),
    line(
        "llama.cpp",
        "projected to use",
        "",
        r"projected to use <N> MiB of device memory vs\. <N> MiB of free device memory",
        "projected_mib free_device_mib",
    ),
)

_ERRORS = (
    line(
        "llama.cpp",
        "memory",
        "cudaMalloc failed",
        r"allocating <F> MiB on device \d{1,4}: cudaMalloc failed: out of memory",
        "allocating_mib",
        sets={"error": "malloc"},
    ),
    line(
        "llama.cpp",
        "to allocate",
        "buffer for kv cache",
        r"failed to allocate buffer for kv cache",
        sets={"error": "kv_buffer"},
    ),
    line(
        "llama.cpp",
        "to allocate",
        "error loading model",
        r"error loading model: unable to allocate \S{1,40} buffer",
        sets={"error": "model_buffer"},
    ),
    line(
        "llama.cpp",
        "to allocate",
        "compute",
        r"failed to allocate compute (?:pp )?buffers?",
        sets={"error": "compute_buffer"},
    ),
    line(
        "llama.cpp",
        "to allocate",
        "ggml_gallocr_reserve",
        r"ggml_gallocr_reserve\w{1,8}: failed to allocate \S{1,40} buffer of size <N>",
        "compute_bytes",
        sets={"error": "compute_buffer"},
    ),
    line(
        "llama.cpp",
        "retrying without pipeline",
        "",
        r"compute buffer allocation failed, retrying without pipeline parallelism",
        sets={"error": "retried"},
    ),
    line(
        "llama.cpp",
        "find a KV slot",
        "",
        r"could not find a KV slot for the batch",
        sets={"cells_short": 1},
        kind="series",
    ),
    line(
        "llama.cpp",
        "KV cache",
        "failed to find free space",
        r"failed to find free space in the KV cache.{0,160}?n_batch = <N>",
        "cells_short",
        kind="series",
    ),
)

LLAMA_CPP = (*_CACHES, *_OPTIONS, *_MODEL, *_ERRORS)
