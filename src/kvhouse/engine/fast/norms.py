"""Norms: RMS with a weight in either of its two forms, or the model's own module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

Function = Callable[[torch.Tensor], torch.Tensor]

#: The most by which a form may differ from a module in float32, relative to each element.
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """``x / rms(x) * weight`` over the last dimension (Zhang and Sennrich 2019).

    Attributes:
        weight: float32 ``[size]``; where a model keeps it less one, the one is added.
        eps: Added to the mean square.
    """

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise ``[..., size]``; computed in float32, given in the dtype of ``x``."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


@torch.inference_mode()
def understand_norm(module: torch.nn.Module) -> RMSNorm | Function:
    """The norm that a module computes, found by trying; the module itself where it is no other.

    A copy is tried in float32, where a weight of 100 less one can be told from one of 100.
    """
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    only = [name for name, _ in module.named_parameters()] == ["weight"]
    if not only or weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return module
    sample = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(0))
    sample[2:] *= eps**0.5  # small enough to show the epsilon
    wanted = copy.deepcopy(module).float()(sample)
    for form in (RMSNorm(weight.float(), eps), RMSNorm(weight.float() + 1, eps)):
        if torch.allclose(form(sample), wanted, rtol=_TOLERANCE, atol=1e-12):
            return form
    return module
