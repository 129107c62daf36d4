"""A model's own forward pass on some tokens, with what passes between its parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from kvhouse.engine.fast.ends import Ends
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.quiet import quiet

#: Tokens of the trial.
TOKENS = 24

#: The arguments of a rotary module after the stream and the positions.
Arguments = tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]


@dataclass(slots=True)
class Seen:
    """What was seen.

    Attributes:
        inputs: The stream before each block, ``[T, hidden]``.
        outputs: And after it.
        turns: With which arguments each block's cosines and sines were asked for.
        input_ids: The tokens, ``[1, T]``.
        position_ids: Their positions, ``[1, T]``.
        logits: ``[T, vocab]``.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    turns: list[Arguments] = field(default_factory=list)
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@torch.inference_mode()
def watch(model: PreTrainedModel, ends: Ends) -> Seen:
    """Run the model on random tokens, by its own code.

    Raises:
        NotUnderstood: It passes other things between its parts than we know.
    """
    generator = torch.Generator().manual_seed(0)
    vocab = model.config.get_text_config(decoder=True).vocab_size
    ids = torch.randint(min(5, vocab - 1), vocab, (1, TOKENS), generator=generator)
    seen = Seen(ids, torch.arange(TOKENS)[None])
    asked: list[tuple[torch.Tensor, Arguments]] = []

    def on_rotary(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:  # noqa: ANN401
        more = tuple((name, kwargs[name]) for name in kwargs if name not in ("x", "position_ids"))
        asked.append((out[0], (args[2:], more)))

    def on_block(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:  # noqa: ANN401
        given = kwargs.get("position_embeddings")
        turn = next((how for cos, how in asked if given is not None and cos is given[0]), None)
        if turn is None or not args:
            raise NotUnderstood("its blocks are given something else than the stream and a turn")
        seen.inputs.append(args[0][0].clone())
        seen.outputs.append((out[0] if isinstance(out, tuple) else out)[0].clone())
        seen.turns.append(turn)

    attention = model.config._attn_implementation
    with ExitStack() as stack:
        hook(stack, ends.rotary, on_rotary)
        for block in ends.layers:
            hook(stack, block, on_block)
        stack.enter_context(quiet())
        model.set_attn_implementation(_attention_of(model))
        stack.callback(model.set_attn_implementation, attention)
        seen.logits = model(input_ids=ids, use_cache=False).logits[0]
    return seen


def _attention_of(model: PreTrainedModel) -> str:
    """Torch's own attention, which rounds least, or where it has no soft cap transformers'."""
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    return "sdpa" if model._supports_sdpa and not capped else "eager"


def hook(stack: ExitStack, module: torch.nn.Module, call: Callable[..., None]) -> None:
    """Call ``call`` after each forward pass of ``module`` as long as ``stack`` is open."""
    stack.callback(module.register_forward_hook(call, with_kwargs=True).remove)
