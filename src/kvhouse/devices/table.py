"""The table of known devices, a data file with a source for every figure."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from kvhouse.devices.device import Device
from kvhouse.errors import KvhouseError

#: The machine that kvhouse runs on; measured when asked for.
LOCAL = "local"


@cache
def _table() -> dict[str, Any]:
    text = files(__package__).joinpath("devices.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _figures(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """An entry's figures by what they are: ``{"value": ..., "source": ...}`` each."""
    memory, bandwidth = entry["memory_gib"], entry["bandwidth"]
    return {"memory": memory, "bandwidth": bandwidth, **entry["flops"]}


def _source(entry: dict[str, Any], sources: dict[str, str]) -> str:
    """Which figure comes from where, figures of one source together."""
    by_source: dict[str, list[str]] = {}
    for figure, cell in _figures(entry).items():
        by_source.setdefault(cell["source"], []).append(figure)
    return "; ".join(f"{', '.join(group)}: {sources[key]}" for key, group in by_source.items())


def names() -> tuple[str, ...]:
    """Every name that ``get`` knows."""
    return (*_table()["devices"], LOCAL)


def get(name: str) -> Device:
    """Look a device up; ``local`` is this machine, measured in about a second.

    Raises:
        KvhouseError: No such device; the message lists those there are.
    """
    if name == LOCAL:
        from kvhouse.devices.local import measure

        return measure()
    table = _table()
    entry = table["devices"].get(name)
    if entry is None:
        raise KvhouseError(f"unknown device {name!r}: choose one of {', '.join(names())}")
    return Device(
        name=name,
        title=entry["title"],
        memory_bytes=entry["memory_gib"]["value"] * 2**30,
        bandwidth=entry["bandwidth"]["value"],
        flops={dtype: cell["value"] for dtype, cell in entry["flops"].items()},
        basis="datasheet",
        source=_source(entry, table["sources"]),
    )
