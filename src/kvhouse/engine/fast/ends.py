"""What stands before the first block and after the last: embedding, rotary, norm and head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from kvhouse.engine.fast import vocabulary
from kvhouse.engine.fast.norms import Function, understand_norm
from kvhouse.engine.fast.vocabulary import NotUnderstood, refuse_unknown


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a decoder.

    Attributes:
        embed: The model's own embedding.
        multiplier: Factor on what it gives.
        layers: The decoder's blocks.
        rotary: What gives cosines and sines.
        norm: Before the head.
        head: The model's own head.
        factor: Factor on the logits.
        softcap: ``c`` where the logits pass through ``c * tanh(logit / c)``.
    """

    embed: torch.nn.Module
    multiplier: float
    layers: torch.nn.ModuleList
    rotary: torch.nn.Module
    norm: Function
    head: torch.nn.Module
    factor: float
    softcap: float | None

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of the stream ``[S, hidden]``: ``[S, vocab]``."""
        return self.finish(self.head(self.norm(x)))

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        """What the model does to the head's output."""
        if self.factor != 1:
            logits = logits * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def stream(self, input_ids: torch.Tensor) -> torch.Tensor:
        """What the first block is given of ids ``[1, T]``: ``[T, hidden]``."""
        embedded: torch.Tensor = self.embed(input_ids)[0]
        return embedded if self.multiplier == 1 else embedded * self.multiplier


def understand_ends(model: PreTrainedModel) -> Ends:
    """The ends that a model has by its structure; whether they compute the same must be tried.

    Raises:
        NotUnderstood: They are none that we know.
    """
    whole: Any = model
    refuse_unknown(model, vocabulary.HEAD, "head")
    decoder: Any = getattr(whole, "model", torch.nn.Module())
    children = {name for name, _ in decoder.named_children()}
    if children != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        raise NotUnderstood(f"its decoder consists of {', '.join(sorted(children)) or 'nothing'}")
    if {name for name, _ in model.named_children()} != {"model", "lm_head"}:
        raise NotUnderstood("it has more than a decoder and a head")
    refuse_unknown(decoder, vocabulary.DECODER, "decoder")
    if getattr(model.config, "use_bidirectional_attention", False):
        raise NotUnderstood("its tokens see later ones")
    config = model.config
    return Ends(
        decoder.embed_tokens,
        float(getattr(decoder, "embedding_multiplier", 1.0)),
        decoder.layers,
        decoder.rotary_emb,
        understand_norm(decoder.norm),
        whole.lm_head,
        _factor(whole),
        getattr(config, "final_logit_softcapping", None),
    )


def _factor(model: Any) -> float:  # noqa: ANN401
    divided = getattr(model.config, "logits_scaling", None)
    return float(getattr(model, "logit_scale", 1.0 if divided is None else 1 / divided))
