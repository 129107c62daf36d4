"""The next larger devices of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvhouse.devices import Device, listed
from kvhouse.errors import KvhouseError
from kvhouse.planner.case import Case

#: Cards that are named at most.
_MOST = 2


@dataclass(frozen=True, slots=True)
class Card:
    """A larger device, and the KV memory that goes with it where the case states any."""

    device: Device
    kv_memory: int | None


def bigger_cards(case: Case, table: Iterable[Device] | None = None) -> tuple[Card, ...]:
    """The smallest devices with more memory on which more requests fit, decoding no slower.

    Those of the same vendor come first, and of each size the one with the most bandwidth. A KV
    memory that the case states grows by the usable part of what is added, less what was missing.

    Args:
        case: What is served, and on which device now.
        table: Devices to choose from; by default the whole device table.
    """
    before = case.outcome()
    chosen: list[Card] = []
    for device in _larger(case.device, listed() if table is None else table):
        card = Card(device, _kv_memory(case, device))
        try:
            after = replace(case, device=device, kv_memory=card.kv_memory).outcome()
        except KvhouseError:  # not a card to name
            continue
        more = after.requests > before.requests
        if more and after.tokens_per_second >= before.tokens_per_second:
            chosen.append(card)
        if len(chosen) == _MOST:
            break
    return tuple(chosen)


def _larger(now: Device, table: Iterable[Device]) -> Iterator[Device]:
    """One device of each larger size, by vendor and size."""
    best: dict[tuple[bool, int], Device] = {}
    for device in table:
        if device.memory_bytes <= now.memory_bytes or device.usable_bytes <= now.usable_bytes:
            continue
        if not device.flops:  # its decode cannot be compared
            continue
        key = (device.vendor != now.vendor, device.memory_bytes)
        if key not in best or device.bandwidth > best[key].bandwidth:
            best[key] = device
    return (best[key] for key in sorted(best))


def _kv_memory(case: Case, device: Device) -> int | None:
    if case.kv_memory is None:
        return None
    added = device.usable_bytes - case.device.usable_bytes
    return max(1, case.kv_memory + int(added * case.utilization) - case.budget().missing)
