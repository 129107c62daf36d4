"""Norms: RMS with a weight in either of its two forms, or the model's own module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Function = Callable[[torch.Tensor], torch.Tensor]

#: The most by which the forms may differ from a module, of the largest output.
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


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
def understand_norm(module: torch.nn.Module, dtype: torch.dtype) -> RMSNorm | Function:
    """The norm that a module computes, found by trying; the module itself where it is no other."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    only = [name for name, _ in module.named_parameters()] == ["weight"]
    if not only or weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return module
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(4, len(weight), generator=generator).to(dtype)
    # Small ones show the epsilon.
    sample[2:] *= eps**0.5
    wanted = module(sample).float()
    for form in (RMSNorm(weight.float(), eps), RMSNorm(weight.float() + 1, eps)):
        error = (form(sample).float() - wanted).abs().max()
        if error <= _TOLERANCES.get(dtype, 0.0) * wanted.abs().max():
            return form
    return module
