"""The families of decoders whose sizes must be stated, one declarative entry each.

An entry says what a ``config.json`` of the family states under which name and what it may leave
out. The rules are those of transformers' config classes, except that a size which a file leaves
out is never filled with a class's own example size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class Rule(Enum):
    """How a config of the family states a size that could be derived from the others."""

    #: Stated or derived.
    OPTIONAL = auto()
    #: Always stated: transformers would put an example model's size in its place.
    STATED = auto()
    #: Always derived; a field of that name means nothing.
    DERIVED = auto()


@dataclass(frozen=True, slots=True)
class Family:
    """How to read one family's configs.

    Attributes:
        model_type: The config's ``model_type``.
        architecture: The class with the language-model head, the only one that is read.
        names: For a field's standard name, the names that it has here, the usual one first.
        kv_heads: How ``num_key_value_heads`` is stated; derived, it is the number of query heads.
        head_dim: How ``head_dim`` is stated; derived, it is the hidden size over the heads.
        width_needed: Whether the MLP's width must be stated.
        embedding_field: A field for the width of the embeddings, where it can be narrower.
    """

    model_type: str
    architecture: str
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kv_heads: Rule = Rule.OPTIONAL
    head_dim: Rule = Rule.OPTIONAL
    width_needed: bool = True
    embedding_field: str | None = None


_FAMILIES = (
    Family("llama", "LlamaForCausalLM"),
    Family("mistral", "MistralForCausalLM", kv_heads=Rule.STATED),
    Family("qwen2", "Qwen2ForCausalLM", kv_heads=Rule.STATED),
    Family("qwen3", "Qwen3ForCausalLM", kv_heads=Rule.STATED, head_dim=Rule.STATED),
    Family("phi3", "Phi3ForCausalLM"),
    Family("phi", "PhiForCausalLM"),
    Family(
        "gpt2",
        "GPT2LMHeadModel",
        names={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
            "intermediate_size": ("n_inner",),
        },
        kv_heads=Rule.DERIVED,
        head_dim=Rule.DERIVED,
        width_needed=False,
    ),
    Family(
        "opt",
        "OPTForCausalLM",
        names={"intermediate_size": ("ffn_dim",)},
        kv_heads=Rule.DERIVED,
        head_dim=Rule.DERIVED,
        embedding_field="word_embed_proj_dim",
    ),
)

#: Every family that is read, by ``model_type``.
FAMILIES = {family.model_type: family for family in _FAMILIES}
