"""Mixtures of experts: how many of their weights a token uses, and how many a step reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of equal size, in layers that are alike.

    Experts that every token passes through (shared ones) are not among them: they count as any
    other matrix.

    Attributes:
        layers: Layers that have them.
        experts: Experts in one layer.
        active: Experts that one token is sent to in one layer, all different.
        parameters_each: Weights in the matrices of one expert.
    """

    layers: int
    experts: int
    active: int
    parameters_each: int

    @property
    def parameters(self) -> int:
        """Weights in the matrices of all experts in all layers."""
        return self.layers * self.experts * self.parameters_each

    @property
    def active_parameters(self) -> int:
        """Those that one token is multiplied with."""
        return self.layers * self.active * self.parameters_each

    def expected(self, tokens: int) -> float:
        """Experts of one layer that ``tokens`` tokens use, if each picks evenly and for itself.

        A given expert is left out by one token with probability ``1 - active / experts`` and by
        all with that to the power of ``tokens``, hence
        ``experts * (1 - (1 - active / experts) ** tokens)``. Real routers prefer some experts, so
        the true number lies between ``active`` and this.
        """
        return self.experts * (1 - (1 - self.active / self.experts) ** tokens)

    def most(self, tokens: int) -> int:
        """Experts of one layer that ``tokens`` tokens can use at most."""
        return min(self.experts, self.active * tokens)


@dataclass(frozen=True, slots=True)
class Read:
    """What one step reads of the weights, in parameters or in bytes.

    Attributes:
        floor: Certain: every token picks the same experts.
        expected: If routing is even and tokens are independent; equals ``floor`` without experts.
        most: No two tokens share an expert, as far as there are enough.
    """

    floor: int
    expected: int
    most: int
