"""How the engine can run a model: packed, one sequence at a time, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.spec.hf_config import read_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: ``packed``: all rows of a step in one forward pass. ``per_sequence``: a pass for each row.
Kind = Literal["packed", "per_sequence", "refused"]


@dataclass(frozen=True, slots=True)
class Capability:
    """How the engine can run a model.

    Attributes:
        kind: The way.
        reason: Why it is not packed; empty where it is.
        max_length: The longest request for which that holds, where the model takes longer ones.
    """

    kind: Kind
    reason: str = ""
    max_length: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.kind, "reason": self.reason, "max_length": self.max_length}


def capability(config: PreTrainedConfig) -> Capability:
    """How the engine can run models of this config."""
    try:
        spec = read_config(config.to_dict(), config.model_type, "its config")
    except KvhouseError as error:
        return Capability("refused", str(error))
    if any(part.state for layer in spec.layers for part in layer.parts):
        return Capability("per_sequence", "its layers keep recurrent states")
    return Capability("packed")


def refuse_unsupported(config: PreTrainedConfig) -> None:
    """Refuse a model that the engine would not compute exactly.

    Raises:
        UnsupportedModel: With the reason.
    """
    found = capability(config)
    if found.kind == "refused":
        raise UnsupportedModel(f"the engine cannot run {config.model_type}: {found.reason}")
