"""One way to ask for any engine's view of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.block_pools import POOLS, PoolOptions, block_pool
from kvhouse.planner.engines.llama_cells import LlamaCppOptions
from kvhouse.planner.engines.llama_cpp import llama_cpp
from kvhouse.planner.engines.option_values import check
from kvhouse.planner.engines.sglang import sglang
from kvhouse.planner.engines.sglang_options import SglangOptions
from kvhouse.planner.engines.slots import SLOTS, SlotOptions, slot_cache
from kvhouse.planner.engines.transformers import dynamic_cache
from kvhouse.planner.engines.view import EngineView
from kvhouse.planner.engines.vllm_options import VllmOptions
from kvhouse.planner.engines.vllm_v0 import vllm_v0
from kvhouse.planner.engines.vllm_v1 import vllm_v1
from kvhouse.spec.fields import show
from kvhouse.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine: the class of its options, and its rules."""

    options: type[Any]
    rules: Callable[[ModelSpec, Any], EngineView]

    @property
    def option_names(self) -> tuple[str, ...]:
        """The options that it has."""
        return tuple(field.name for field in fields(self.options))


def _pool(name: str) -> Engine:
    return Engine(PoolOptions, lambda spec, options: block_pool(POOLS[name], spec, options))


def _slots(name: str) -> Engine:
    return Engine(SlotOptions, lambda spec, options: slot_cache(SLOTS[name], spec, options))


#: Every engine that decodes text, by the name that ``--engine`` takes.
ENGINES: dict[str, Engine] = {
    "vllm": Engine(VllmOptions, vllm_v1),
    "vllm-v0": Engine(VllmOptions, vllm_v0),
    "sglang": Engine(SglangOptions, sglang),
    "llama.cpp": Engine(LlamaCppOptions, llama_cpp),
    "transformers": Engine(SlotOptions, dynamic_cache),
    **{name: _pool(name) for name in POOLS},
    **{name: _slots(name) for name in SLOTS},
}


def view(engine: str, spec: ModelSpec, **options: object) -> EngineView:
    """How ``engine`` holds ``spec``, and what its log will say.

    Args:
        engine: A key of ``ENGINES``.
        spec: The whole model; options such as ``tp`` spread it over ranks.
        options: The engine's own, as the attributes of its class of options describe them; each
            is left at the engine's default where it is not given.

    Raises:
        KvhouseError: No such engine or option, or a value out of range.
        UnsupportedModel: The engine cannot hold the model so, or how it does is not known.
    """
    found = ENGINES.get(engine)
    if found is None:
        raise KvhouseError(f"unknown engine {show(engine)}: choose one of {', '.join(ENGINES)}")
    for name in options:
        if name not in found.option_names:
            known = ", ".join(found.option_names)
            raise KvhouseError(f"{engine} has no option {show(name)}: it has {known}")
    check(found.options, options)
    return found.rules(spec, found.options(**options))
