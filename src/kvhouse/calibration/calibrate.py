"""From timed steps to a profile, and the profile that is kept of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvhouse import devices
from kvhouse.calibration.fit import fit
from kvhouse.calibration.profile import Profile, read_profile
from kvhouse.calibration.stamp import fingerprint
from kvhouse.devices.stamp import processor, versions
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.cache import profile_cache
from kvhouse.spec.model import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvhouse.calibration.measure import Bench, Timed
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.load import LoadedModel


def profile_of(
    loaded: LoadedModel,
    bench: Bench,
    timed: Sequence[Timed],
    *,
    partial: bool,
    others_share: float | None = None,
) -> Profile:
    """Fit rates to timed steps; the machine's memory and rates are measured for the file.

    The rates are fitted to typical times, and then hold what disturbs steps on average. What slows
    all steps alike is in the typical times already, and only ``others_share`` tells of it.

    Args:
        loaded: The model.
        bench: Where its steps were timed.
        timed: The steps.
        partial: Whether that was ended early.
        others_share: What share of the cores others took meanwhile; see ``devices.others``.
    """
    from kvhouse.calibration.measure import disturbance

    rates, residuals = fit([one.parts for one in timed], [one.typical for one in timed])
    disturbed = disturbance(timed)
    return Profile.of(
        loaded.spec,
        bench.layout,
        loaded.dtype,
        devices.get(devices.LOCAL),
        loaded.threads,
        rates.slower(1 + disturbed),
        residuals,
        disturbance=disturbed,
        others_share=others_share,
        partial=partial,
        kv_rotation=bench.config.rotated,
        fast_path=bench.config.fast_path,
        paths=bench.paths,
    )


def kept_at(spec: ModelSpec, config: EngineConfig, dtype: str) -> Path:
    """Where the profile of this machine for a model and an engine is kept."""
    stored = f"{config.kv_format}-rotated" if config.rotated else config.kv_format
    ways = "" if config.fast_path else "-no-fast-path"
    name = f"{fingerprint(spec)}-{dtype}-{stored}-{config.block_size}{ways}.json"
    return profile_cache() / name


def kept(
    spec: ModelSpec, config: EngineConfig, dtype: str, threads: int
) -> tuple[Profile | None, str]:
    """The profile that is kept for this machine, and why there is none where it is None.

    Args:
        spec: The model; its weights need not be loaded.
        config: The engine's.
        dtype: What the model computes in.
        threads: Threads that the engine computes with.
    """
    path = kept_at(spec, config, dtype)
    if not path.is_file():
        return None, "no profile of this model and these settings is kept"
    try:
        profile = read_profile(path)
        refuse_other(profile, spec, config, dtype)
    except KvhouseError as error:
        return None, f"the kept profile is of no use: {error}"
    reason = elsewhere(profile, threads)
    return (None, f"the kept profile is of {reason}") if reason else (profile, "")


def refuse_other(profile: Profile, spec: ModelSpec, config: EngineConfig, dtype: str) -> None:
    """Refuse a profile of another model, or of an engine of other settings.

    Args:
        profile: The profile.
        spec: The model.
        config: The engine's.
        dtype: What the model computes in.

    Raises:
        KvhouseError: It is; the message says in what it differs.
    """
    layout = KVLayout.of(spec, config.kv_format, config.block_size, dtype=dtype)
    profile.refuse_other(spec, layout, dtype)
    profile.refuse_other_way(rotated=config.rotated, fast_path=config.fast_path)


def elsewhere(profile: Profile, threads: int) -> str | None:
    """What of a profile is not so here; None where it is of this machine as it is now.

    Args:
        profile: The profile.
        threads: Threads that the engine computes with.
    """
    if profile.machine is None:
        return "a server seen from outside"
    if (profile.machine.processor, profile.machine.threads) != (processor(), threads):
        return f"another machine ({profile.machine.processor}, {profile.machine.threads} threads)"
    others = [name for name, value in versions().items() if profile.versions.get(name) != value]
    return f"other versions of {', '.join(others)}" if others else None


def keep(profile: Profile, path: Path) -> None:
    """Keep a profile; it is there whole or not at all.

    Raises:
        KvhouseError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(profile.encode())
        partial.replace(path)
    except OSError as error:
        raise KvhouseError(f"{path}: cannot be written: {error.strerror}") from None
