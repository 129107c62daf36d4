"""How the models of transformers carry recurrent states through a forward pass.

Every carrier hands out and takes back the same thing: for each layer that has a state, by its
number, the layer's tensors with their batch dimension of 1. What the tensors mean is the slot's
concern (``engine.states``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from kvhouse.engine.state_cache import StateCache

_Cache = TypeVar("_Cache", bound=StateCache)
States = dict[int, list[torch.Tensor]]


class Carrier(Protocol):
    """Carries states into and out of the forward passes of one model."""

    def accepted(self, kind: type[_Cache]) -> type[_Cache]:
        """A kind of cache that does what ``kind`` does and that the model accepts."""
        ...

    def load(self, cache: StateCache, states: States | None) -> dict[str, Any]:
        """What a forward pass must be given besides the tokens.

        Args:
            cache: Of an accepted kind; models without attention may do without it.
            states: Where it goes on, which may be changed; None for the beginning of a text.
        """
        ...

    def collect(self, cache: StateCache, output: Any) -> States:  # noqa: ANN401 - models differ
        """The states that a forward pass left: from its cache, its output or the model."""
        ...


def carrier_of(model: PreTrainedModel) -> Carrier:
    """The carrier of a model, by its family."""
    family = _FAMILIES.get(model.config.model_type, CacheCarrier)
    return family(model)


class CacheCarrier:
    """Models whose states live in the cache that they are given; most do."""

    def __init__(self, _: PreTrainedModel) -> None:
        # Of each layer's tensors: whether it is a convolution's, and its number. Known after the
        # first pass.
        self._names: dict[int, list[tuple[bool, int]]] = {}

    def accepted(self, kind: type[_Cache]) -> type[_Cache]:
        """See ``Carrier.accepted``."""
        return kind

    def load(self, cache: StateCache, states: States | None) -> dict[str, Any]:
        """See ``Carrier.load``."""
        for layer, tensors in (states or {}).items():
            for (convolution, index), tensor in zip(self._names[layer], tensors, strict=True):
                (cache.convolutions if convolution else cache.recurrent)[layer, index] = tensor
        return {"cache": cache}

    def collect(self, cache: StateCache, output: Any) -> States:  # noqa: ANN401, ARG002
        """Convolutions first, then what is recurrent."""
        states: States = {}
        names: dict[int, list[tuple[bool, int]]] = {}
        for convolution, held in ((True, cache.convolutions), (False, cache.recurrent)):
            for layer, index in sorted(held):
                states.setdefault(layer, []).append(held[layer, index])
                names.setdefault(layer, []).append((convolution, index))
        self._names = names
        return states


class MiniMaxCarrier(CacheCarrier):
    """MiniMax insists on a cache of its own kind, which has other names for the same."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._kinds: dict[type, Any] = {}

    def accepted(self, kind: type[_Cache]) -> type[_Cache]:
        """See ``Carrier.accepted``."""
        from transformers.models.minimax.modeling_minimax import MiniMaxCache

        names = {
            "get_linear_cache": StateCache.get_recurrent_state,
            "set_linear_cache": lambda cache, layer, state: cache.update_recurrent_state(
                state, layer
            ),
        }
        if kind not in self._kinds:
            self._kinds[kind] = type("MiniMaxStates", (kind, MiniMaxCache), names)
        accepted: type[_Cache] = self._kinds[kind]
        return accepted


class RwkvCarrier(CacheCarrier):
    """RWKV 4 takes five tensors ``[1, width, layers]`` in a list."""

    def load(self, cache: StateCache, states: States | None) -> dict[str, Any]:  # noqa: ARG002
        """See ``Carrier.load``."""
        if states is None:
            return {"state": None}
        kinds = zip(*(states[layer] for layer in sorted(states)), strict=True)
        return {"state": [torch.stack(kind, dim=-1) for kind in kinds]}

    def collect(self, cache: StateCache, output: Any) -> States:  # noqa: ANN401, ARG002
        """See ``Carrier.collect``."""
        layers = range(output.state[0].shape[-1])
        return {layer: [kind[..., layer] for kind in output.state] for layer in layers}


class XLSTMCarrier(CacheCarrier):
    """xLSTM has a cache of its own, with three tensors a layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._model: Any = model

    def load(self, cache: StateCache, states: States | None) -> dict[str, Any]:  # noqa: ARG002
        """See ``Carrier.load``."""
        from transformers.models.xlstm.modeling_xlstm import xLSTMCache

        own: Any = xLSTMCache(self._model.config, 1, self._model.dtype)
        own.rnn_state.update({layer: tuple(held) for layer, held in (states or {}).items()})
        return {"cache": own}

    def collect(self, cache: StateCache, output: Any) -> States:  # noqa: ANN401, ARG002
        """See ``Carrier.collect``."""
        return {layer: list(held) for layer, held in output.cache.rnn_state.items()}


class GriffinCarrier(CacheCarrier):
    """RecurrentGemma keeps its states in its modules."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        blocks = enumerate(layer.temporal_block for layer in model.model.layers)
        self._blocks = {n: block for n, block in blocks if hasattr(block, "conv1d_state")}

    def load(self, cache: StateCache, states: States | None) -> dict[str, Any]:
        """See ``Carrier.load``."""
        for layer, block in self._blocks.items():
            columns, recurrent = states[layer] if states else (None, None)
            block.conv1d_state, block.rg_lru.recurrent_states = columns, recurrent
        return {"cache": cache}

    def collect(self, cache: StateCache, output: Any) -> States:  # noqa: ANN401, ARG002
        """See ``Carrier.collect``."""
        return {
            layer: [block.conv1d_state, block.rg_lru.recurrent_states]
            for layer, block in self._blocks.items()
        }


_FAMILIES: dict[str, Callable[[PreTrainedModel], Carrier]] = {
    "minimax": MiniMaxCarrier,
    "recurrent_gemma": GriffinCarrier,
    "rwkv": RwkvCarrier,
    "xlstm": XLSTMCarrier,
}
