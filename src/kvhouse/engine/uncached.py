"""Generation without a KV cache: every token computes its whole past again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.packed import PackedStep


class UncachedAdapter:
    """Runs a causal language model of transformers as it is, on all tokens of each request.

    It exists to show why the cache is there: nothing is read from a pool nor written to it.

    Args:
        model: The model. Its attention is torch's for each call, and what it was afterwards, so
            that an engine can use the model as well.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.paths = Paths(reason="without a KV cache all is computed again")
        self.model = model.train(mode=False)

    def forward(self, step: PackedStep) -> torch.Tensor:
        """The logits ``[S, vocab]`` of the rows that sample, one request after the other."""
        rows = [packed for packed in step.rows if packed.row.samples]
        logits = [self.logits(step.known[row.row.request][: row.length]) for row in rows]
        if not logits:
            return torch.empty(0, self.model.get_output_embeddings().weight.shape[0])
        return torch.stack(logits)

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """What follows the last of these tokens: ``[vocab]``."""
        attention = self.model.config._attn_implementation
        self.model.set_attn_implementation("sdpa")
        try:
            output = self.model(
                input_ids=torch.tensor([list(token_ids)]), use_cache=False, logits_to_keep=1
            )
        finally:
            self.model.set_attn_implementation(attention)
        logits: torch.Tensor = output.logits[0, -1]
        return logits
