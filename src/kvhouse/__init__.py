"""kvhouse, the house for an LLM's KV cache: plan it, replay it, run it, on one core."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvhouse.meters import METERS

if TYPE_CHECKING:
    from kvhouse.engine import Engine
    from kvhouse.layout import KVLayout
    from kvhouse.meters import Rates
    from kvhouse.planner import kv_cache_gb, plan
    from kvhouse.replayer import replay
    from kvhouse.spec import ModelSpec

__all__ = ["Engine", "KVLayout", "ModelSpec", "kv_cache_gb", "plan", "replay"]

# Imported on first use, so that `import kvhouse` loads neither numpy nor torch.
_HOMES = {
    "Engine": "kvhouse.engine",
    "KVLayout": "kvhouse.layout",
    "ModelSpec": "kvhouse.spec",
    "kv_cache_gb": "kvhouse.planner",
    "plan": "kvhouse.planner",
    "replay": "kvhouse.replayer",
}


def _engine_rates() -> Rates:
    """What the engine's own products reach here; see ``engine.machine.rates``."""
    measured: Rates = import_module("kvhouse.engine.machine").rates()
    return measured


METERS.append(_engine_rates)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name not in _HOMES:
        raise AttributeError(f"module 'kvhouse' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
