"""Whether this machine has room for a model and its pool, before anything of it is read."""

from __future__ import annotations

from kvhouse.engine.available import available_memory
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec.model import ModelSpec
from kvhouse.units import bytes_text

#: What helps where the pool is as large as it was asked to be.
SMALLER_POOL = "ask for less with --kv-memory or --dtype, or for a smaller model"


def require_room(
    spec: ModelSpec, kv_bytes: int, dtype: str, advice: str = SMALLER_POOL, host_bytes: int = 0
) -> None:
    """Refuse what cannot fit in the memory that is free now; loading takes more for a while.

    Where the weights are not known from the description, only the rest is looked at.

    Args:
        spec: The model.
        kv_bytes: Bytes that keys and values will take.
        dtype: What its weights are widened or narrowed to.
        advice: What helps, for whoever asked.
        host_bytes: Bytes of a tier in this machine's memory.

    Raises:
        KvhouseError: There is too little.
    """
    available = available_memory()
    if available is None:
        return
    weights = _weight_bytes(spec, dtype)
    if (weights or 0) + kv_bytes + host_bytes <= available:
        return
    parts = [f"{bytes_text(kv_bytes)} of KV memory"]
    if weights is not None:
        parts.insert(0, f"{bytes_text(weights)} of weights")
    if host_bytes:
        parts.append(f"{bytes_text(host_bytes)} of host memory below it")
    wanted = " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
    raise KvhouseError(
        f"{spec.name}: {wanted} do not fit in the {bytes_text(available)} that this machine has "
        f"free: {advice}"
    )


def _weight_bytes(spec: ModelSpec, dtype: str) -> int | None:
    """Bytes of the weights in ``dtype``; None where the description does not tell."""
    try:
        return spec.weight_bytes(dtype)
    except UnsupportedModel:
        return None
