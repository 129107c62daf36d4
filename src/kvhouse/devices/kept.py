"""What was measured of this machine, kept so that commands agree and need not measure again."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kvhouse.devices.device import Device
from kvhouse.devices.file import read_device
from kvhouse.devices.stamp import processor, versions
from kvhouse.errors import KvhouseError
from kvhouse.spec.cache import machine_cache


def kept_at(cores: int) -> Path:
    """Where the figures of this machine are kept: so many of its cores, its software as it is."""
    about = (processor(), cores, sorted(versions().items()))
    return machine_cache() / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.json"


def read(path: Path, memory_bytes: int) -> Device | None:
    """What is kept there, with memory as it is now; None where nothing of use is."""
    if not path.is_file():
        return None
    try:
        device = read_device(path)
    except KvhouseError:
        return None
    return replace(device, memory_bytes=memory_bytes, basis="measured") if device.flops else None


def keep(device: Device, path: Path) -> None:
    """Keep it, whole or not at all; where there is no place for it, it is measured again."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(device.to_dict(), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
