"""``kvhouse replay``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvhouse.cli import options, replayed, tier_options
from kvhouse.cli.output import line_log, plan_log, print_json, require_apart, warn
from kvhouse.cli.pictures import Pictures, picture_of
from kvhouse.cli.progress import INTERRUPTED, interruptible, leave_if_partial, progress
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_seconds

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile
    from kvhouse.replayer import SLO, Setup

#: The device where none is named.
_DEVICE = "a100-80g"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is replayed, and how it is shown."""

    setup: Setup
    model: str
    device: str
    slo: SLO | None
    timeline: int | None
    as_json: bool
    pictures: Pictures
    profile: Profile | None = None

    @property
    def requests(self) -> int:
        """Requests of the trace."""
        return len(self.setup.part.requests)

    @property
    def title(self) -> str:
        """The traffic and the device in words."""
        title = f"{self.requests:,} requests of {self.setup.trace.name} on {self._devices}"
        return f"{title}, {self.profile.about}" if self.profile else title

    @property
    def _devices(self) -> str:
        tp = self.setup.tp
        return self.device if tp == 1 else f"each of {tp} {self.device} (tensor parallel)"

    def print_json(self, partial: bool, figures: dict[str, Any]) -> None:
        """Print figures with what they are for, and whether Ctrl-C cut them short."""
        head = {
            "model": self.model,
            "device": self.device,
            "profile": self.profile.about_dict() if self.profile else None,
        }
        print_json({**head, "partial": partial, **figures})


def replay_command(
    trace: options.Trace,
    model: Annotated[str, typer.Option(help="Catalogue name, directory, config or GGUF file.")],
    device: options.Device = _DEVICE,
    profile_file: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Take step times from a profile of `kvhouse calibrate`, in place of a device's "
            "floors; without --device and --weight-dtype.",
        ),
    ] = None,
    policy: options.Policies = None,
    fit: options.Fit = "first",
    kv_memory: options.KvMemory = None,
    kv_blocks: options.KvBlocks = None,
    from_log: options.FromLog = None,
    prefix_cache: options.PrefixCache = False,
    host_memory: tier_options.HostMemory = None,
    host_link: tier_options.HostLink = None,
    nvme_memory: tier_options.NvmeMemory = None,
    nvme_link: tier_options.NvmeLink = None,
    link_latency: tier_options.LinkLatency = "10us",
    tier_replacement: tier_options.TierReplacement = "lru",
    tier_write: tier_options.TierWrite = "back",
    tp: options.Tp = 1,
    replica: options.Replica = "1/1",
    compare: options.Compare = False,
    find: options.Find = None,
    slo_ttft: options.SloTtft = None,
    slo_tpot: options.SloTpot = None,
    slo_latency: options.SloLatency = None,
    slo_share: options.SloShare = 0.99,
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
    kv_format: Annotated[
        str | None,
        typer.Option(
            "--kv-format",
            help="bf16, fp16, fp32, fp8, int8 or int4. By default bf16, or the profile's.",
        ),
    ] = None,
    weight_dtype: options.WeightDtype = None,
    block_size: options.BlockSize = 16,
    token_budget: options.TokenBudget = 2048,
    max_running: options.MaxRunning = 256,
    order: options.Order = "fcfs",
    prefill_first: options.PrefillFirst = False,
    watermark: options.Watermark = 0.05,
    utilization: options.Utilization = 0.9,
    timeline: options.Timeline = None,
    events_file: options.Events = None,
    plan_log_file: options.PlanLog = None,
    html: options.Html = None,
    png: options.Png = None,
    svg: options.Svg = None,
    lang: options.Lang = "en",
    as_json: options.AsJson = False,
) -> None:
    """Lead a traffic trace through the real scheduler and allocator on a modelled clock.

    Times are roofline floors, or with --profile those of a calibrated machine. Bytes are exact;
    so are admissions and preemptions with --backlog, and otherwise they follow the modelled times.

    Example: kvhouse replay azure-conv-2023 --model llama-2-7b --kv-memory 8GiB --compare

    Example: kvhouse replay azure-conv-2023 --model llama-2-7b --find max-rate --slo-ttft 1s
    """
    policies = None if policy is None else policy.split(",")
    several = compare or (policies is not None and len(policies) > 1)
    if find not in (None, "max-rate", "min-memory"):
        raise KvhouseError(f"--find {find}: choose max-rate or min-memory")
    if (several or find) and (events_file or plan_log_file or (several and find)):
        raise KvhouseError("--events, --plan-log, --find and a comparison do not go together")
    pictures = Pictures(html, png, svg, lang)
    if find and pictures:
        raise KvhouseError("--html, --png and --svg show one replay or a comparison: not --find")
    if timeline is not None and (find or not as_json):
        raise KvhouseError("--timeline goes with --json and without --find")
    logs = {"--events": events_file, "--plan-log": plan_log_file}
    require_apart(logs | pictures.files, (trace, model, device, from_log, profile_file))

    from kvhouse import devices, spec
    from kvhouse.replayer import Setup, Tiering, read_trace

    replayed.refuse_two_pools(from_log, kv_blocks)

    profile = None
    if profile_file is not None:
        if device != _DEVICE or weight_dtype or tp > 1:
            raise KvhouseError(
                "--profile says how long steps take: not --device, --weight-dtype, nor --tp"
            )
        profile = replayed.profile_of(profile_file)
        device = profile.device.title
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
    setup = Setup(
        traffic,
        spec.load(model),
        profile.device if profile else devices.get(device),
        kv_memory=options.size(kv_memory),
        kv_blocks=kv_blocks,
        policy=policies[0] if policies else "paged",
        fit=fit,
        prefix_cache=prefix_cache,
        kv_format=kv_format or (profile.kv_format if profile else "bf16"),
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
            options.rate(host_link),
            options.size(nvme_memory),
            options.rate(nvme_link),
            parse_seconds(link_latency),
            tier_replacement,
            tier_write,
        ),
        tp=tp,
        replica=options.part(replica),
    )
    if profile:
        setup = replayed.calibrated(setup, profile, from_log)
    setup = replayed.pooled(setup, from_log, device)
    asked = _Asked(setup, model, device, slo, timeline, as_json, pictures, profile)
    if find:
        _find(asked, find, slo_share)
    elif several:
        _compare(asked, policies)
    else:
        _replay(asked, events_file, plan_log_file)


