"""Cases of engines that allocate everything at the start: llama.cpp, whisper.cpp, static caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvhouse.planner.engines.cases.case import Case, Check, Missing
from kvhouse.planner.engines.cases.model import case_spec
from kvhouse.planner.engines.cases.span import Span
from kvhouse.planner.engines.cases.versions import month_versions
from kvhouse.planner.engines.kv_dtypes import LLAMA_CPP, PLAIN
from kvhouse.planner.engines.llama_cells import LlamaCppOptions
from kvhouse.planner.engines.llama_cpp import llama_cpp
from kvhouse.planner.engines.slots import SLOTS, SlotOptions, Slots, slot_cache
from kvhouse.planner.engines.whisper_cpp import WhisperOptions, WhisperShape, whisper_cpp
from kvhouse.spec.layers import LatentAttention, SlidingAttention, State
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.rare_layers import SharedVector
from kvhouse.units import MIB


def llama_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What llama.cpp's logs leave open."""
    inputs: dict[str, Sequence[Any]] = {"version": month_versions(case)}
    batch = case.size("n_ubatch", "ubatch", "ubatch_size")
    inputs["n_ubatch"] = [batch] if batch else [512, 1024, 2048, 4096, 256, 128]
    sequences = case.size("n_seq_max", "parallel", "n_parallel", "n_seq")
    printed = case.sequences()
    if printed is not None:
        inputs["n_seq_max"], inputs["unified"] = [printed[0]], [printed[1] == 1]
    else:
        open_sequences = [] if sequences else [2, 4]
        inputs["n_seq_max"] = [sequences or case.count("seqs") or 1, *open_sequences]
        unified = case.flag("kv_unified", "unified")
        inputs["unified"] = [False, True] if unified is None else [bool(unified)]
    if "kv_lora_rank" in case.part("config") or _is_latent(case.spec):
        inputs["latent_values"] = [False, True] if case.engine == "llama.cpp" else [False]
        inputs["mla"] = [True, False]
    stated = case.text("cache_type_k", "type_k", "cache_type", "kv_type", "ctk")
    inputs["type_k"] = [_type(stated)] if stated else _types(case)
    if inputs["type_k"] != ["f16"]:
        inputs["type_swa"] = [None, "f16", inputs["type_k"][0]]
    full = case.flag("swa_full")
    inputs["swa_full"] = [False, True] if full is None else [bool(full)]
    return inputs


def _is_latent(spec: ModelSpec | None) -> bool:
    return spec is not None and any(isinstance(part, LatentAttention) for part in _parts(spec))


def _types(case: Case) -> Sequence[str]:
    """Types of the cache that may have been used: f16, or where it is quantised, any such type."""
    quantised = [name for name, fmt in LLAMA_CPP.items() if fmt.elements > 1]
    if "quantised-kv" not in case.arch:
        return ["f16"]
    named = [name for name in quantised if name in case.model.lower()]
    return named or quantised


def _type(stated: str) -> str:
    short = {"fp16": "f16", "float16": "f16", "bfloat16": "bf16", "fp32": "f32", "float32": "f32"}
    return short.get(stated, stated)


def llama_case(case: Case) -> list[Check]:
    """K, V and their sum, the cache of windows, and recurrent states."""
    spec = case_spec(case)
    if spec is None:
        raise Missing("config")
    context = case.size("n_ctx", "ctx_size", "ctx", "num_ctx", "c") or case.count(
        "n_ctx", "non_swa_cells"
    )
    parts = [part for layer in spec.layers for part in layer.parts]
    states = [part for part in parts if isinstance(part, State)]
    if context is None and not states:
        raise Missing("n_ctx")
    assumed = case.assumed
    type_v = case.text("cache_type_v", "type_v", "cache_type", "kv_type", "ctv")
    options = LlamaCppOptions(
        version=assumed.get("version"),
        n_ctx=context or 256,
        n_seq_max=assumed.get("n_seq_max", 1),
        n_ubatch=assumed.get("n_ubatch", 512),
        unified=assumed.get("unified", False),
        swa_full=assumed.get("swa_full", False),
        flash_attn=bool(case.flag("flash_attn", "fa")),
        type_k=assumed.get("type_k", "f16"),
        type_v=_type(type_v) if type_v else assumed.get("type_k", "f16"),
        type_swa=assumed.get("type_swa"),
        latent_values=assumed.get("latent_values", False),
    )
    figures = dict(llama_cpp(spec, options).figures)
    checks: list[Check] = []
    if context is not None:
        checks += _cache_checks(case, spec, figures)
    return checks + _state_checks(case, figures, options, states)


def _cache_checks(case: Case, spec: ModelSpec, figures: dict[str, int]) -> list[Check]:
    checks = []
    for name, keys in _LLAMA_BYTES.items():
        # A log of two caches has the same words for each.
        swa = "swa_cells" in figures
        spans = [Span.at(figures[name] / MIB)] if name in figures else []
        if swa and name in ("k_bytes", "v_bytes", "kv_bytes"):
            spans += [Span.at(figures[f"{one}{name}"] / MIB) for one in ("non_swa_", "swa_")]
        checks += case.one_of(keys, spans)
    if "swa_cells" in figures:
        for name in ("swa_cells", "swa_layers"):
            checks += case.any_check((name,), Span.at(float(figures[name])))
    if any(isinstance(part, SlidingAttention | SharedVector) for part in _parts(spec)):
        for name in ("non_swa_cells", "non_swa_layers"):
            checks += case.any_check((name,), Span.at(float(figures[name])))
    return checks + _latent_checks(case, spec, figures)


