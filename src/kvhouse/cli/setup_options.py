"""How a replay is set up: options that ``replay``, ``remedies`` and ``sweep`` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options

if TYPE_CHECKING:
    from kvhouse.devices import Device
    from kvhouse.replayer import Setup, Tiering, Trace
    from kvhouse.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """The pool, the limits and the order, but for what ``sweep`` tries several of."""

    kv_memory: options.KvMemory = None
    kv_blocks: Annotated[
        int | None,
        typer.Option(
            "--kv-blocks",
            metavar="N",
            help="Blocks of the pool, as an engine's log names them; goes before --kv-memory.",
        ),
    ] = None
    fit: Annotated[
        str,
        typer.Option(
            help="How contiguous policies look for a run: first or best that is long enough, or "
            "buddy, which rounds to a power of two of blocks."
        ),
    ] = "first"
    prefix_cache: options.PrefixCache = False
    tp: options.Tp = 1
    replica: Annotated[
        str,
        typer.Option(
            metavar="K/N",
            help="Take every N-th request from the K-th on: what one of N replicas gets from a "
            "router that deals them out one after the other.",
        ),
    ] = "1/1"
    backlog: options.Backlog = False
    max_length: options.MaxLength = None
    weight_dtype: options.WeightDtype = None
    token_budget: options.TokenBudget = 2048
    max_running: options.MaxRunning = 256
    order: Annotated[
        str, typer.Option(help="Who goes first: fcfs, priority (lower first) or shortest.")
    ] = "fcfs"
    prefill_first: Annotated[
        bool,
        typer.Option(
            "--prefill-first", help="Let decoding wait while any prompt is to be computed."
        ),
    ] = False
    watermark: options.Watermark = 0.05
    utilization: options.Utilization = 0.9

    def setup(
        self,
        trace: Trace,
        model: ModelSpec,
        device: Device,
        tiering: Tiering,
        *,
        policy: str = "paged",
        kv_format: str = "bf16",
        block_size: int = 16,
    ) -> Setup:
        """The replay that is asked for.

        Args:
            trace: The traffic.
            model: The model.
            device: The device.
            tiering: What lies below the pool.
            policy: How the pool is handed out.
            kv_format: How keys and values are stored.
            block_size: Tokens per block.

        Raises:
            KvhouseError: A size or a replica is none.
        """
        from kvhouse.replayer import Setup

        return Setup(
            trace,
            model,
            device,
            kv_memory=options.size(self.kv_memory),
            kv_blocks=self.kv_blocks,
            policy=policy,
            fit=self.fit,
            prefix_cache=self.prefix_cache,
            kv_format=kv_format,
            weight_dtype=self.weight_dtype,
            block_size=block_size,
            max_length=self.max_length,
            token_budget=self.token_budget,
            max_running=self.max_running,
            order=self.order,
            prefill_first=self.prefill_first,
            watermark=self.watermark,
            utilization=self.utilization,
            as_backlog=self.backlog,
            tiering=tiering,
            tp=self.tp,
            replica=options.part(self.replica),
        )
