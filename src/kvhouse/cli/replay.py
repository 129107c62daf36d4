"""``kvhouse replay``."""

from __future__ import annotations

from typing import Annotated

import typer

from kvhouse.cli import options, replayed
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import require_apart
from kvhouse.cli.pictures import Pictures
from kvhouse.cli.replaying import Replay
from kvhouse.cli.setup_options import SetupOptions
from kvhouse.cli.tier_options import TierOptions
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError

#: The device where none is named.
_DEVICE = "a100-80g"


@grouped
def replay_command(
    trace: options.Trace,
    *,
    model: options.ModelName,
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
    from_log: options.FromLog = None,
    kv_format: Annotated[
        str | None,
        typer.Option(
            "--kv-format",
            help="bf16, fp16, fp32, fp8, int8 or int4. By default bf16, or the profile's.",
        ),
    ] = None,
    block_size: options.BlockSize = 16,
    asked: SetupOptions,
    tiers: TierOptions,
    compare: options.Compare = False,
    find: options.Find = None,
    objective: options.SloOptions,
    slo_share: options.SloShare = 0.99,
    taken: TraceOptions,
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

    replayed.refuse_two_pools(from_log, asked.kv_blocks)

    profile = None
    if profile_file is not None:
        if device != _DEVICE or asked.weight_dtype or asked.tp > 1:
            raise KvhouseError(
                "--profile says how long steps take: not --device, --weight-dtype, nor --tp"
            )
        profile = replayed.profile_of(profile_file)
        device = profile.device.title
    slo = objective.slo()
    setup = asked.setup(
        taken.read(trace, as_json=as_json),
        spec.load(model),
        profile.device if profile else devices.get(device),
        tiers.tiering(),
        policy=policies[0] if policies else "paged",
        kv_format=kv_format or (profile.kv_format if profile else "bf16"),
        block_size=block_size,
    )
    if profile:
        setup = replayed.calibrated(setup, profile, from_log)
    setup = replayed.pooled(setup, from_log, device)
    ready = Replay(setup, model, device, slo, timeline, as_json, pictures, profile)
    if find:
        ready.find(find, slo_share)
    elif several:
        ready.compare(policies)
    else:
        ready.drive(events_file, plan_log_file)
