"""The engine: a real model served from the house's pages. It alone knows torch."""

import os

from kvhouse.errors import KvhouseError

# Threads that spin while they wait make steps ten times slower as soon as another process wants
# one of the cores. The OpenMP runtime reads this once, when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise KvhouseError(
        f"the engine cannot start ({error}): pip install 'kvhouse[engine]'"
    ) from error

from kvhouse.engine.async_engine import AsyncEngine
from kvhouse.engine.config import EngineConfig
from kvhouse.engine.engine import Engine
from kvhouse.engine.outputs import Completion, FinishReason, Token, TokenLogprobs
from kvhouse.engine.sampling_params import SamplingParams

__all__ = [
    "AsyncEngine",
    "Completion",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "SamplingParams",
    "Token",
    "TokenLogprobs",
]
