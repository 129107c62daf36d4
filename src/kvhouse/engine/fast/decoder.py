"""The forward pass of a decoder whose every part is understood."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from kvhouse.engine.fast.block import Block, Turn
from kvhouse.engine.fast.ends import Ends, understand_ends
from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.fast.recognise import understand_block
from kvhouse.engine.fast.trial import compare, compare_logits
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.fast.watch import Arguments, watch
from kvhouse.engine.kernels import AttentionKernel
from kvhouse.engine.packed import PackedStep


@dataclass(eq=False)
class FastDecoder:
    """Embedding, blocks, norm and head in a loop of our own; see ``Adapter``.

    Attributes:
        model: The model whose weights these are; it goes on working.
        kernel: Attention over the pool's pages.
        ends: What stands before the blocks and after them.
        blocks: The blocks, and with which arguments the rotary is asked for each.
        paths: For the load log.
    """

    model: PreTrainedModel
    kernel: AttentionKernel
    ends: Ends
    blocks: tuple[tuple[Block, Arguments], ...]
    paths: Paths

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        x = self.ends.stream(step.input_ids)
        attention = self.kernel.prepare(step)
        turns: dict[Arguments, Turn] = {}
        for block, how in self.blocks:
            if how not in turns:
                turns[how] = turn_of(self.ends, x, step.position_ids, how)
            x = block(x, attention, turns[how])
        return self.ends.logits(x[step.last])


def turn_of(ends: Ends, x: torch.Tensor, position_ids: torch.Tensor, how: Arguments) -> Turn:
    """Cosines and sines for a step, by the model's own rotary module."""
    more, named = how
    cos, sin = ends.rotary(x[None], position_ids, *more, **dict(named))
    return cos[0, :, None], sin[0, :, None]


@torch.inference_mode()
def understand(model: PreTrainedModel, kernel: AttentionKernel) -> FastDecoder:
    """The fast path of a model, each block tried against the original.

    Raises:
        NotUnderstood: A part of it is none that we know, or computes something else.
    """
    try:
        return _understand(model, kernel)
    except NotUnderstood:
        raise
    except Exception as error:  # of modules that are like ours in part only
        raise NotUnderstood(f"{type(error).__name__} ({error})") from error


def _understand(model: PreTrainedModel, kernel: AttentionKernel) -> FastDecoder:
    ends = understand_ends(model)
    if any(number not in kernel.kv.layers for number in range(len(ends.layers))):
        raise NotUnderstood("some of its layers keep no keys and values of their own")
    seen = watch(model, ends)
    blocks: list[tuple[Block, Arguments]] = []
    for number, module in enumerate(ends.layers):
        kept = kernel.kv.layers[number]
        try:
            block = understand_block(module, number, kept)
            turn = turn_of(ends, seen.inputs[number], seen.position_ids, seen.turns[number])
            how = seen.turns[number]
            compare(block, turn, kept, seen.inputs[number], seen.outputs[number])
        except NotUnderstood as error:
            raise NotUnderstood(f"block {number}: {error}") from error
        blocks.append((block, how))
    compare_logits(ends, seen)
    return FastDecoder(model, kernel, ends, tuple(blocks), Paths(len(blocks)))