#: Names of the buffers; a cache of windows that is counted alone has both its K and its V.
_LLAMA_BYTES = {
    "k_bytes": ("k_mib", "c_kv_mib"),
    "v_bytes": ("v_mib",),
    "kv_bytes": (
        *("kv_mib", "kv_total_mib", "kv_buffer_mib", "kv_self_mib", "kv_self_mb", "kv_mb"),
        *("kv_size_mib", "kv_cache_mib", "kv_self_size_mib", "kv_self_size_mb"),
    ),
    "swa_kv_bytes": ("swa_mib", "swa_kv_mib"),
    "swa_k_bytes": ("swa_k_mib",),
    "swa_v_bytes": ("swa_v_mib",),
    "non_swa_kv_bytes": ("non_swa_mib", "non_swa_kv_mib"),
    "non_swa_k_bytes": ("non_swa_k_mib",),
    "non_swa_v_bytes": ("non_swa_v_mib",),
}


def _parts(spec: ModelSpec) -> list[object]:
    return [part for layer in spec.layers for part in layer.parts]


def _latent_checks(case: Case, spec: ModelSpec, figures: dict[str, int]) -> list[Check]:
    """A branch that keeps the latent and its rotary part apart prints a buffer for each."""
    latent = next((one for one in _parts(spec) if isinstance(one, LatentAttention)), None)
    if latent is None:
        return []
    whole = figures["k_bytes"] / MIB
    rope = whole * latent.rope_dim / (latent.rank + latent.rope_dim)
    return [
        *case.any_check(("kr_mib",), Span.at(rope)),
        *case.any_check(("ckv_mib",), Span.at(whole - rope)),
        *case.any_check(("total_mib",), Span.at(whole)),
    ]


def _state_checks(
    case: Case, figures: dict[str, int], options: LlamaCppOptions, states: list[State]
) -> list[Check]:
    if not states:
        return []
    checks = []
    for name, keys in (
        ("r_bytes", ("r_mib",)),
        ("s_bytes", ("s_mib",)),
        ("recurrent_bytes", ("recurrent_mib", "rs_mib", "state_mib")),
    ):
        checks += case.any_check(keys, Span.at(figures[name] / MIB))
    each = figures["recurrent_bytes"] / options.n_seq_max / MIB
    checks += case.any_check(("state_mib_per_seq", "recurrent_mib_per_seq"), Span.at(each))
    checks += case.any_check(("cells",), Span.at(float(figures["state_cells"])))
    return checks + case.any_check(("layers_printed",), Span.at(float(figures["layers"])))


def whisper_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What whisper.cpp's logs leave open."""
    padding = case.flag("flash_attn", "flash_attention", "padding")
    return {
        "version": month_versions(case),
        "decoders": [case.size("decoders", "n_decoders"), 1, 3, 5],
        "padding": [None, True, False] if padding is None else [bool(padding)],
    }


def whisper_case(case: Case) -> list[Check]:
    """The caches of the decoder's own tokens, of the encoder's output, and of padding."""
    config = case.part("config")
    sizes = {
        name: config[name]
        for name in WhisperShape.__dataclass_fields__
        if isinstance(config.get(name), int)
    }
    for name in ("n_text_layer", "n_text_state"):
        if name not in sizes:
            raise Missing(f"config: {name}")
    assumed, dtype = case.assumed, case.text("dtype", "cache_type")
    options = WhisperOptions(
        version=assumed.get("version"),
        decoders=assumed.get("decoders"),
        padding=assumed.get("padding"),
        cache_type=_type(dtype) if dtype else "f16",
    )
    figures = dict(whisper_cpp(WhisperShape(**sizes), options).figures)
    unit = {"MB": 10**6, "MiB": MIB}.get(str(case.reported("unit")), figures["unit_bytes"])
    checks = []
    for name, keys in (
        ("self_bytes", ("kv_self", "kv_self_mib", "kv_self_mb")),
        ("cross_bytes", ("kv_cross", "kv_cross_mib", "kv_cross_mb")),
        ("pad_bytes", ("kv_pad", "kv_pad_mib", "kv_pad_mb")),
    ):
        if name in figures:
            checks += case.any_check(keys, Span.at(figures[name] / unit))
    return checks


def slot_open(case: Case) -> Mapping[str, Sequence[Any]]:
    """What static caches leave open."""
    return {"batch": [case.size("batch", "batch_size", "n_seq_max") or 1]}


def slot_case(case: Case) -> list[Check]:
    """The whole buffer, and the number of slots in all layers."""
    spec = case_spec(case)
    if spec is None:
        raise Missing("config")
    length = case.size(
        "n_ctx", "max_seq", "max_seq_len", "max_model_len", "max_cache_len", "context_length"
    )
    if length is None:
        raise Missing("n_ctx")
    stated = case.text("dtype")
    options = SlotOptions(
        max_model_len=length,
        batch=case.assumed.get("batch", 1),
        dtype=stated if stated in (*PLAIN, "f32", "f16", "bf16", "fp16", "fp32") else None,
    )
    figures = dict(slot_cache(_slots(case), spec, options).figures)
    mib = Span.at(figures["kv_bytes"] / MIB)
    return [
        *case.any_check(("kv_mib", "kv_mib_approx", "memory_size_mib"), mib),
        *case.any_check(("kv_bytes", "app_estimate_bytes"), Span.at(float(figures["kv_bytes"]))),
        *case.any_check(("n_mem",), Span.at(float(figures["slots"]))),
    ]


def _slots(case: Case) -> Slots:
    """Which layout: of early ggml's examples, Falcon's alone stored KV heads."""
    if case.engine == "transformers":
        return SLOTS["transformers-static"]
    if case.engine == "ggml" and "falcon" in case.model.lower():
        return SLOTS["ggml-falcon"]
    return SLOTS.get(case.engine, Slots("a buffer of slots"))
