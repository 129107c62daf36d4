"""A decoder block on packed tokens: attention over pages, then an MLP, around one stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import linear

from kvhouse.engine.fast.norms import Function


class Attends(Protocol):
    """What a block needs of an ``AttentionStep``."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scale: float,
        *,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """See ``AttentionStep.attend``."""
        ...


#: A linear layer's weight ``[outputs, inputs]`` and its bias.
Weight = tuple[torch.Tensor, torch.Tensor | None]

#: Cosines and sines of a step's positions, ``[T, 1, size]`` each.
Turn = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one layer.

    Attributes:
        layer: Number of the layer.
        qkv: Projections to queries, keys and values in this order, one or several of them, which
            together are ``[(heads + 2 * kv_heads) * size, hidden]``.
        out: Output projection.
        heads: Query heads.
        kv_heads: Heads of keys and of values.
        size: Elements of a head.
        scale: Factor on q·k.
        softcap: Where the scores pass through ``c * tanh(score / c)``.
        norms: What queries and keys pass through before they are turned, if anything.
        whole_norms: Whether these take all heads of a token together.
        turned: Whether queries and keys are turned by their positions.
    """

    layer: int
    qkv: tuple[Weight, ...]
    out: Weight
    heads: int
    kv_heads: int
    size: int
    scale: float
    softcap: float | None = None
    norms: tuple[Function, Function] | None = None
    whole_norms: bool = False
    turned: bool = True

    def __call__(self, x: torch.Tensor, step: Attends, turn: Turn) -> torch.Tensor:
        """Attend from ``[T, hidden]`` to the pages, this step's keys and values among them."""
        joined = project(x, self.qkv)
        inner = self.kv_heads * self.size
        query, key, value = torch.split(joined, [self.heads * self.size, inner, inner], -1)
        turned = self._heads(joined[:, :-inner]) if self.norms is None else self._normed(query, key)
        if self.turned:
            turned = rotate(turned, turn)
        query, key = turned[:, : self.heads], turned[:, self.heads :]
        scale, softcap = self.scale, self.softcap
        out = step.attend(self.layer, query, key, self._heads(value), scale, softcap=softcap)
        return linear(out.flatten(1), *self.out)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, heads, size]`` of ``[T, heads * size]``."""
        return x.view(len(x), x.shape[1] // self.size, self.size)

    def _normed(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Queries and keys through their norms, as heads one behind the other."""
        assert self.norms is not None
        normed = [
            self._heads(norm(part)) if self.whole_norms else norm(self._heads(part))
            for norm, part in zip(self.norms, (query, key), strict=True)
        ]
        return torch.cat(normed, dim=1)


def project(x: torch.Tensor, weights: Sequence[Weight]) -> torch.Tensor:
    """What linear layers give of one input, side by side: ``[T, outputs]``."""
    parts = [linear(x, *weight) for weight in weights]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def rotate(heads: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Turn pairs of elements half a vector apart (rotary embedding, Su et al. 2021).

    Args:
        heads: ``[T, heads, size]``.
        turn: Of the first elements of each head, an even number; the rest stay as they are.
    """
    cos, sin = turn
    size = cos.shape[-1]
    turned = heads[..., :size]
    low, high = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-high, low), dim=-1) * sin
    if size < heads.shape[-1]:
        turned = torch.cat((turned, heads[..., size:]), dim=-1)
    return turned.to(heads.dtype)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """``down(act(gate(x)) * up(x))``.

    Attributes:
        gate_up: Projections to gate and rest, one or two of them, together ``[2 * inner, hidden]``.
        down: ``[hidden, inner]``.
        act: The activation.
    """

    gate_up: tuple[Weight, ...]
    down: Weight
    act: Function

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden]`` of the same."""
        gate, up = project(x, self.gate_up).chunk(2, dim=-1)
        return linear(self.act(gate) * up, *self.down)


@dataclass(frozen=True, slots=True)
class Block:
    """A decoder block.

    Attributes:
        attention: Its attention.
        mlp: Its MLP, or the model's own.
        norms: Before attention, after it, before the MLP and after it; None where there is none.
        residual: Factor on what attention and MLP add to the stream.
    """

    attention: Attention
    mlp: Function
    norms: tuple[Function | None, Function | None, Function | None, Function | None]
    residual: float = 1.0

    def __call__(self, x: torch.Tensor, step: Attends, turn: Turn) -> torch.Tensor:
        """The stream ``[T, hidden]`` after this block."""
        before, after, before_mlp, after_mlp = self.norms
        branch = self.attention(before(x) if before else x, step, turn)
        x = self._add(x, after(branch) if after else branch)
        branch = self.mlp(before_mlp(x) if before_mlp else x)
        return self._add(x, after_mlp(branch) if after_mlp else branch)

    def _add(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return x + branch if self.residual == 1 else x + branch * self.residual
