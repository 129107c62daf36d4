"""What a module's forward pass may do for us to say that we understand it.

A module's structure shows its weights, not what its code does with them: a clamp that ordinary
inputs never reach, or a factor that begins at some position, would pass any trial. So the names
that the code itself uses must all be ones that we know; one more, and the module is left alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType

import torch

from kvhouse.errors import UnsupportedModel

#: Means nothing for what is computed in inference.
_HARMLESS = frozenset(
    ("config", "training", "shape", "getattr", "dropout", "functional", "nn", "torch")
)

ATTENTION = _HARMLESS | frozenset(
    "ALL_ATTENTION_FUNCTIONS _attn_implementation apply_rotary_pos_emb attention_dropout "
    "contiguous eager_attention_forward get_interface head_dim layer_idx o_proj reshape scaling "
    "transpose update view q_proj k_proj v_proj qkv_proj q_norm k_norm sliding_window "
    "attn_logit_softcapping use_rope num_attention_heads num_key_value_heads "
    "residual_dropout clip_qkv clamp_ is_sliding".split()
)
BLOCK = _HARMLESS | frozenset(
    "self_attn mlp input_layernorm post_attention_layernorm pre_feedforward_layernorm "
    "post_feedforward_layernorm residual_multiplier resid_attn_dropout resid_mlp_dropout".split()
)
MLP = _HARMLESS | frozenset(
    "gate_proj up_proj gate_up_proj down_proj act_fn activation_fn chunk residual_dropout".split()
)
DECODER = _HARMLESS | frozenset(
    "DynamicCache ValueError arange create_causal_mask create_sliding_window_causal_mask device "
    "embed_tokens get_seq_length layers norm num_hidden_layers rotary_emb unsqueeze "
    "sliding_window dict enumerate isinstance set bool copy tensor layer_types full_attention "
    "sliding_attention has_sliding_layers embedding_multiplier "
    "embedding_dropout _bidirectional_window_overlay or_mask_function use_bidirectional_attention".split()
)
HEAD = _HARMLESS | frozenset(
    "attentions cache hidden_states last_hidden_state lm_head loss_function model "
    "slice_logits_to_keep vocab_size final_logit_softcapping tanh logits_scaling "
    "logit_scale router_logits output_router_logits router_aux_loss_coef device "
    "load_balancing_loss_func num_experts num_experts_per_tok".split()
)


class NotUnderstood(UnsupportedModel):
    """A module does what the fast path does not know; the message says what."""


def refuse_unknown(module: torch.nn.Module, known: frozenset[str], called: str) -> None:
    """Refuse a module whose forward pass uses names that are not ``known``.

    Args:
        module: The module.
        known: One of the vocabularies above.
        called: What to call the module in the error.

    Raises:
        NotUnderstood: It uses another name.
    """
    code = inspect.unwrap(type(module).forward).__code__
    unknown = sorted(
        name for name in _names(code) if name not in known and not _is_a_record(name)
    )
    if unknown:
        raise NotUnderstood(f"its {called} uses {', '.join(unknown[:3])}")


def _is_a_record(name: str) -> bool:
    """Whether it is the class of what is returned."""
    return name.endswith(("OutputWithPast", "ModelOutput"))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
