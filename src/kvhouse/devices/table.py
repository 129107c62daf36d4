"""The table of known devices: data files with a source for every figure."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from kvhouse.devices.device import Device
from kvhouse.devices.entry import Entry
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show

#: The machine that kvhouse runs on; measured when asked for.
LOCAL = "local"

_FILES = ("nvidia.json", "geforce.json", "amd.json", "others.json")
_MOST_SUGGESTIONS = 6


@cache
def _table() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each entry by its name, with the file that it is in."""
    found = {}
    for name in _FILES:
        data = json.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
        found.update({device: (entry, data) for device, entry in data["devices"].items()})
    return found


def names() -> tuple[str, ...]:
    """Every name that ``get`` knows."""
    return (*_table(), LOCAL)


def listed(vendor: str | None = None) -> tuple[Device, ...]:
    """The table's devices, in its order; of one vendor if one is named, in any case.

    Raises:
        KvhouseError: No device of that vendor; the message lists the vendors.
    """
    devices = tuple(_device(name) for name in _table())
    if vendor is None:
        return devices
    chosen = tuple(d for d in devices if d.vendor.lower() == vendor.lower())
    if not chosen:
        vendors = dict.fromkeys(device.vendor for device in devices)
        raise KvhouseError(f"no device of vendor {show(vendor)}: there are {', '.join(vendors)}")
    return chosen


def get(name: str) -> Device:
    """Look a device up.

    Args:
        name: A name of the table; one with a size, such as ``m2-ultra:64GiB``, where a device is
            sold with more or less memory; a device file, which ends in ``.json``; or ``local``,
            this machine, measured in a second or two.

    Raises:
        KvhouseError: No such device (the message names close ones), a size for a device that
            has but one, or an unusable file.
    """
    if not isinstance(name, str):
        raise KvhouseError(f"device {show(name)}: give a name or a Device")
    if name == LOCAL:
        from kvhouse.devices.local import measure

        return measure()
    if name.lower().endswith(".json"):
        from kvhouse.devices.file import read_device

        return read_device(name)
    known, colon, size = name.partition(":")
    if known not in _table():
        raise KvhouseError(f"unknown device {show(name)}: {_advice(known)}")
    if not colon:
        return _device(known)
    return _with_memory(known, size)


def _device(name: str, size: str = "", memory_bytes: int | None = None) -> Device:
    entry, data = _table()[name]
    full_name = f"{name}:{size}" if size else name
    return Entry(entry, data["sources"]).device(full_name, data.get("vendor", ""), memory_bytes)


def _with_memory(name: str, size: str) -> Device:
    from kvhouse.units import bytes_text, parse_bytes

    largest = _device(name).memory_bytes
    if not _table()[name][0].get("configurable"):
        raise KvhouseError(f"device {name} has {bytes_text(largest)} and comes with no other size")
    memory_bytes = parse_bytes(size)
    if memory_bytes > largest:
        raise KvhouseError(f"device {name} has at most {bytes_text(largest)}, not {size.strip()}")
    return _device(name, size.strip(), memory_bytes)


def _advice(name: str) -> str:
    """Names like this one, or where to find them."""
    from difflib import get_close_matches

    wanted = _squeezed(name[:80])
    squeezed = {_squeezed(known): known for known in names()}
    close = [known for key, known in squeezed.items() if wanted and wanted in key]
    if not close:
        close = [squeezed[key] for key in get_close_matches(wanted, squeezed, cutoff=0.5)]
    listing = "`kvhouse devices` lists all"
    if not close:
        return f"{listing}, and a device file ends in .json"
    return f"did you mean {', '.join(close[:_MOST_SUGGESTIONS])}? {listing}"


def _squeezed(name: str) -> str:
    """A name without what people write differently: ``RTX 4090`` and ``rtx-4090`` are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
