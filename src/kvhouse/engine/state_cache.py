"""The part of a transformers cache in which models keep recurrent states."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache


class StateCache(Cache):
    """Holds the states of one forward pass; what attention keeps is the subclasses' concern.

    Attributes:
        convolutions: Inputs that convolutions still need, ``[1, channels, columns]``, by layer and
            the convolution's number in it.
        recurrent: Recurrent states, likewise.
    """

    def __init__(self) -> None:
        Cache.__init__(self, layers=[])  # a model's own kind of cache may stand between
        self.convolutions: dict[tuple[int, int], torch.Tensor] = {}
        self.recurrent: dict[tuple[int, int], torch.Tensor] = {}

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002 - the interface
        """Nothing is ever rolled back."""
        return False

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether there is a state to go on from."""
        return any(
            layer_idx in (None, layer) and state_idx in (None, index)
            for layer, index in (*self.convolutions, *self.recurrent)
        )

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """What a convolution saw last; None at the beginning of a text."""
        return self.convolutions.get((layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """A layer's recurrent state; None at the beginning of a text."""
        return self.recurrent.get((layer_idx, state_idx))

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        *,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Append inputs, keep the last, and give back all that there are for a moment."""
        before = self.convolutions.get((layer_idx, state_idx))
        if before is None:
            columns = conv_kernel_size or conv_states.shape[-1]
            short = max(0, columns - conv_states.shape[-1])
            seen = torch.nn.functional.pad(conv_states, (short, 0))
        else:
            columns = before.shape[-1]
            seen = torch.cat((before, conv_states), dim=-1)
        self.convolutions[layer_idx, state_idx] = seen[..., -columns:].clone()
        return seen

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> torch.Tensor:
        """Take in a layer's new state."""
        self.recurrent[layer_idx, state_idx] = recurrent_states
        return recurrent_states
