"""What ``kvhouse replay``, ``remedies`` and ``sweep`` do alike before they replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvhouse.cli.output import warn
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile
    from kvhouse.replayer import Setup


def profile_of(file: str) -> Profile:
    """The profile in a file.

    Raises:
        KvhouseError: Unreadable, damaged, or no profile.
    """
    from kvhouse.calibration.profile import read_profile

    return read_profile(file)


def calibrated(setup: Setup, profile: Profile, from_log: str | None) -> Setup:
    """The setup with the profile's step times, on weights in the dtype that it computed in.

    Raises:
        KvhouseError: The profile is of another model or of other settings, or does not know what
            is asked of it.
    """
    if profile.machine is None:
        _refuse_unseen(setup, from_log)
    times = profile.steps(setup.model, setup.layout)
    return replace(setup, weight_dtype=profile.dtype, times=times)


def _refuse_unseen(setup: Setup, from_log: str | None) -> None:
    """Refuse what cannot be said of a server that was seen from outside only."""
    seen = "the profile is of a server seen from outside, which does not show"
    if setup.kv_memory is None and setup.kv_blocks is None and from_log is None:
        raise KvhouseError(f"{seen} its memory: give --kv-memory, --kv-blocks or --from-log")
    if setup.tiering.host_memory is not None or setup.tiering.nvme_memory is not None:
        raise KvhouseError(f"{seen} when loading pays: leave --host-memory and --nvme-memory out")


def refuse_two_pools(from_log: str | None, kv_blocks: int | None) -> None:
    """Refuse a pool that is named twice.

    Raises:
        KvhouseError: It is.
    """
    if from_log and kv_blocks:
        raise KvhouseError("--from-log and --kv-blocks both name the pool: give one of them")


def pooled(setup: Setup, from_log: str | None, device: str) -> Setup:
    """The setup with the pool of an engine's log, if there is one; warns of one too large.

    Raises:
        KvhouseError: The log names no pool.
    """
    if from_log:
        from kvhouse.replayer.from_log import blocks_from_log

        setup = replace(setup, kv_blocks=blocks_from_log(from_log, setup.layout))
    if setup.missing_bytes:
        missing = f"{setup.missing_bytes:,} bytes"
        warn(f"the weights and this pool do not fit {device}: {missing} missing; replayed anyway")
    return setup
