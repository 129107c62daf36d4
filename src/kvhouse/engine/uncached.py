"""Generation without a KV cache: every token computes its whole past again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


class Uncached:
    """Predicts what follows a sequence by computing all of it, with transformers' own attention.

    It exists to show why the cache is there.

    Args:
        model: A causal language model. Its attention is switched to torch's for each call and
            back afterwards, so that an engine can use the model as well.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """What follows the last token: float ``[vocab]``."""
        attention = self._model.config._attn_implementation
        self._model.set_attn_implementation("sdpa")
        try:
            output = self._model(
                input_ids=torch.tensor([list(token_ids)]), use_cache=False, logits_to_keep=1
            )
        finally:
            self._model.set_attn_implementation(attention)
        logits: torch.Tensor = output.logits[0, -1]
        return logits
