"""``kvhouse remedies``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options, replayed
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import print_json
from kvhouse.cli.progress import leave_partial, progress
from kvhouse.cli.setup_options import SetupOptions
from kvhouse.cli.tier_options import TierOptions
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.replayer import Tiering
    from kvhouse.replayer.remedies import Fitting, Report


@dataclass(frozen=True, slots=True)
class BaseOptions(SetupOptions):
    """The base, to which remedies are added."""

    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache", help="The base shares prefixes already.")
    ] = False


@dataclass(frozen=True, slots=True)
class BaseTiers(TierOptions):
    """Its tiers; the links are also those of the tiers that are tried."""

    host_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Host memory that the base has below its pool already."),
    ] = None
    nvme_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="NVMe that the base has below that already."),
    ] = None

    def of_base(self) -> Tiering:
        """What lies below the base's pool; a link counts there only if its tier is there."""
        asked = self.tiering()
        return replace(
            asked,
            host_link=asked.host_link if asked.host_memory else None,
            nvme_link=asked.nvme_link if asked.nvme_memory else None,
        )


@grouped
def remedies_command(
    trace: options.Trace,
    *,
    model: options.ModelName,
    device: options.Device = "a100-80g",
    policy: options.Policy = "paged",
    from_log: options.FromLog = None,
    kv_format: options.KvFormat = "bf16",
    block_size: options.BlockSize = 16,
    asked: BaseOptions,
    tiers: BaseTiers,
    objective: options.SloOptions,
    taken: TraceOptions,
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
    from kvhouse.replayer.remedies import Tries, fitting, remedies, unfit

    replayed.refuse_two_pools(from_log, asked.kv_blocks)
    links = tiers.tiering()
    tries = Tries(
        host_memory=parse_bytes(try_host_memory),
        host_link=links.host_link,
        nvme_memory=parse_bytes(try_nvme_memory),
        nvme_link=links.nvme_link,
        devices=_counts(try_devices),
        pairs=pairs,
    )
    slo = objective.slo()
    base = asked.setup(
        taken.read(trace, as_json=as_json),
        spec.load(model),
        devices.get(device),
        tiers.of_base(),
        policy=policy,
        kv_format=kv_format,
        block_size=block_size,
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
        leave_partial(f"interrupted after {report.replays:,} replays, shown are those made whole")


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
    numbers = [options.whole(word) for word in options.names(text)]
    counts = tuple(number for number in numbers if number is not None)
    if len(counts) < len(numbers):
        raise KvhouseError(f"devices {text[:40]!r}: write numbers such as 2 or 2,4")
    return counts
