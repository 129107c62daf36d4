"""An engine's rules, applied to the case that a plan is made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.planner.case import Case
from kvhouse.planner.engines.option_values import from_texts
from kvhouse.planner.engines.registry import ENGINES, view
from kvhouse.planner.engines.view import EngineView
from kvhouse.spec.fields import show

#: What an engine calls the format that is nearest to one of kvhouse's; 16 bits are everyone's
#: default, and 4 bits with scales beside them only llama.cpp has under that name.
_KV_DTYPES = {
    "vllm": {"fp8": "fp8", "int8": "int8_per_token_head"},
    "vllm-v0": {"fp8": "fp8"},
    "sglang": {"fp8": "fp8_e4m3"},
    "llama.cpp": {"fp32": "f32", "int8": "q8_0", "int4": "q4_0"},
    "tensorrt-llm": {"fp8": "fp8", "int8": "int8"},
}
_SIXTEEN_BITS = ("bf16", "fp16")


def applied(engine: str, case: Case, options: Mapping[str, str]) -> EngineView:
    """How ``engine`` serves a case.

    Its memory is what the case has for keys and values: memory that an engine spends on
    activations, graphs and the like is only counted where ``options`` state it.

    Args:
        engine: A key of ``ENGINES``.
        case: The model, the device and the limits.
        options: The engine's own options as texts; they go before what follows from the case.

    Raises:
        KvhouseError: No such engine or option, or a value that makes no sense.
        UnsupportedModel: The engine cannot hold the model so, or how it does is not known.
    """
    if engine not in ENGINES:
        raise KvhouseError(f"unknown engine {show(engine)}: choose one of {', '.join(ENGINES)}")
    known = ENGINES[engine].option_names
    chosen = {name: value for name, value in _of_case(engine, case).items() if name in known}
    chosen |= from_texts(ENGINES[engine].options, options)
    return view(engine, case.spec, **chosen)


def _of_case(engine: str, case: Case) -> dict[str, Any]:
    """What the case says, under every name that an engine may have for it."""
    length, budget = case.max_length, case.budget()
    found: dict[str, Any] = {
        "tp": case.tp,
        "max_model_len": length,
        "context_length": length,
        "n_ctx": length,
        "utilization": case.utilization,
        "available_bytes": budget.kv,
    }
    if engine.startswith("vllm"):  # whose defaults depend on the device's memory
        found |= {"total_bytes": budget.memory, "used_bytes": budget.weights}
        if not budget.given:
            del found["available_bytes"]
    name = _kv_dtype(engine, case.kv_format)
    if name is not None:
        found |= dict.fromkeys(("kv_dtype", "type_k", "type_v"), name)
    return found


def _kv_dtype(engine: str, kv_format: str) -> str | None:
    """The engine's name for a format; None to leave it at its default."""
    name = _KV_DTYPES.get(engine, {}).get(kv_format)
    if name is None and kv_format not in _SIXTEEN_BITS:
        raise KvhouseError(
            f"{engine} is not known to have a KV format like {kv_format}: plan for bf16, or name "
            "its own with an engine option"
        )
    return name
