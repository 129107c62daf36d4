"""The families of decoders whose weights are counted, one declarative entry each.

An entry says what a ``config.json`` of the family states under which name, what it leaves out,
and which weights follow from it. The rules are those of transformers' config and model classes,
except that a size which a file leaves out is never filled with a class's own example size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from kvhouse.spec.fields import Fields

#: A trait of the family, or of one model in it when a flag of the config decides.
Switch = Callable[[Fields], bool]


def always(_: Fields) -> bool:
    """Every model of the family has it."""
    return True


def never(_: Fields) -> bool:
    """No model of the family has it."""
    return False


def by(flag: str, default: bool = False) -> Switch:
    """A flag of the config decides."""
    return lambda fields: fields.flag(flag, default)


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
        mlp_ratio: MLP width over hidden size where the config leaves the width out.
        position_padding: Rows of the learned position table beyond the longest context; None
            where positions are rotary.
        embedding_field: A field for the width of the embeddings, where it can be narrower.
        tied: Whether input and output embeddings are one where the config leaves the flag out.

    The others are the traits of ``weights.Form``.
    """

    model_type: str
    architecture: str
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kv_heads: Rule = Rule.OPTIONAL
    head_dim: Rule = Rule.OPTIONAL
    mlp_ratio: int | None = None
    position_padding: int | None = None
    embedding_field: str | None = None
    tied: bool = False
    gated_mlp: bool = True
    qkv_bias: Switch = never
    output_bias: Switch = never
    mlp_bias: Switch = never
    head_bias: Switch = never
    layer_norm: bool = False
    norm_weights: Switch = always
    layer_norms: int = 2
    final_norm: Switch = always
    qk_norm: Switch = never


def _opt_final_norm(fields: Fields) -> bool:
    removed = fields.flag("_remove_final_layer_norm", False)
    return fields.flag("do_layer_norm_before", True) and not removed


_FAMILIES = (
    Family(
        "llama",
        "LlamaForCausalLM",
        qkv_bias=by("attention_bias"),
        output_bias=by("attention_bias"),
        mlp_bias=by("mlp_bias"),
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        kv_heads=Rule.STATED,
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        kv_heads=Rule.STATED,
        qkv_bias=always,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        kv_heads=Rule.STATED,
        head_dim=Rule.STATED,
        qkv_bias=by("attention_bias"),
        output_bias=by("attention_bias"),
        qk_norm=always,
    ),
    Family("phi3", "Phi3ForCausalLM"),
    Family(
        "phi",
        "PhiForCausalLM",
        gated_mlp=False,
        qkv_bias=always,
        output_bias=always,
        mlp_bias=always,
        head_bias=always,
        layer_norm=True,
        layer_norms=1,
        qk_norm=by("qk_layernorm"),
    ),
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
        mlp_ratio=4,
        position_padding=0,
        tied=True,
        gated_mlp=False,
        qkv_bias=always,
        output_bias=always,
        mlp_bias=always,
        layer_norm=True,
    ),
    Family(
        "opt",
        "OPTForCausalLM",
        names={"intermediate_size": ("ffn_dim",)},
        kv_heads=Rule.DERIVED,
        head_dim=Rule.DERIVED,
        position_padding=2,
        embedding_field="word_embed_proj_dim",
        tied=True,
        gated_mlp=False,
        qkv_bias=by("enable_bias", True),
        output_bias=by("enable_bias", True),
        mlp_bias=by("enable_bias", True),
        layer_norm=True,
        norm_weights=by("layer_norm_elementwise_affine", True),
        final_norm=_opt_final_norm,
    ),
)

#: Every family that is read, by ``model_type``.
FAMILIES = {family.model_type: family for family in _FAMILIES}
