"""A calibration as a small file: the rates, what they are for, and how well they fit."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvhouse.calibration.fit import Residuals
from kvhouse.costs.fitted import FittedSteps, StepRates
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.json_file import read_json_object
from kvhouse.spec.model import ModelSpec

#: Packages whose versions may change how long steps take.
_PACKAGES = ("kvhouse", "torch", "transformers", "numba", "numpy")

#: Stands for bytes and rates of a machine that nobody has looked at.
_UNKNOWN = 2**60

_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Characters of a text.
MOST_TEXT = 400
_Text = Annotated[str, Field(max_length=MOST_TEXT)]
_Count = Annotated[int, Field(ge=1, le=2**50)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Strict):
    """Where it was measured: the processor, the threads, and memory as ``device local`` has it."""

    processor: _Text
    threads: _Count
    memory_bytes: _Count
    bandwidth: Annotated[float, Field(gt=0, le=1e20)]
    flops: Annotated[float, Field(gt=0, le=1e20)]


class Rates(_Strict):
    """See ``costs.StepRates``."""

    knots: Annotated[tuple[_Count, ...], Field(min_length=1, max_length=1000)]
    knot_seconds: Annotated[tuple[_Seconds, ...], Field(max_length=1000)]
    sampling: _Seconds
    sample: _Seconds
    row: _Seconds
    decode_byte: _Seconds
    chunk_byte: _Seconds
    chunk_flop: _Seconds


class Fit(_Strict):
    """See ``fit.Residuals``."""

    steps: _Count
    mean: _Share
    worst: _Share
    cross_validated_mean: _Share
    cross_validated_p90: _Share


class Profile(_Strict):
    """What a calibration found.

    Attributes:
        kind: Says what file it is.
        made: When, in UTC.
        model: The model's name.
        fingerprint: Of what the model keeps and computes; another model has another one.
        dtype: What it computed in.
        kv_format: How keys and values were stored.
        block_size: Tokens of a block.
        machine: Where; None where it was a server, seen from outside.
        origin: What a profile from outside is fitted to; None for one of this machine's steps.
        versions: Of what computed.
        rates: Seconds of each part of a step.
        disturbance: By how much steps took longer on average than typically, as a share; the
            rates hold it.
        residuals: How well they fit.
        partial: Whether it was ended early, so that less was measured.
    """

    kind: Literal["kvhouse-profile-1"] = "kvhouse-profile-1"
    made: _Text
    model: _Text
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    dtype: _Text
    kv_format: _Text
    block_size: _Count
    machine: Machine | None
    origin: _Text | None = None
    versions: dict[str, str]
    rates: Rates
    disturbance: _Share
    residuals: Fit
    partial: bool = False

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        layout: KVLayout,
        dtype: str,
        device: Device | None,
        threads: int,
        rates: StepRates,
        residuals: Residuals,
        *,
        disturbance: float,
        partial: bool,
        origin: str | None = None,
    ) -> Profile:
        """The profile of rates that were just fitted.

        Args:
            spec: The model.
            layout: How its KV lay in memory.
            dtype: What it computed in.
            device: This machine's memory, bandwidth and FLOP/s, measured; None for another one.
            threads: Threads that computed.
            rates: The rates.
            residuals: How well they fit.
            disturbance: What of them stands for what else the machine does.
            partial: Whether the calibration was ended early.
            origin: What it was fitted to, if that was seen from outside.
        """
        machine = (
            None
            if device is None
            else Machine(
                processor=processor(),
                threads=threads,
                memory_bytes=device.memory_bytes,
                bandwidth=device.bandwidth,
                flops=max(device.flops.values()),
            )
        )
        return cls(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            model=spec.name,
            fingerprint=fingerprint(spec),
            dtype=dtype,
            kv_format=layout.format.name,
            block_size=layout.block_size,
            machine=machine,
            origin=origin,
            versions=versions(),
            rates=Rates(**asdict(rates)),
            disturbance=disturbance,
            residuals=Fit(**asdict(residuals)),
            partial=partial,
        )

    @property
    def device(self) -> Device:
        """The machine as a device, for what a profile does not say.

        Of a machine that nobody has looked at it says nothing that may be used.
        """
        if self.machine is None:
            return Device(
                name="outside",
                title="a server seen from outside",
                memory_bytes=_UNKNOWN,
                bandwidth=_UNKNOWN,
                flops={"float32": _UNKNOWN},
                basis="given",
                source="nobody has looked at it",
            )
        return Device(
            name="calibrated",
            title=f"{self.machine.processor}, {self.machine.threads} threads",
            memory_bytes=self.machine.memory_bytes,
            bandwidth=self.machine.bandwidth,
            flops={"float32": self.machine.flops},
            basis="measured",
            source="a calibration profile",
        )

    @property
    def about(self) -> str:
        """Where and when, in words."""
        if self.machine is None:
            return f"estimated {show_path(self.origin or 'from outside')}"
        return f"calibrated on {self.machine.processor}, {self.made[:10]}"

    def refuse_other(self, spec: ModelSpec, layout: KVLayout, dtype: str | None = None) -> None:
        """Refuse a profile of another model, or of other settings.

        Args:
            spec: The model.
            layout: How its KV lies in memory.
            dtype: What it computes in; None where nobody says.

        Raises:
            KvhouseError: It is; the message says in what it differs.
        """
        if self.fingerprint != fingerprint(spec):
            raise KvhouseError(
                f"the profile is of {show(self.model)}, not of {spec.name}: calibrate that"
            )
        for name, own, asked in (
            ("KV format", self.kv_format, layout.format.name),
            ("block size", self.block_size, layout.block_size),
            ("dtype", self.dtype, dtype or self.dtype),
        ):
            if own != asked:
                raise KvhouseError(
                    f"the profile is of {name} {show(own)}, not {asked}: calibrate with that"
                )

    def steps(self, spec: ModelSpec, layout: KVLayout) -> FittedSteps:
        """How long steps take.

        Raises:
            KvhouseError: It is of another model or of other settings, or its rates cannot be.
        """
        self.refuse_other(spec, layout)
        return FittedSteps(spec, layout, StepRates(**self.rates.model_dump()))

    def about_dict(self) -> dict[str, Any]:
        """What figures that stand on it say of it."""
        return {
            "model": self.model,
            "processor": self.machine and self.machine.processor,
            "threads": self.machine and self.machine.threads,
            "origin": self.origin,
            "made": self.made,
            "cross_validated_mean": self.residuals.cross_validated_mean,
            "partial": self.partial,
        }

    def encode(self) -> bytes:
        """The file's content."""
        return (json.dumps(self.model_dump(), indent=2) + "\n").encode()


def read_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        KvhouseError: Unreadable, damaged, or no profile.
    """
    values = read_json_object(Path(path))
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        place = show(".".join(map(str, problem["loc"])))
        raise KvhouseError(
            f"{show_path(path)}: is no profile of kvhouse: {place}: {problem['msg'].lower()}"
        ) from None


def fingerprint(spec: ModelSpec) -> str:
    """A short name for what decides a step's work, whatever the model is called."""
    work = (spec.layers, spec.hidden_size, spec.vocab_size, spec.parameters)
    return hashlib.sha256(repr(work).encode()).hexdigest()[:16]


def processor() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """What computes here, and in which version."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
