"""``kvhouse remedies``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options, replayed, tier_options
from kvhouse.cli.output import print_json, warn
from kvhouse.cli.progress import INTERRUPTED, progress
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from kvhouse.replayer.remedies import Fitting, Report


def remedies_command(
    trace: options.Trace,
    model: Annotated[str, typer.Option(help="Catalogue name, directory, config or GGUF file.")],
    device: options.Device = "a100-80g",
    policy: options.Policy = "paged",
    fit: options.Fit = "first",
    kv_memory: options.KvMemory = None,
    kv_blocks: options.KvBlocks = None,
    from_log: options.FromLog = None,
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache", help="The base shares prefixes already.")
    ] = False,
    host_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Host memory that the base has below its pool already."),
    ] = None,
    host_link: tier_options.HostLink = None,
    nvme_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="NVMe that the base has below that already."),
    ] = None,
    nvme_link: tier_options.NvmeLink = None,
    link_latency: tier_options.LinkLatency = "10us",
    tier_replacement: tier_options.TierReplacement = "lru",
    tier_write: tier_options.TierWrite = "back",
    tp: options.Tp = 1,
    replica: options.Replica = "1/1",
    slo_ttft: options.SloTtft = None,
    slo_tpot: options.SloTpot = None,
    slo_latency: options.SloLatency = None,
    limit: options.Limit = None,
    scale_lengths: options.ScaleLengths = 1.0,
    scale_rate: options.ScaleRate = 1.0,
    start: options.Start = 0.0,
    duration: options.Duration = None,
    sample: options.Sample = 1.0,
    sample_seed: options.SampleSeed = 0,
    cut: options.Cut = None,
    backlog: options.Backlog = False,
    max_length: options.MaxLength = None,
    kv_format: options.KvFormat = "bf16",
    weight_dtype: options.WeightDtype = None,
    block_size: options.BlockSize = 16,
    token_budget: options.TokenBudget = 2048,
    max_running: options.MaxRunning = 256,
    order: options.Order = "fcfs",
    prefill_first: options.PrefillFirst = False,
    watermark: options.Watermark = 0.05,
    utilization: options.Utilization = 0.9,
    try_host_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory to try, for each device: assumed.")
    ] = "64GiB",
    try_nvme_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="NVMe to try, for each device: assumed.")
    ] = "1TiB",
    try_devices: Annotated[
        str,
        typer.Option(
            metavar="N[,N]",
            help="How many times the devices to try, as tensor parallelism against replicas.",
        ),
    ] = "2",
    pairs: Annotated[int, typer.Option(metavar="N", help="Pairs to replay at most.")] = 6,
    as_json: options.AsJson = False,
) -> None:
    """Replay a trace as it is and with each remedy, and rank what pays on this traffic.

    Remedies: fp8, int8 and int4 KV, paging, a shorter maximum length, a prefix cache, offload to
    the host and to NVMe, tensor parallelism against replicas, and pairs of those that help. All
    other options describe the base, as for `kvhouse replay`; --host-link and --nvme-link are also
    those of the offload that is tried. Each row names the flags that replay it. Where the weights
    leave no memory for KV, narrower ones, larger devices and more of them are replayed instead.

    Example: kvhouse remedies azure-conv-2023 --model llama-2-7b --kv-memory 8GiB --slo-ttft 1s
    """
    from kvhouse import devices, spec
    from kvhouse.replayer import Setup, Tiering, read_trace
    from kvhouse.replayer.remedies import Tries, fitting, remedies, unfit

    replayed.refuse_two_pools(from_log, kv_blocks)
    links = options.rate(host_link), options.rate(nvme_link)
    tries = Tries(
        host_memory=parse_bytes(try_host_memory),
        host_link=links[0],
        nvme_memory=parse_bytes(try_nvme_memory),
        nvme_link=links[1],
        devices=_counts(try_devices),
        pairs=pairs,
    )
    slo = replayed.slo_of(slo_ttft, slo_tpot, slo_latency)
    with replayed.reading(trace, limit, as_json=as_json) as on_read:
        traffic = read_trace(
            trace,
            limit=limit,
            scale_lengths=scale_lengths,
            max_length=cut,
            scale_rate=scale_rate,
            start=start,
            duration=duration,
            sample=sample,
            seed=sample_seed,
            on_read=on_read,
        )
    base = Setup(
        traffic,
        spec.load(model),
        devices.get(device),
        kv_memory=options.size(kv_memory),
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
        as_backlog=backlog,
        tiering=Tiering(
            options.size(host_memory),
            links[0] if host_memory else None,
            options.size(nvme_memory),
            links[1] if nvme_memory else None,
            parse_seconds(link_latency),
            tier_replacement,
            tier_write,
        ),
        tp=tp,
        replica=options.part(replica),
    )
    base = replayed.pooled(base, from_log, device)
    with progress("remedies", None, unit="replays", as_json=as_json) as bar:

        def on_replay(done: int, expected: int) -> None:
            bar.done, bar.total = done, expected

        report: Report | Fitting
        if budget := unfit(base):
            report = fitting(base, budget, slo=slo, on_replay=on_replay)
        else:
            report = remedies(base, slo=slo, tries=tries, on_replay=on_replay)
    _show(report, len(base.part.requests), trace, model, device, as_json)
    if report.partial:
        warn(f"partial: interrupted after {report.replays:,} replays, shown are those made whole")
        raise typer.Exit(INTERRUPTED)


def _show(
    report: Report | Fitting, requests: int, trace: str, model: str, device: str, as_json: bool
) -> None:
    from kvhouse.replayer.remedies import Fitting
    from kvhouse.replayer.remedies.flags import slo_flags

    named = shlex.join(["kvhouse", "replay", trace, "--model", model, "--device", device])
    command = " ".join(filter(None, [named, report.base_flags, slo_flags(report.slo)]))
    if as_json:
        print_json({"model": model, "device": device, "command": command, **report.to_dict()})
        return
    from rich.console import Console

    from kvhouse.views.remedies import show_fitting, show_remedies

    title = f"{requests:,} requests of {trace} on {device}"
    if isinstance(report, Fitting):
        show_fitting(Console(), title, command, report)
    else:
        show_remedies(Console(), title, command, report)


def _counts(text: str) -> tuple[int, ...]:
    """The numbers of a list with commas.

    Raises:
        KvhouseError: One of them is no number.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise KvhouseError(f"devices {text[:40]!r}: write numbers such as 2 or 2,4")
    return tuple(map(int, words))
