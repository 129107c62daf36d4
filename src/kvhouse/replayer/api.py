"""Replay in one call: a trace, a model and a device in, the figures out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvhouse import devices, spec
from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK, FIRST_FIT, PAGED
from kvhouse.core.scheduler import DEFAULT_MAX_RUNNING
from kvhouse.core.step import StepPlan
from kvhouse.devices import Device
from kvhouse.layout import DEFAULT_BLOCK_SIZE
from kvhouse.planner import DEFAULT_UTILIZATION
from kvhouse.replayer.events import Event
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.records import RequestRecord
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.tiering import DEFAULT_LINK_LATENCY, Tiering
from kvhouse.replayer.traces import Trace, read_trace
from kvhouse.spec.model import ModelSpec


def replay(
    trace: str | Path | Trace,
    model: str | Path | ModelSpec,
    device: str | Device,
    *,
    kv_memory: int | None = None,
    kv_blocks: int | None = None,
    policy: str = PAGED,
    fit: str = FIRST_FIT,
    prefix_cache: bool = False,
    kv_format: str = "bf16",
    weight_dtype: str | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    max_length: int | None = None,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    max_running: int = DEFAULT_MAX_RUNNING,
    order: str = "fcfs",
    prefill_first: bool = False,
    watermark: float = DEFAULT_WATERMARK,
    utilization: float = DEFAULT_UTILIZATION,
    as_backlog: bool = False,
    host_memory: int | None = None,
    host_link: float | None = None,
    nvme_memory: int | None = None,
    nvme_link: float | None = None,
    link_latency: float = DEFAULT_LINK_LATENCY,
    tier_replacement: str = "lru",
    tier_write: str = "back",
    tp: int = 1,
    replica: tuple[int, int] = (1, 1),
    slo: SLO | None = None,
    timeline: int | None = None,
    on_ended: Callable[[RequestRecord], None] | None = None,
    on_plan: Callable[[StepPlan], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
    stop: Stop | None = None,
    recorder: Recorder | None = None,
) -> ReplayResult:
    """Lead a trace through the scheduler on a virtual clock of roofline times.

    Args:
        trace: A trace, or what ``read_trace`` takes: a file, a bundled name, a description.
        model: A catalogue name, a config, a GGUF file, or a spec.
        device: A device's name or figures.
        kv_memory: Bytes for keys and values; by default what the device has left after reserve
            and weights. The pool is the whole blocks in it.
        kv_blocks: Blocks of the pool, such as an engine's log names; goes before ``kv_memory``.
        policy: ``paged``, ``contiguous-max`` (or ``contiguous``), ``contiguous-pow2`` or
            ``contiguous-oracle``.
        fit: How contiguous policies look for a run: the ``first`` or the ``best`` that is long
            enough, or by the ``buddy`` system, which rounds to a power of two of blocks.
        prefix_cache: Whether requests share the blocks of prefixes that the trace names, while
            they run and afterwards; ``paged`` only.
        kv_format: How keys and values are stored.
        weight_dtype: How the weights are stored; by default as published.
        block_size: Tokens per block.
        max_length: Longest request allowed, and what ``contiguous-max`` reserves for each; by
            default the model's own limit.
        token_budget: Most tokens computed in one step.
        max_running: Most requests that hold memory at once.
        order: Who goes first: ``fcfs``, ``priority`` (the trace's, lower first) or ``shortest``.
        prefill_first: Whether decoding waits while any prompt is still to be computed.
        watermark: Share of the pool that paged admissions keep free.
        utilization: Share of the device's memory that the engine may use.
        as_backlog: Whether all requests wait from the start, whatever their times in the trace.
        host_memory: Bytes of host memory below the pool, from which what is sooner loaded than
            computed again is loaded; ``paged`` only, as for ``nvme_memory``.
        host_link: Bytes per second to or from it, one direction; by default the device's.
        nvme_memory: Bytes on NVMe drives below that.
        nvme_link: Bytes per second between them and the device, one direction.
        link_latency: Seconds before a step's first byte comes over a link; assumed.
        tier_replacement: What a full tier gives up: ``lru`` or ``arc``.
        tier_write: When the first tier takes a block: ``through`` once it is full, ``back`` once
            its content must leave the pool.
        tp: Devices that share every layer; memory and bytes are those of one of them. The sums
            over them take their time on the device's links; see ``costs.Sums``.
        replica: Take what a router would send to this one, from 1, of so many replicas, to which
            it deals requests out one after the other: ``(1, 2)`` is the first of two.
        slo: What requests should meet; ``ReplayResult.goodput`` says how many did.
        timeline: Points of ``ReplayResult.timeline``, if it is wanted.
        on_ended: Called for each request that finished or was rejected.
        on_plan: Called for each step's plan.
        on_event: Called for everything that happens to a request; see docs/json.md.
        stop: Ends it between two events once ``stop.asked``; ``ReplayResult.partial`` says so.
        recorder: Gathers what a picture shows.

    Raises:
        KvhouseError: The input is impossible; the message says which part. Requests that can
            never fit are no error: ``ReplayResult.rejections`` lists them.
        PhysicsError: What came out is impossible: a bug in kvhouse.
    """
    setup = Setup(
        trace if isinstance(trace, Trace) else read_trace(trace),
        model if isinstance(model, ModelSpec) else spec.load(model),
        device if isinstance(device, Device) else devices.get(device),
        kv_memory=kv_memory,
        kv_blocks=kv_blocks,
        policy=policy,
        fit=fit,
        prefix_cache=prefix_cache,
        kv_format=kv_format,
        weight_dtype=weight_dtype,
        block_size=block_size,
        max_length=max_length,
        token_budget=token_budget,
        max_running=max_running,
        order=order,
        prefill_first=prefill_first,
        watermark=watermark,
        utilization=utilization,
        as_backlog=as_backlog,
        tiering=Tiering(
            host_memory=host_memory,
            host_link=host_link,
            nvme_memory=nvme_memory,
            nvme_link=nvme_link,
            latency=link_latency,
            replacement=tier_replacement,
            write=tier_write,
        ),
        tp=tp,
        replica=replica,
    )
    return setup.drive(
        slo=slo,
        timeline=timeline,
        on_ended=on_ended,
        on_plan=on_plan,
        on_event=on_event,
        stop=stop,
        recorder=recorder,
    )
