"""Which blocks a program can compute, and their matrices as it multiplies with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, silu

from kvhouse.engine.fast.block import Block, GatedMLP, Weight
from kvhouse.engine.fast.ends import Ends
from kvhouse.engine.fast.norms import Function, RMSNorm
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.kernels.cpu.linear import Activation, Linear, cannot


@dataclass(frozen=True, slots=True)
class BlockProducts:
    """The matrices of a block, by their inputs: see ``Attention`` and ``GatedMLP``."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Products:
    """All matrices of a decoder, and its last norm."""

    blocks: tuple[BlockProducts, ...]
    head: Linear
    norm: RMSNorm


def products(blocks: Sequence[Block], ends: Ends) -> Products:
    """The matrices of a decoder.

    Raises:
        NotUnderstood: A program cannot compute it.
    """
    if type(ends.head) is not torch.nn.Linear:
        raise NotUnderstood("its head is no linear layer")
    return Products(
        tuple(map(_of_block, blocks)),
        _linear((ends.head.weight, ends.head.bias)),
        rms(ends.norm),
    )


def rms(norm: Function) -> RMSNorm:
    """The norm, which must be an RMS norm of a size that vectors divide."""
    if not isinstance(norm, RMSNorm) or len(norm.weight) % 16:
        raise NotUnderstood("one of its norms is not compiled")
    return norm


def _of_block(block: Block) -> BlockProducts:
    mlp, attention = block.mlp, block.attention
    if not isinstance(mlp, GatedMLP):
        raise NotUnderstood("its MLP is not compiled")
    if block.residual != 1:
        raise NotUnderstood("factors on what blocks add are not compiled")
    for norm in (*block.norms, *(attention.norms or ())):
        if norm is not None:
            rms(norm)
    return BlockProducts(
        _linear(*attention.qkv),
        _linear(attention.out),
        _linear(*_halves(mlp.gate_up), activation=_activation(mlp.act)),
        _linear(mlp.down),
    )


def _halves(weights: Sequence[Weight]) -> Sequence[Weight]:
    """Gate and rest, which may lie in one weight."""
    if len(weights) > 1:
        return weights
    weight, bias = weights[0]
    size = len(weight) // 2
    biases = (None, None) if bias is None else torch.split(bias, size)
    return list(zip(torch.split(weight, size), biases, strict=True))


def _linear(*parts: Weight, activation: Activation | None = None) -> Linear:
    weights = [weight for weight, _ in parts]
    reason = cannot(weights)
    if reason:
        raise NotUnderstood(reason)
    biases = [bias for _, bias in parts]
    return Linear(weights, biases, activation=activation, gated=activation is not None)


def _activation(act: Function) -> Activation:
    """The name of an activation, found by trying."""
    sample = torch.linspace(-8, 8, 257)
    wanted = act(sample)
    known: tuple[tuple[Activation, torch.Tensor], ...] = (
        ("silu", silu(sample)),
        ("gelu_tanh", gelu(sample, approximate="tanh")),
        ("gelu", gelu(sample)),
    )
    for name, values in known:
        if torch.allclose(values, wanted, rtol=1e-5, atol=1e-6):
            return name
    raise NotUnderstood("its activation is not compiled")