def _replay(asked: _Asked, events_file: str | None, plan_log_file: str | None) -> None:
    """One drive."""
    recorder = asked.pictures.recorder(asked.setup)
    with (
        interruptible() as stop,
        plan_log(plan_log_file, stop) as on_plan,
        line_log(events_file, "event log", stop) as on_event,
        asked.pictures.open(stop) as draw,
        progress("replay", asked.requests, as_json=asked.as_json) as on_ended,
    ):
        result = asked.setup.drive(
            slo=asked.slo,
            timeline=asked.timeline,
            on_ended=on_ended,
            on_plan=on_plan,
            on_event=on_event,
            stop=stop,
            recorder=recorder,
        )
        if recorder:
            draw(picture_of(asked.setup, asked.model, asked.device, [result], [recorder]))
    if asked.as_json:
        asked.print_json(result.partial, result.to_dict())
    else:
        from rich.console import Console

        from kvhouse.views.replay import show_results

        show_results(Console(), asked.title, [result])
    leave_if_partial([result], 1)


def _compare(asked: _Asked, policies: list[str] | None) -> None:
    """Several policies, one column each."""
    from kvhouse.core.policy import POLICIES
    from kvhouse.replayer.compare import compare, variants

    setups = variants(asked.setup, policies or POLICIES)
    recorders = [asked.pictures.recorder(setup) for setup in setups]
    total = asked.requests * len(setups)
    with (
        interruptible() as stop,
        asked.pictures.open(stop) as draw,
        progress("replays", total, as_json=asked.as_json) as on_ended,
    ):
        results = compare(
            setups,
            slo=asked.slo,
            timeline=asked.timeline,
            on_ended=on_ended,
            recorders=recorders,
            stop=stop,
        )
        if asked.pictures:
            done = recorders[: len(results)]
            draw(picture_of(asked.setup, asked.model, asked.device, results, done))
    if asked.as_json:
        figures = [result.to_dict() for result in results]
        asked.print_json(stop.cut_short, {"results": figures})
    else:
        from rich.console import Console

        from kvhouse.views.replay import show_results

        show_results(Console(), asked.title, results)
    leave_if_partial(results, len(setups))


def _find(asked: _Asked, what: str, share: float) -> None:
    """A search, with every replay that it took."""
    from kvhouse.replayer.find import Goal, SearchStopped, find_max_rate, find_min_memory

    search = find_max_rate if what == "max-rate" else find_min_memory
    goal = Goal(asked.slo, share)
    try:
        with interruptible() as stop, progress(what, None, as_json=asked.as_json) as on_ended:
            found = search(asked.setup, goal, on_ended=on_ended, stop=stop)
    except SearchStopped as reason:
        warn(f"{what}: {reason}")
        raise typer.Exit(INTERRUPTED) from None
    if asked.as_json:
        asked.print_json(found.partial, found.to_dict())
    else:
        from rich.console import Console

        from kvhouse.views.find import show_found

        show_found(Console(), asked.title, found)
    if found.partial:
        warn(f"partial: {what} ended early, after {len(found.probes)} replays")
        raise typer.Exit(INTERRUPTED)
