"""The warehouse: one card's pool, its shelves reserved one by one, or handed out in pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvhouse import spec
from kvhouse.core.ledger import LEDGER_CLASSES, Ledger
from kvhouse.core.memory import make_memory
from kvhouse.core.policy import CONTIGUOUS_MAX, DEFAULT_TOKEN_BUDGET, PAGED
from kvhouse.core.refusal import Refusal
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.moments.counting import advance
from kvhouse.replayer.pool_map import look_at
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.traces import read_trace

#: The policies that are compared, the older way first.
POLICIES = (CONTIGUOUS_MAX, PAGED)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """What is stored where: the chapter's card, whose memory is all for keys and values.

    Attributes:
        model: Whose keys and values.
        kv_format: How they are stored.
        kv_memory: The pool, in bytes.
        max_length: Longest request allowed, in tokens; 2 GiB of this model.
        prompt_tokens: Prompt of each request.
        new_tokens: What each generates.
        requests: How many wait from the start.
        mean_tokens: The pool is looked at when those that run have so many tokens on average.
        cells: Characters that one reservation is drawn as.
        device: Whose step times ``setup`` models.
    """

    model: str = "llama-2-7b"
    kv_format: str = "fp16"
    kv_memory: int = 24 * 2**30
    max_length: int = 4096
    prompt_tokens: int = 450
    new_tokens: int = 100
    requests: int = 120
    mean_tokens: int = 500
    cells: int = 32
    device: str = "a100-80g"

    @property
    def layout(self) -> KVLayout:
        """How keys and values lie in blocks."""
        return KVLayout.of(spec.load(self.model), self.kv_format)

    def setup(self, policy: str) -> Setup:
        """The same backlog as a replay on a modelled clock."""
        from kvhouse import devices

        lengths = f"prompt={self.prompt_tokens},output={self.new_tokens}"
        return Setup(
            read_trace(f"backlog:{lengths},requests={self.requests}"),
            spec.load(self.model),
            devices.get(self.device),
            self.kv_memory,
            policy=policy,
            kv_format=self.kv_format,
            max_length=self.max_length,
            as_backlog=True,
        )


@dataclass(frozen=True, slots=True)
class Shelves:
    """The pool under one policy, at the moment that the warehouse asks for; all exact.

    Attributes:
        policy: The placement policy.
        running: Requests that hold memory.
        mean_tokens: Tokens that each of them has in the pool, on average.
        refusal: Why the next one gets none.
        ledger: Where the bytes are.
        owners: For each cell, the number of its first block's request, from 1; 0 for nobody.
        kinds: For each cell, the class of that block in the ledger.
        peak: The most requests that one step computed for, over the whole backlog.
        preemptions: How often one of them lost its memory again, and was computed anew.
        steps: Steps until the whole backlog was done.
    """

    policy: str
    running: int
    mean_tokens: float
    refusal: Refusal
    ledger: Ledger
    owners: tuple[int, ...]
    kinds: tuple[str, ...]
    peak: int
    preemptions: int
    steps: int


@dataclass(frozen=True, slots=True)
class WarehouseOutcome:
    """Both ways of handing out one pool."""

    setting: Warehouse
    block_bytes: int
    blocks: int
    blocks_per_cell: int
    shelves: dict[str, Shelves]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; docs/json.md describes the keys."""
        return asdict(self)


def warehouse(setting: Warehouse) -> WarehouseOutcome:
    """Fill the pool both ways, with the scheduler and the allocator of replay and run.

    Raises:
        KvhouseError: The setting is impossible, or its requests never fill the pool.
    """
    layout = setting.layout
    per_cell = max(1, layout.blocks_for(setting.max_length) // setting.cells)
    return WarehouseOutcome(
        setting=setting,
        block_bytes=layout.block_bytes,
        blocks=layout.blocks_in(setting.kv_memory),
        blocks_per_cell=per_cell,
        shelves={policy: _fill(setting, layout, policy, per_cell) for policy in POLICIES},
    )


class _Filling:
    """One policy's way with the backlog, step by step."""

    def __init__(self, setting: Warehouse, layout: KVLayout, policy: str) -> None:
        blocks = layout.blocks_in(setting.kv_memory)
        memory = make_memory(
            policy, layout, blocks, setting.max_length, in_flight=DEFAULT_TOKEN_BUDGET
        )
        self.scheduler = Scheduler(memory, SchedulerConfig(setting.max_length))
        for _ in range(setting.requests):
            self.scheduler.submit(setting.prompt_tokens, setting.new_tokens)
        self.peak = self.preemptions = 0

    @property
    def mean_tokens(self) -> float:
        """Tokens that a running request has in the pool, on average."""
        running = self.scheduler.running
        return sum(request.computed for request in running) / max(1, len(running))

    def step(self) -> None:
        """Go one step on."""
        plan = advance(self.scheduler)
        self.peak = max(self.peak, len(plan.rows))
        self.preemptions += len(plan.preempted)


def _fill(setting: Warehouse, layout: KVLayout, policy: str, per_cell: int) -> Shelves:
    """Let the backlog in, look at the pool, and see the backlog through."""
    filling = _Filling(setting, layout, policy)
    scheduler = filling.scheduler
    while scheduler.refusal is None or filling.mean_tokens < setting.mean_tokens:
        if not scheduler.has_work:
            raise KvhouseError(f"{setting.requests:,} requests never fill the pool: give more")
        filling.step()
    sight = look_at(scheduler, np.arange(0, scheduler.memory.total_blocks, per_cell))
    running, mean_tokens = len(scheduler.running), filling.mean_tokens
    refusal, ledger = scheduler.refusal, scheduler.ledger()
    while scheduler.has_work:
        filling.step()
    return Shelves(
        policy=policy,
        running=running,
        mean_tokens=mean_tokens,
        refusal=refusal,
        ledger=ledger,
        owners=tuple(sight.owners.tolist()),
        kinds=tuple(LEDGER_CLASSES[kind] for kind in sight.kinds),
        peak=filling.peak,
        preemptions=filling.preemptions,
        steps=scheduler.steps,
    )
