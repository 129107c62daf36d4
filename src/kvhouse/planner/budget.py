"""What a device's memory leaves for keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.spec.model import ModelSpec

#: Share of a device's memory that an engine uses at all; the rest is for everything else that
#: lives there. vLLM's ``gpu_memory_utilization`` has the same default.
DEFAULT_UTILIZATION = 0.9


@dataclass(frozen=True, slots=True)
class Budget:
    """A device's memory, divided; all in bytes.

    Attributes:
        memory: What a process can have of the device: as the driver reports it, where known.
        reserve: Left to the engine and others: activations, graphs, the driver.
        weights: The model.
        kv: The pool for keys and values, 0 where there is no room for any.
        missing: What weights and a given ``kv`` lack to fit, 0 where they fit.
        given: Whether ``kv`` was set by the user and not derived from the rest.
    """

    memory: int
    reserve: int
    weights: int
    kv: int
    missing: int
    given: bool

    def pool_bytes(self) -> int:
        """``kv``, where there is any.

        Raises:
            KvhouseError: The weights leave no memory for keys and values.
        """
        if not self.kv:
            raise KvhouseError(
                f"the weights take {self.weights:,} bytes of the {self.memory - self.reserve:,} "
                "usable ones and leave none for keys and values: choose narrower weights, a "
                "larger device, more of them (tensor parallel), or set the KV memory yourself"
            )
        return self.kv


def kv_budget(
    spec: ModelSpec,
    device: Device,
    weight_dtype: str | None = None,
    utilization: float = DEFAULT_UTILIZATION,
    kv_memory: int | None = None,
) -> Budget:
    """Divide a device's memory among the engine's reserve, the weights and the KV pool.

    Raises:
        KvhouseError: ``utilization`` is not in (0, 1], or ``kv_memory`` is not positive.
    """
    if not 0 < utilization <= 1:
        raise KvhouseError(f"utilization {utilization}: give a share above 0 and at most 1")
    if kv_memory is not None and kv_memory < 1:
        raise KvhouseError(f"KV memory of {kv_memory} bytes: must be at least 1 byte")
    memory = device.usable_bytes
    usable = int(memory * utilization)
    weights = spec.weight_bytes(weight_dtype)
    left = usable - weights
    return Budget(
        memory=memory,
        reserve=memory - usable,
        weights=weights,
        kv=max(0, left) if kv_memory is None else kv_memory,
        missing=max(0, (kv_memory or 0) - left),
        given=kv_memory is not None,
    )
