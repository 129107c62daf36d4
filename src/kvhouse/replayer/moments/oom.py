"""Memory is free, and yet it says out of memory: where it is, and what paging changes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from kvhouse import doctor
from kvhouse.core.keys import BlockKeys
from kvhouse.core.ledger import Ledger, account
from kvhouse.core.memory import KVMemory, make_memory
from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, PAGED
from kvhouse.core.refusal import Refusal
from kvhouse.core.request import Request
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.doctor.texts import texts_of
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.moments.counting import advance
from kvhouse.replayer.moments.oom_outcome import (
    FRAGMENTATION,
    NO_SHARING,
    RESERVATION,
    Advice,
    Cause,
    OomOutcome,
    OomSetting,
    Otherwise,
)
from kvhouse.replayer.prefixes import keys_of


@dataclass(frozen=True, slots=True)
class _Client:
    """One request at the moment of the refusal."""

    prompt: int
    new: int
    generated: int
    keys: BlockKeys | None


@dataclass(frozen=True, slots=True)
class _Moment:
    """A step that was planned, and refused a request for want of one long run."""

    step: int
    refusal: Refusal
    ledger: Ledger
    free_runs: tuple[int, ...]
    copies: int
    running: tuple[_Client, ...]
    waiting: tuple[_Client, ...]


def out_of_memory(setting: OomSetting) -> OomOutcome:
    """Serve the traffic, and explain the refusal with the most memory free.

    Raises:
        KvhouseError: The setting is impossible, or its traffic was never refused so.
    """
    layout = setting.layout
    memory = _memory(setting, setting.policy, share=False)
    scheduler = Scheduler(memory, SchedulerConfig(setting.max_length))
    requests = setting.requests()
    for one in requests:
        keys = keys_of(one, layout.block_size)
        scheduler.submit(one.prompt_tokens, one.output_tokens, keys)
    worst: _Moment | None = None
    refused: list[int] = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        refusal = scheduler.refusal
        if refusal and refusal.fragmented:
            refused.append(refusal.request)
            if worst is None or refusal.free > worst.refusal.free:
                worst = _moment(scheduler, refusal, setting)
        advance(scheduler, plan)
    if worst is None:
        raise KvhouseError(f"{setting.traffic}: no request was refused while enough was free")
    return OomOutcome(
        setting=setting,
        step=worst.step,
        refused_steps=len(refused),
        steps=scheduler.steps,
        refused_requests=len(set(refused)),
        requests=len(requests),
        running=len(worst.running),
        refusal=worst.refusal,
        block_bytes=layout.block_bytes,
        free_runs=worst.free_runs,
        ledger=worst.ledger,
        copies=worst.copies,
        causes=_causes(worst, setting),
        otherwise=tuple(_otherwise(worst, setting, share=share) for share in (False, True)),
        advice=_advice(worst, layout),
    )


def _memory(setting: OomSetting, policy: str, *, share: bool) -> KVMemory:
    layout = setting.layout
    return make_memory(
        policy,
        layout,
        layout.blocks_in(setting.kv_memory),
        setting.max_length,
        in_flight=DEFAULT_TOKEN_BUDGET,
        share=share,
    )


def _moment(scheduler: Scheduler, refusal: Refusal, setting: OomSetting) -> _Moment:
    """The pool between planning a step and carrying it out."""
    copies = sum(r.computed + r.in_flight >= setting.system_tokens for r in scheduler.running)
    return _Moment(
        step=scheduler.steps - 1,
        refusal=refusal,
        ledger=scheduler.ledger(),
        free_runs=runs_of(scheduler.memory.pool.free_ids()),
        copies=copies,
        running=tuple(map(_client, scheduler.running)),
        waiting=tuple(map(_client, scheduler.waiting)),
    )


def _client(request: Request) -> _Client:
    return _Client(request.prompt_tokens, request.max_new_tokens, request.generated, request.keys)


def runs_of(ids: Iterable[int]) -> tuple[int, ...]:
    """Lengths of the runs of consecutive numbers in ``ids``, which ascend; the longest first."""
    runs = groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0])
    return tuple(sorted((sum(1 for _ in run) for _, run in runs), reverse=True))


def _causes(moment: _Moment, setting: OomSetting) -> tuple[Cause, ...]:
    """What each cause keeps; copies lie in what is used, so no byte counts twice."""
    ledger, layout = moment.ledger, setting.layout
    whole = setting.system_tokens // layout.block_size * layout.block_bytes
    causes = (
        Cause(RESERVATION, ledger.reserved + ledger.internal),
        Cause(FRAGMENTATION, ledger.external),
        Cause(NO_SHARING, max(0, moment.copies - 1) * whole),
    )
    return tuple(sorted(causes, key=lambda cause: -cause.size))


def _otherwise(moment: _Moment, setting: OomSetting, *, share: bool) -> Otherwise:
    """Give the same requests memory in pages, in their order."""
    memory = _memory(setting, PAGED, share=share)
    requests: list[Request] = []

    def admit(clients: Iterable[_Client]) -> int:
        """Let in as many as fit, and say how many those were."""
        before = len(requests)
        for client in clients:
            number = len(requests)
            one = Request(number, client.prompt, client.new, client.generated, keys=client.keys)
            if memory.admit(one, alone=not requests):
                break
            memory.seal(one, one.computed, one.known - one.computed)
            one.computed = one.known
            requests.append(one)
        return len(requests) - before

    admit(moment.running)
    ledger = account(memory, requests, None)
    gained = admit(moment.waiting)
    held = ledger.total - ledger.free - ledger.cached
    return Otherwise(PAGED, share, held, gained > 0, max(0, gained - 1))


def _advice(moment: _Moment, layout: KVLayout) -> Advice:
    """The figures as PyTorch's allocator would print them, read by the doctor."""
    ledger = moment.ledger
    held = ledger.total - ledger.external - ledger.free
    line = (
        "CUDA out of memory. Tried to allocate "
        f"{_gib(moment.refusal.needed * layout.block_bytes)}. GPU 0 has a total capacity of "
        f"{_gib(ledger.total)} of which 0 bytes is free. Of the allocated memory {_gib(held)} is "
        f"allocated by PyTorch, and {_gib(ledger.total - held)} is reserved by PyTorch but "
        "unallocated."
    )
    texts = texts_of("en")
    first = doctor.examine(io.BytesIO(line.encode())).diagnoses[0]
    flags = tuple(remedy.flag for remedy in first.remedies)
    return Advice(line, texts.title(first), texts.reason(first), flags)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
