"""Which models the engine can run; every other one is refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhouse.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: Values of ``model_type`` whose forward pass is known to be right on packed rows.
FAMILIES = ("gpt2", "llama", "mistral", "opt", "phi", "phi3", "qwen2", "qwen3")

#: RoPE kinds whose frequencies follow the largest position in the batch: packing another request
#: next to a short one would change the short one's answer.
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


def refuse_unsupported(config: PreTrainedConfig) -> None:
    """Refuse a model that the engine would not compute exactly.

    Windows are not looked at here: a ``ModelSpec`` of full-attention layers already says that no
    layer forgets anything within the longest context.

    Raises:
        UnsupportedModel: The family or the RoPE kind is not supported.
    """
    family = config.model_type
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"the engine cannot run model type {family!r}: it runs {', '.join(FAMILIES)}"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind in _BATCH_DEPENDENT_ROPE:
        raise UnsupportedModel(
            f"the engine cannot run RoPE type {kind!r} of this {family} model: its frequencies "
            "follow the longest request in the batch, so answers would depend on the neighbours"
        )
