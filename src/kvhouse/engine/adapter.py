"""A transformers model whose attention reads and writes our pages."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from kvhouse.engine.kernels import AttentionKernel, AttentionStep
from kvhouse.engine.packed import PackedStep
from kvhouse.engine.support import refuse_unsupported
from kvhouse.errors import UnsupportedModel
from kvhouse.spec import ModelSpec

#: The name under which transformers finds the attention function.
ATTENTION = "kvhouse"

#: Arguments with which some models change what attention computes. A ``sliding_window`` is not
#: among them: where a ``ModelSpec`` says full attention, no window is shorter than the context.
_CHANGES_ATTENTION = ("attention_mask", "position_bias", "s_aux", "softcap")


class _Forward:
    """One forward pass: the kernel's step, and which layers have called it."""

    def __init__(self, step: AttentionStep) -> None:
        self.step = step
        self.layers: list[int] = []


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    kvhouse_forward: _Forward,
    **kwargs: Any,  # noqa: ANN401 - each model passes arguments of its own
) -> tuple[torch.Tensor, None]:
    """Attend over pages; transformers calls it with ``[1, heads, T, dim]`` tensors."""
    kwargs["attention_mask"] = attention_mask
    for name in _CHANGES_ATTENTION:
        if kwargs.get(name) is not None:
            kind = type(module).__name__
            raise UnsupportedModel(f"the engine cannot run {kind}: it passes {name} to attention")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    kvhouse_forward.layers.append(layer)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return kvhouse_forward.step.attend(layer, q, k, v, scaling)[None], None


AttentionInterface.register(ATTENTION, _attention)


class ModelAdapter:
    """Runs a causal language model of transformers on packed rows.

    Args:
        model: A model of a supported family. Its attention is switched over to our pages, so it
            is of no use outside any more.
        kernel: Attention over the pool's pages.
        spec: What the model keeps; every layer in it must call attention, once and in order.

    Raises:
        UnsupportedModel: The engine would not compute this model exactly.
    """

    def __init__(self, model: PreTrainedModel, kernel: AttentionKernel, spec: ModelSpec) -> None:
        refuse_unsupported(model.config)
        model.set_attn_implementation(ATTENTION)
        if model.config._attn_implementation != ATTENTION:
            raise UnsupportedModel(
                f"{type(model).__name__} does not let its attention be replaced, so the engine "
                "cannot run it"
            )
        self.model = model.train(mode=False)
        self.kernel = kernel
        self._layers = list(range(len(spec.layers)))

    @torch.inference_mode()
    def forward(self, step: PackedStep) -> torch.Tensor:
        """Compute all rows, and the logits ``[S, vocab]`` of those that sample."""
        forward = _Forward(self.kernel.prepare(step))
        output = self.model(
            input_ids=step.input_ids,
            position_ids=step.position_ids,
            use_cache=False,
            logits_to_keep=step.last,
            kvhouse_forward=forward,
        )
        if forward.layers != self._layers:
            raise UnsupportedModel(
                f"{type(self.model).__name__} called attention for layers {forward.layers}, "
                f"expected each of {len(self._layers)} once: the engine cannot run it"
            )
        logits: torch.Tensor = output.logits[0]
        return logits
