"""What the ranks of tensor parallelism spend on adding up what each of them computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvhouse.devices import Device
from kvhouse.spec.model import DTYPE_BYTES, ModelSpec


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums over the ranks in every step, at the full bandwidth of one link.

    Each layer sums twice, after attention and after its MLP (Megatron-LM, Shoeybi et al. 2019,
    arXiv 1909.08053). A sum over ``n`` ranks sends at least ``2 (n - 1) / n`` of its bytes from
    each (Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002). What starts a sum is not
    counted, nor is anything hidden behind the products.

    Attributes:
        ranks: Devices that share every layer.
        summed_bytes: Bytes that the sums of one token are of, over all layers.
        link: Which link they are counted over: the ranks' own, or by way of the host; None where
            neither is known, and then nothing is counted.
        bandwidth: Bytes per second of that link, one direction.
    """

    ranks: int
    summed_bytes: int
    link: Literal["peer", "host"] | None
    bandwidth: float | None

    @classmethod
    def of(cls, spec: ModelSpec, device: Device, ranks: int) -> Sums:
        """Of the whole model ``spec`` on so many of ``device``."""
        row = spec.hidden_size * DTYPE_BYTES[spec.dtype]
        summed = 2 * len(spec.layers) * row
        if device.peer_link:
            return cls(ranks, summed, "peer", device.peer_link)
        return cls(ranks, summed, "host" if device.host_link else None, device.host_link or None)

    @property
    def counted(self) -> bool:
        """Whether they take any time here."""
        return self.ranks > 1 and self.bandwidth is not None

    def seconds(self, tokens: int) -> float:
        """The least time of a step's sums of so many tokens; 0 where they are not counted."""
        if self.ranks == 1 or self.bandwidth is None:
            return 0.0
        return self.summed_bytes * tokens * 2 * (self.ranks - 1) / self.ranks / self.bandwidth
