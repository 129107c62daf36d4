"""The figures that a page's script draws, as compact plain values."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.layout import KVLayout
from kvhouse.replayer.recorder import PoolMap
from kvhouse.replayer.records import RequestRecord
from kvhouse.views.picture import Drive, Picture


def data_of(picture: Picture) -> dict[str, Any]:
    """A picture as what ``json.dumps`` takes; times in seconds, sizes in bytes."""
    return {
        "end": picture.end,
        "classes": list(LEDGER_CLASSES),
        "drives": [_drive(drive, picture.layout) for drive in picture.drives],
    }


def pack(values: ArrayLike, kind: str) -> dict[str, str]:
    """An array as its type (``u1``, ``u2``, ``u4``, ``f4`` or ``f8``) and little-endian base64."""
    raw = np.asarray(values).astype(f"<{kind}").tobytes()
    return {"type": kind, "base64": base64.b64encode(raw).decode("ascii")}


def _drive(drive: Drive, layout: KVLayout) -> dict[str, Any]:
    pool, recording = drive.result.pool, drive.recording
    timeline = recording.timeline
    return {
        "name": drive.name,
        "end": drive.result.makespan_seconds,
        "pool_bytes": pool.bytes,
        "pool_blocks": pool.blocks,
        "map": _map(recording.pool),
        "requests": _requests(recording.pool.requests, layout),
        "bin_seconds": timeline.bin_seconds,
        "running": pack(timeline.running, "f4"),
        "waiting": pack(timeline.waiting, "f4"),
        "ledger": {name: pack(timeline.ledger[name], "f8") for name in LEDGER_CLASSES},
        "curves": {
            name: {
                "quantiles": pack(curve.quantiles, "f4"),
                "p50": pack(_numbers(curve.p50), "f4"),
                "p99": pack(_numbers(curve.p99), "f4"),
            }
            for name, curve in recording.curves.items()
        },
    }


def _map(pool: PoolMap) -> dict[str, Any]:
    """The cells go moment by moment, the first block first."""
    return {
        "rows": len(pool.blocks),
        "times": pack(pool.times, "f8"),
        "blocks": pack(pool.blocks, "u4"),
        "owners": pack(pool.owners, "u2" if len(pool.requests) < 2**16 else "u4"),
        "kinds": pack(pool.kinds, "u1"),
    }


def _requests(records: tuple[RequestRecord, ...], layout: KVLayout) -> dict[str, Any]:
    tokens = [record.prompt_tokens + record.generated for record in records]
    # The last token that a request gets is never computed, so nothing is kept of it.
    kept = [sum(g.kept_bytes(count - 1) for g in layout.groups) + layout.slot_bytes
            for count in tokens]  # fmt: skip
    return {
        "number": pack([record.index for record in records], "u4"),
        "prompt": pack([record.prompt_tokens for record in records], "u4"),
        "output": pack([record.generated for record in records], "u4"),
        "bytes": pack(kept, "f8"),
        "arrival": pack([record.arrival for record in records], "f4"),
        "finished": pack(_numbers([record.finished for record in records]), "f4"),
    }


def _numbers(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
