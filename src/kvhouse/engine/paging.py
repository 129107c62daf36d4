"""What stands in for transformers' cache and attention: both lead to our pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from kvhouse.engine.kernels import AttentionStep
from kvhouse.engine.latent import attend_latent
from kvhouse.engine.state_cache import StateCache
from kvhouse.errors import UnsupportedModel

#: The name under which transformers finds the attention function; models get no mask then.
ATTENTION = "kvhouse"
#: The same for models that look at the mask themselves, such as those with an indexer: the one
#: that they get hides nothing.
MASKED_ATTENTION = "kvhouse_masked"

_Pair = tuple[torch.Tensor, torch.Tensor]


class Forward:
    """One forward pass over pages.

    Every layer first brings its new keys and values, as it would to transformers' cache, and then
    attends. A layer that reads what another one wrote brings nothing; it is known by the very
    tensors that it attends to.

    Args:
        step: The kernel's step.
        latent: Numbers of the layers that keep latents.

    Attributes:
        calls: Number of the layer whose pages were read, for each call of attention in turn.
    """

    def __init__(self, step: AttentionStep, latent: frozenset[int]) -> None:
        self.step = step
        self.latent = latent
        self.calls: list[int] = []
        self._brought: dict[int, _Pair] = {}
        # The tensors are kept with their layers: the id of one that is gone may be given again.
        self._written: dict[int, tuple[int, torch.Tensor]] = {}

    def bring(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Take a layer's new keys and values, or latents and rotary parts, ``[1, heads, T, dim]``.

        What attention is then called with must be these tensors themselves.
        """
        self._brought[layer] = key, value

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of one layer, ``[T, heads, dim]`` from ``[1, heads, T, dim]``.

        Or, of a batch with a token in each of its ``T`` rows, from ``[T, heads, 1, dim]``.

        Raises:
            UnsupportedModel: The layer does not do with its keys and values what a layer over
                pages can do.
        """
        query = _pack(query)
        q = query[0].transpose(0, 1)
        if not self._brought:
            layer = self._owner(key)
            self.calls.append(layer)
            return self.step.attend(layer, q, None, None, scale, softcap=softcap, sinks=sinks)
        if len(self._brought) > 1:
            both = " and ".join(map(str, sorted(self._brought)))
            raise UnsupportedModel(f"layers {both} cache keys before either attends to them")
        layer, brought = self._brought.popitem()
        self.calls.append(layer)
        new = _pack(brought[0]), _pack(brought[1])
        if layer in self.latent:
            if softcap is not None or sinks is not None:
                raise UnsupportedModel("its latent attention has sinks or a soft cap")
            return attend_latent(self.step, layer, module, query, new, value.shape[-1], scale)
        if key is not brought[0] or value is not brought[1]:
            raise UnsupportedModel("its attention changes keys or values after they are cached")
        self._written[id(key)] = layer, key
        k, v = (tensor[0].transpose(0, 1) for tensor in new)
        return self.step.attend(layer, q, k, v, scale, softcap=softcap, sinks=sinks)

    def _owner(self, key: torch.Tensor) -> int:
        if id(key) not in self._written:
            raise UnsupportedModel("its attention reads keys that it does not cache")
        return self._written[id(key)][0]


def _pack(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of one token each as one row: ``[1, heads, T, dim]`` of ``[T, heads, 1, dim]``."""
    return tensor.transpose(0, 2) if tensor.shape[0] > 1 else tensor


class PagedCache(StateCache):
    """The cache that a model is given: it keeps nothing and gives back what it is brought.

    Args:
        forward: The forward pass.
        first: Tokens before those of this pass; 0 for a pack, whose positions are given.
    """

    def __init__(self, forward: Forward, first: int = 0) -> None:
        super().__init__()
        self.forward = forward
        self.first = first

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: object,
        **__: object,
    ) -> _Pair:
        """Hand a layer's keys and values on to its attention."""
        self.forward.bring(layer_idx, key_states, value_states)
        return key_states, value_states

    def update_indexer(self, indexer_key_states: torch.Tensor, *_: object) -> torch.Tensor:
        """Where an indexer would select everything, none of its keys are kept."""
        return indexer_key_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - the interface
        """Tokens before those of this pass."""
        return self.first


_CURRENT: ContextVar[Forward] = ContextVar("kvhouse_forward")


@contextmanager
def under_way(forward: Forward) -> Iterator[None]:
    """Lead calls of attention to ``forward``.

    No argument of a model's forward pass reaches attention in every model.
    """
    token = _CURRENT.set(forward)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - who sees whom is the spec's word
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,  # noqa: ANN401 - each model passes arguments of its own
) -> tuple[torch.Tensor, None]:
    """Attend over pages; transformers calls it with ``[1, heads, T, dim]`` tensors."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _CURRENT.get().attend(module, query, key, value, scale, softcap, s_aux)
    return out.reshape(query.shape[0], query.shape[2], *out.shape[1:]), None


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    device: torch.device | None = None,
    **_: Any,  # noqa: ANN401 - the interface
) -> torch.Tensor:
    """A mask that hides nothing, of one element."""
    return torch.ones((), dtype=torch.bool, device=device).expand(
        batch_size, 1, q_length, kv_length
    )


AttentionInterface.register(ATTENTION, _attention)
AttentionInterface.register(MASKED_ATTENTION, _attention)
AttentionMaskInterface.register(MASKED_ATTENTION, _mask)
