"""From a module of transformers to a block of ours, or why not."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import Linear

from kvhouse.engine.fast import vocabulary
from kvhouse.engine.fast.block import Attention, Block, GatedMLP, Weight
from kvhouse.engine.fast.norms import Function, understand_norm
from kvhouse.engine.fast.vocabulary import NotUnderstood, refuse_unknown
from kvhouse.engine.kv import LayerKV

_BEFORE_AND_AFTER = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
#: Names of the norms before attention, after it, before the MLP and after it.
_NORMS: tuple[tuple[str | None, ...], ...] = (
    ("input_layernorm", None, "post_attention_layernorm", None),
    ("input_layernorm", None, "pre_feedforward_layernorm", None),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    _BEFORE_AND_AFTER,
)


def understand_block(module: torch.nn.Module, layer: int, kept: LayerKV) -> Block:
    """The block that a module is by its structure; whether it computes the same must be tried.

    Args:
        module: A decoder layer.
        layer: Its number.
        kept: What it keeps, by the spec.

    Raises:
        NotUnderstood: It is none that we know.
    """
    refuse_unknown(module, vocabulary.BLOCK, "block")
    own: Any = module
    children = {name for name, _ in module.named_children()}
    names = next((names for names in _NORMS if _are(children, names)), None)
    if names is None:
        raise NotUnderstood(f"its block consists of {', '.join(sorted(children))}")
    attention = _attention(own.self_attn, layer, kept)
    norms = [None if name is None else understand_norm(getattr(own, name)) for name in names]
    return Block(
        attention,
        _mlp(own.mlp),
        (norms[0], norms[1], norms[2], norms[3]),
        float(getattr(own, "residual_multiplier", 1.0)),
    )


def _are(children: set[str], norms: tuple[str | None, ...]) -> bool:
    parts = children - {"resid_attn_dropout", "resid_mlp_dropout"}
    return parts == {"self_attn", "mlp", *filter(None, norms)}


def _attention(module: Any, layer: int, kept: LayerKV) -> Attention:  # noqa: ANN401
    refuse_unknown(module, vocabulary.ATTENTION, "attention")
    if kept.latent or len(kept.vectors) != 2:
        raise NotUnderstood("it keeps something else than keys and values")
    keys, values = kept.vectors
    if keys.size != values.size or keys.heads != values.heads:
        raise NotUnderstood("its keys and its values have different shapes")
    if getattr(module.config, "clip_qkv", None) is not None:
        raise NotUnderstood("it clips queries, keys and values")
    joined = ("qkv_proj",) if hasattr(module, "qkv_proj") else ("q_proj", "k_proj", "v_proj")
    norms = ("q_norm", "k_norm") if hasattr(module, "q_norm") else ()
    _refuse_other_weights(module, (*joined, "o_proj", *norms), "attention")
    qkv = tuple(_weight(getattr(module, name)) for name in joined)
    outputs = sum(len(weight) for weight, _ in qkv)
    heads = outputs // keys.size - 2 * keys.heads
    found = [understand_norm(getattr(module, name)) for name in norms]
    return Attention(
        layer,
        qkv,
        _weight(module.o_proj),
        heads,
        keys.heads,
        keys.size,
        float(module.scaling),
        getattr(module, "attn_logit_softcapping", None),
        (found[0], found[1]) if found else None,
        bool(found) and len(module.q_norm.weight) == heads * keys.size != keys.size,
        _is_turned(module),
    )


def _is_turned(module: Any) -> bool:  # noqa: ANN401
    """Some models turn only some layers; of others only those with a window."""
    by_window = "is_sliding" in inspect.unwrap(type(module).forward).__code__.co_names
    if by_window and module.sliding_window is not None:
        return bool(module.is_sliding)
    return bool(getattr(module, "use_rope", True))


def _mlp(module: Any) -> Function:  # noqa: ANN401
    """A gated MLP; any other is called as it is."""
    joined = ("gate_up_proj",) if hasattr(module, "gate_up_proj") else ("gate_proj", "up_proj")
    try:
        refuse_unknown(module, vocabulary.MLP, "MLP")
        _refuse_other_weights(module, (*joined, "down_proj"), "MLP")
        gate_up = tuple(_weight(getattr(module, name)) for name in joined)
        act = module.act_fn if hasattr(module, "act_fn") else module.activation_fn
        return GatedMLP(gate_up, _weight(module.down_proj), act)
    except (NotUnderstood, AttributeError):
        return OwnModule(module)


def _weight(layer: Linear) -> Weight:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


class OwnModule:
    """The model's own module, on packed tokens."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` of the same."""
        out = self.module(x[None])
        first: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return first.view_as(x)


def _refuse_other_weights(module: torch.nn.Module, names: tuple[str, ...], called: str) -> None:
    """Refuse a module that has weights of another name, or other layers than linear ones."""
    for name, _ in (*module.named_parameters(), *module.named_buffers()):
        if name.split(".")[0] not in names:
            raise NotUnderstood(f"its {called} has {name}")
    for name in names:
        if name.endswith("_proj") and type(getattr(module, name)) is not Linear:
            raise NotUnderstood(f"its {called}'s {name} is no linear layer")
