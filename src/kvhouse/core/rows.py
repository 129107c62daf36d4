"""How a request's next tokens and its memory become a row of a plan."""

from __future__ import annotations

from kvhouse.core.memory import KVMemory
from kvhouse.core.request import Request
from kvhouse.core.step import Row
from kvhouse.layout import KVLayout


def make_row(memory: KVMemory, request: Request) -> Row:
    """The row of a request whose ``in_flight`` tokens were chosen."""
    end = request.computed + request.in_flight
    tables, starts = memory.tables(request.id, end)
    return Row(
        request.id,
        request.computed,
        request.in_flight,
        samples=end == request.known,
        tables=tables,
        starts=starts,
        slot=memory.holding(request.id).slot,
    )


def sealed_by(layout: KVLayout, row: Row) -> list[int]:
    """The blocks whose last token a row writes."""
    sealed: list[int] = []
    # Blocks of every group end at multiples of the layout's block size.
    if row.first // layout.block_size == (row.first + row.count) // layout.block_size:
        return sealed
    for group, start, table in zip(layout.groups, row.starts, row.tables, strict=True):
        if group.reach.kind != "another":
            first = row.first // group.block_size - start
            end = (row.first + row.count) // group.block_size - start
            sealed.extend(table[first:end])
    return sealed
