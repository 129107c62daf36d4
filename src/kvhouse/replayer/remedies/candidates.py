"""Every change that a replay can try, or the reason why it is none here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvhouse.core.policy import CONTIGUOUS_MAX, CONTIGUOUS_POW2, PAGED, get_policy
from kvhouse.planner.case import Case
from kvhouse.planner.remedies import Excluded
from kvhouse.planner.remedies.candidate import Candidate
from kvhouse.planner.remedies.candidates import narrower_formats, paging, tensor_parallel
from kvhouse.replayer.remedies.tries import DEFAULT_NVME_LINK, Tries
from kvhouse.replayer.setup import Setup
from kvhouse.units import bytes_text, seconds_text

PREFIX_CACHE, HOST, NVME = "prefix cache", "host offload", "NVMe offload"
_TRANSFERS = "a step's rows wait for its loads, and it ends with its last store"

Found = Iterator[Candidate | Excluded]


def candidates(base: Setup, tries: Tries) -> Found:
    """Every remedy that a replay of ``base`` can try, or why it is none.

    The fields of a candidate are those of ``Setup``, beside ``host`` and ``nvme`` (memory and
    link), and ``replicas``; ``applied`` takes them.
    """
    case = case_of(base)
    yield from (_narrower(one) for one in narrower_formats(case))
    yield _paging(base, paging(case))
    yield _shorter(base)
    yield _sharing(base)
    yield _host(base, tries)
    yield _nvme(base, tries)
    for count in tries.devices:
        yield on_ranks(base, tensor_parallel(case, base.tp * count))
        yield _replicas(base, count)


def case_of(base: Setup) -> Case:
    """The base as the planner sees it: every request as long as the trace's mean."""
    part, most = base.part, base.config.max_length
    outputs = sum(request.output_tokens for request in part.requests)
    context = min(part.mean_tokens, most)
    return Case(
        spec=base.model,
        device=base.device,
        context=context,
        new_tokens=max(1, min(context, outputs // len(part.requests))),
        max_length=most,
        policy=get_policy(base.policy),
        kv_format=base.kv_format,
        weight_dtype=base.weight_dtype,
        block_size=base.block_size,
        token_budget=base.token_budget,
        watermark=base.watermark,
        utilization=base.utilization,
        kv_memory=base.kv_memory,
        tp=base.tp,
    )


def _narrower(one: Candidate | Excluded) -> Candidate | Excluded:
    if isinstance(one, Excluded):
        return one
    return replace(one, assumption="the pool keeps its bytes and holds more blocks")


def _kept_free(base: Setup) -> str:
    return f"paged admissions leave {base.watermark:.0%} of the pool free"


def _paging(base: Setup, one: Candidate | Excluded) -> Candidate | Excluded:
    return one if isinstance(one, Excluded) else replace(one, assumption=_kept_free(base))


def _on_pages(base: Setup, one: Candidate) -> Candidate:
    """A remedy that goes with paging alone, so that both are made where the base is not paged."""
    fields = {"policy": PAGED, **one.fields}
    if get_policy(base.policy) == PAGED:
        return replace(one, fields=fields)
    return replace(
        one,
        name=f"paging + {one.name}",
        change=f"{one.change}; paged instead of {get_policy(base.policy)}",
        fields=fields,
        assumption=f"{one.assumption}; {_kept_free(base)}",
    )


def _shorter(base: Setup) -> Candidate | Excluded:
    name, policy, now = "shorter max_length", get_policy(base.policy), base.config.max_length
    if policy not in (CONTIGUOUS_MAX, CONTIGUOUS_POW2):
        return Excluded(name, f"{policy} reserves nothing for it")
    lengths = (request.prompt_tokens + request.output_tokens for request in base.part.requests)
    longest = max((length for length in lengths if length <= now), default=now)
    if longest == now:
        return Excluded(name, f"the trace itself needs the {now:,} tokens")
    return Candidate(
        name,
        f"allow {longest:,} tokens, the longest of the trace that is served, instead of {now:,}",
        {"max_length": longest, "policy": policy},
        assumption="known only because the trace is: a longer request would be refused",
    )


def _sharing(base: Setup) -> Candidate | Excluded:
    if base.prefix_cache:
        return Excluded(PREFIX_CACHE, "the base has one already")
    if not any(request.hash_ids or request.prefix_id for request in base.part.requests):
        return Excluded(PREFIX_CACHE, "the trace names no prefixes: it has no ids of either kind")
    one = Candidate(
        PREFIX_CACHE,
        "share the blocks of prefixes that the trace names, while requests run and afterwards",
        {"prefix_cache": True},
        latency="first token sooner for who finds a prefix",
        assumption="prefixes as the trace names them, full blocks only",
    )
    return _on_pages(base, one)


def _host(base: Setup, tries: Tries) -> Candidate | Excluded:
    if base.tiering.host_memory is not None:
        return Excluded(HOST, "the base has host memory below the pool already")
    if base.tiering.nvme_memory is not None:
        return Excluded(HOST, "the base has NVMe below the pool already")
    rate = tries.host_link or base.device.host_link
    whose = "given" if tries.host_link else f"{base.device.name}'s own, {base.device.basis}"
    one = Candidate(
        HOST,
        "keep what leaves the pool in host memory, and load what is sooner loaded than computed",
        {"host": (tries.host_memory, tries.host_link)},
        latency=_TRANSFERS,
        needs=f"{bytes_text(tries.host_memory)} of host memory for each device",
        assumption=_link("host", rate, whose, base),
    )
    return _on_pages(base, one)


def _nvme(base: Setup, tries: Tries) -> Candidate | Excluded:
    if base.tiering.nvme_memory is not None:
        return Excluded(NVME, "the base has NVMe below the pool already")
    rate = tries.nvme_link or DEFAULT_NVME_LINK
    below = "host memory" if base.tiering.host_memory is not None else "the pool"
    whose = "given" if tries.nvme_link else "assumed, no drive of yours was named"
    one = Candidate(
        NVME,
        f"keep what leaves {below} on drives, and load what is sooner loaded than computed",
        {"nvme": (tries.nvme_memory, rate)},
        latency=_TRANSFERS,
        needs=f"{bytes_text(tries.nvme_memory)} of NVMe for each device",
        assumption=_link("NVMe", rate, whose, base),
    )
    return _on_pages(base, one)


def _link(name: str, rate: float | None, whose: str, base: Setup) -> str:
    speed = "of unknown speed" if rate is None else f"at {rate / 1e9:,.4g} GB/s each way ({whose})"
    return f"{name} link {speed}, {seconds_text(base.tiering.latency)} before its first byte"


def on_ranks(base: Setup, one: Candidate) -> Candidate:
    """More devices for each layer, with how their sums are counted in a replay."""
    sums = replace(base, tp=one.fields["tp"]).sums
    counted = (
        f"sums counted at {sums.bandwidth / 1e9:,.4g} GB/s ({sums.link} link of "
        f"{base.device.name}), their latency left out"
        if sums.bandwidth is not None
        else "sums over the ranks not counted: no link is known"
    )
    memory = (
        "" if base.kv_memory is None and base.kv_blocks is None else ", the given KV memory on each"
    )
    return replace(
        one,
        assumption=f"equal shares of the weights, own KV heads, at least one{memory}; {counted}",
    )


def _replicas(base: Setup, count: int) -> Candidate:
    each = base.device.name if base.tp == 1 else f"{base.tp} {base.device.name}"
    return Candidate(
        f"data parallel {count}",
        f"serve with {count} replicas on {each} each, each with the whole model and its own pool",
        {"replicas": count},
        needs=f"{count * base.tp} of {base.device.name} and a router",
        assumption="requests are dealt out in turn, whatever prefix they have; no time for it",
        hardware=True,
    )
