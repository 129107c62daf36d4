"""Whether this machine has room for a model and its pool, before anything of it is read."""

from __future__ import annotations

from kvhouse.engine.available import available_memory
from kvhouse.engine.config import EngineConfig
from kvhouse.engine.load import describe_model
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.units import bytes_text


def require_room(model: str, config: EngineConfig, dtype: str) -> None:
    """Refuse what cannot fit in the memory that is free now; loading takes more for a while.

    Where the weights are not known from the description, only the pool is looked at.

    Raises:
        KvhouseError: There is too little.
    """
    available = available_memory()
    try:
        weights = describe_model(model).weight_bytes(dtype)
    except UnsupportedModel:
        weights = 0
    if available is not None and weights + config.kv_memory > available:
        raise KvhouseError(
            f"{model}: {bytes_text(weights)} of weights and {bytes_text(config.kv_memory)} of KV "
            f"memory do not fit in the {bytes_text(available)} that this machine has free: "
            "ask for less with --kv-memory or --dtype, or for a smaller model"
        )
