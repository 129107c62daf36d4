"""The engine: a real model served from the house's pages. It alone knows torch."""

from kvhouse.errors import KvhouseError

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise KvhouseError(
        f"the engine cannot start ({error}): pip install 'kvhouse[engine]'"
    ) from error

from kvhouse.engine.engine import Engine, EngineConfig
from kvhouse.engine.outputs import Completion, FinishReason, Token
from kvhouse.engine.sampler import SamplingParams

__all__ = ["Completion", "Engine", "EngineConfig", "FinishReason", "SamplingParams", "Token"]
