"""What a page or an image shows of drives side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhouse.layout import KVLayout
from kvhouse.replayer.recorder import Recording
from kvhouse.replayer.results import Distribution, ReplayResult
from kvhouse.units import GIB, MIB
from kvhouse.views.replay import head
from kvhouse.views.tables import visible


@dataclass(frozen=True, slots=True)
class Drive:
    """One drive and what was recorded of it."""

    result: ReplayResult
    recording: Recording

    @property
    def name(self) -> str:
        """The policy, and what goes with it."""
        return head(self.result)

    @property
    def used_bytes(self) -> float:
        """Bytes that held tokens, mean over time."""
        mean = self.result.ledger.mean_bytes
        return mean["used"] + mean["shared"]

    @property
    def held_bytes(self) -> float:
        """Bytes that requests held, mean over time."""
        mean = self.result.ledger.mean_bytes
        return self.used_bytes + mean["reserved"] + mean["internal"]

    @property
    def idle_bytes(self) -> float:
        """Bytes of the pool that held no tokens that are needed, mean over time."""
        return self.result.pool.bytes - self.used_bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """Drives of one trace, on one time axis.

    Attributes:
        trace: The trace's name.
        model: The model's name.
        device: The device's name.
        layout: How keys and values lie in blocks.
        drives: The drives, at least one.
    """

    trace: str
    model: str
    device: str
    layout: KVLayout
    drives: Sequence[Drive]

    @property
    def names(self) -> tuple[str, str, str]:
        """Trace, model and device as they are shown, without control characters."""
        return visible(self.trace), visible(self.model), visible(self.device)

    @property
    def end(self) -> float:
        """Seconds until the last drive's last token."""
        return max(drive.result.makespan_seconds for drive in self.drives)

    @property
    def timing(self) -> str:
        """What the times are, as all drives say."""
        return " and ".join(sorted({drive.result.timing for drive in self.drives}))


def size_text(size: float) -> str:
    """A size with three significant digits in GiB, or in MiB where that is less than one."""
    value, unit = (size / GIB, "GiB") if size >= GIB else (size / MIB, "MiB")
    digits = 0 if value >= 100 or not value else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def percentile(distribution: Distribution | None, name: str) -> float | None:
    """One of a distribution's percentiles; None where it is of nothing."""
    return None if distribution is None else float(getattr(distribution, name))
