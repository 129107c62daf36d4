"""This machine, measured: memory, read bandwidth and the rates of matrix products."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from kvhouse.devices import kept, others
from kvhouse.devices.device import WIDER, Device
from kvhouse.errors import KvhouseError
from kvhouse.meters import METERS, Rates

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def measure() -> Device:
    """This machine's figures: those that are kept of it, or else measured now.

    Raises:
        KvhouseError: The operating system does not tell its memory.
    """
    found = kept.read(kept.kept_at(len(others.cores())), memory_bytes())
    return found or measure_anew()


def measure_anew() -> Device:
    """Measure this machine, and keep what was found unless others computed meanwhile.

    Bandwidth: one thread per core reads an array of its own, far larger than the caches.
    FLOP/s: numpy's float32 matrix product, and whatever the rooms above can measure, the engine
    its own products; the fastest counts. Of several passes the fastest counts likewise: a floor
    must not be higher than what the machine can do.

    Raises:
        KvhouseError: The operating system does not tell its memory.
    """
    from kvhouse.devices import passes

    print("kvhouse: measuring this machine, for some seconds", file=sys.stderr)
    cores, memory = len(others.cores()), memory_bytes()
    watch = others.Watch()
    flops = {"float32": passes.best_rate(passes.product_rate)}
    found = [Rates(passes.read_bandwidth(cores, memory), flops, "numpy's reads and products")]
    for meter in METERS:
        # What is broken is told where a model is loaded; here the others' figures do.
        with suppress(ImportError, OSError):
            found.append(meter())
    device = Device(
        name="local",
        title=f"this machine ({cores} cores, {platform.machine()})",
        memory_bytes=memory,
        bandwidth=max(rates.bandwidth for rates in found),
        flops=fastest(*(rates.flops for rates in found)),
        basis="measured",
        source="; ".join(rates.source for rates in found),
    )
    return _said(device, watch.share(), cores)


def fastest(*found: Mapping[str, float]) -> dict[str, float]:
    """The highest rate of each dtype, left out where a wider type is faster.

    Values can be multiplied in any type that holds them exactly, so the machine's rate for a
    dtype is at least that of each such type; ``Device.flops_for`` goes by that.
    """
    best: dict[str, float] = {}
    for flops in found:
        for dtype, rate in flops.items():
            best[dtype] = max(rate, best.get(dtype, 0.0))
    return {
        dtype: rate
        for dtype, rate in best.items()
        if all(rate > best.get(wider, 0.0) for wider in WIDER[dtype])
    }


def _said(device: Device, taken: float, cores: int) -> Device:
    """The device with when and how undisturbed it was measured; kept, if it was."""
    when = datetime.now(UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    source = f"{device.source}; each the fastest of several passes, {when}"
    if taken < others.DISTURBED:
        device = replace(device, source=source)
        kept.keep(device, kept.kept_at(cores))
        return device
    disturbed = (
        f"other work took {taken:.0%} of the cores meanwhile: rates may be too low, and floors "
        "that follow from them too high"
    )
    print(f"kvhouse: warning: {disturbed}", file=sys.stderr)
    return replace(device, source=f"{source}; {disturbed}")


def memory_bytes() -> int:
    """Physical memory, or the limit of this process's control group where that is smaller.

    Raises:
        KvhouseError: The operating system does not tell.
    """
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        raise KvhouseError("device local: this operating system does not tell its memory") from None
    return min([total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    limits = []
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return limits
