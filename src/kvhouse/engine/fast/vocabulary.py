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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Means nothing for what is computed in inference.
_HARMLESS = _words("config training shape getattr dropout functional nn torch")

ATTENTION = _HARMLESS | _words(
    """
    ALL_ATTENTION_FUNCTIONS _attn_implementation eager_attention_forward get_interface update
    layer_idx attention_dropout residual_dropout contiguous reshape transpose view
    q_proj k_proj v_proj qkv_proj o_proj q_norm k_norm apply_rotary_pos_emb use_rope is_sliding
    head_dim num_attention_heads num_key_value_heads scaling sliding_window
    attn_logit_softcapping clip_qkv clamp_
    """
)
BLOCK = _HARMLESS | _words(
    """
    self_attn mlp input_layernorm post_attention_layernorm pre_feedforward_layernorm
    post_feedforward_layernorm residual_multiplier resid_attn_dropout resid_mlp_dropout
    """
)
MLP = _HARMLESS | _words(
    "gate_proj up_proj gate_up_proj down_proj act_fn activation_fn chunk residual_dropout"
)
DECODER = _HARMLESS | _words(
    """
    DynamicCache ValueError arange create_causal_mask create_sliding_window_causal_mask device
    embed_tokens embedding_multiplier embedding_dropout get_seq_length layers norm
    num_hidden_layers rotary_emb unsqueeze dict enumerate isinstance set bool copy tensor
    layer_types full_attention sliding_attention has_sliding_layers sliding_window
    _bidirectional_window_overlay or_mask_function use_bidirectional_attention
    """
)
HEAD = _HARMLESS | _words(
    """
    model lm_head vocab_size slice_logits_to_keep logits_scaling logit_scale
    final_logit_softcapping tanh loss_function load_balancing_loss_func router_aux_loss_coef
    router_logits output_router_logits num_experts num_experts_per_tok device
    attentions cache hidden_states last_hidden_state
    """
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
    unknown = sorted(name for name in _names(code) if name not in known and not _is_a_record(name))
    if unknown:
        raise NotUnderstood(f"its {called} uses {', '.join(unknown[:3])}")


def _is_a_record(name: str) -> bool:
    """Whether it is the class of what is returned."""
    return name.endswith(("OutputWithPast", "ModelOutput"))


def _names(code: CodeType) -> Iterator[str]:
    """Names that code uses, and those that it may ask for by their text."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier() and "getattr" in code.co_names:
            yield constant
