"""Device files: a device of the user's own, under the keys of ``kvhouse devices NAME --json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from kvhouse.devices.device import DTYPES, Device
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import Fields, show, show_path
from kvhouse.spec.json_file import read_json_object

#: No memory is larger than 1 PiB, and no rate higher than this in bytes or operations a second.
MOST_BYTES = 2**50
MOST_RATE = 1e20

_KEYS = {
    *("name", "title", "vendor", "family", "year", "memory_bytes", "driver_bytes", "bandwidth"),
    *("host_link", "peer_link", "flops", "basis", "source", "sources"),
}


def read_device(path: str | Path) -> Device:
    """The device that a JSON file describes.

    ``memory_bytes`` (a whole number) and ``bandwidth`` (bytes per second) must be there; all
    other keys of ``Device.to_dict`` may be. ``basis`` and ``sources`` say nothing about figures
    that may have been changed, so they are read over: the device's basis is ``given``.

    Raises:
        KvhouseError: Unreadable, a key that is not known or missing, or a value that cannot be.
    """
    where = show_path(path)
    values = read_json_object(Path(path))
    unknown = [key for key in values if key not in _KEYS]
    if unknown:
        known = ", ".join(sorted(_KEYS))
        raise KvhouseError(f"{where}: unknown key {show(unknown[0])}: a device has {known}")
    fields = Fields(values, where)
    memory_bytes = fields.integer("memory_bytes", MOST_BYTES)
    driver_bytes = fields.optional_integer("driver_bytes", MOST_BYTES)
    if driver_bytes is not None and driver_bytes > memory_bytes:
        raise KvhouseError(f"{where}: driver_bytes is larger than memory_bytes, {memory_bytes}")
    bandwidth = _rate(values, "bandwidth", where)
    if bandwidth is None:
        raise KvhouseError(f"{where}: field 'bandwidth' is missing: bytes per second")
    return Device(
        name=fields.text("name") or Path(path).stem,
        title=fields.text("title") or fields.text("name") or Path(path).stem,
        memory_bytes=memory_bytes,
        bandwidth=bandwidth,
        flops=_flops(values.get("flops"), where),
        basis="given",
        source=fields.text("source") or where,
        vendor=fields.text("vendor") or "",
        family=fields.text("family") or "",
        year=fields.optional_integer("year", 9999),
        driver_bytes=driver_bytes,
        host_link=_rate(values, "host_link", where),
        peer_link=_rate(values, "peer_link", where),
    )


def _flops(value: object, where: str) -> dict[str, float]:
    """The figures of the ``flops`` object; a null is no figure."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise KvhouseError(f"{where}: field 'flops' is {show(value)}, not an object")
    for dtype in value:
        if dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise KvhouseError(f"{where}: flops has no dtype {show(dtype)}: it has {known}")
    rates = {dtype: _rate(value, dtype, f"{where}: flops") for dtype in value}
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


def _rate(values: Mapping[str, object], name: str, where: str) -> float | None:
    """A positive number, or None when it is absent or null."""
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KvhouseError(f"{where}: field {name!r} is {show(value)}, not a number")
    if not 0 < value <= MOST_RATE or math.isnan(value):
        raise KvhouseError(f"{where}: field {name!r} is {show(value)}, not above 0 and finite")
    return float(value)
