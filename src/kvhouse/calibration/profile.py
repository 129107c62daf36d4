"""A calibration as a small file: the rates, what they are for, and how well they fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from kvhouse.calibration.fit import Residuals
from kvhouse.calibration.profile_parts import Count, Fit, Machine, Rates, Share, Strict, Text, Ways
from kvhouse.calibration.stamp import fingerprint
from kvhouse.costs.fitted import FittedSteps, StepRates
from kvhouse.devices import Device
from kvhouse.devices.stamp import processor, versions
from kvhouse.errors import KvhouseError
from kvhouse.formats import is_rotated
from kvhouse.layout import KVLayout
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.json_file import read_json_object
from kvhouse.spec.model import ModelSpec

if TYPE_CHECKING:
    from kvhouse.engine.fast.paths import Paths

#: Stands for bytes and rates of a machine that nobody has looked at.
_UNKNOWN = 2**60


class Profile(Strict):
    """What a calibration found.

    Attributes:
        kind: Says what file it is.
        made: When, in UTC.
        model: The model's name.
        fingerprint: Of what the model keeps and computes; another model has another one.
        dtype: What it computed in.
        kv_format: How keys and values were stored.
        block_size: Tokens of a block.
        kv_rotation: Whether keys and values were rotated before they were rounded. None of a
            server seen from outside, of which nobody knows, and of what a kvhouse wrote that kept
            no record and rotated int4 only.
        fast_path: Whether kvhouse's own code might compute the model. None likewise; without a
            record it might.
        paths: Which way each block was computed. None likewise, and then not known.
        machine: Where; None where it was a server, seen from outside.
        origin: What a profile from outside is fitted to; None for one of this machine's steps.
        versions: Of what computed.
        rates: Seconds of each part of a step.
        disturbance: By how much steps took longer on average than typically, as a share; the
            rates hold it.
        others_share: Share of the cores that other work took while steps were timed, which the
            rates hold too. None of a server seen from outside, and of what an older kvhouse wrote.
        residuals: How well they fit.
        partial: Whether it was ended early, so that less was measured.
    """

    kind: Literal["kvhouse-profile-1"] = "kvhouse-profile-1"
    made: Text
    model: Text
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    dtype: Text
    kv_format: Text
    block_size: Count
    kv_rotation: bool | None = None
    fast_path: bool | None = None
    paths: Ways | None = None
    machine: Machine | None
    origin: Text | None = None
    versions: dict[str, str]
    rates: Rates
    disturbance: Share
    others_share: Annotated[float, Field(ge=0, le=1)] | None = None
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
        others_share: float | None = None,
        origin: str | None = None,
        kv_rotation: bool | None = None,
        fast_path: bool | None = None,
        paths: Paths | None = None,
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
            others_share: What share of the cores others took meanwhile, where that is known.
            origin: What it was fitted to, if that was seen from outside.
            kv_rotation: Whether keys and values were rotated, where that is known.
            fast_path: Whether kvhouse's own code might compute the model, likewise.
            paths: Which way its blocks were computed, likewise.
        """
        machine = (
            None
            if device is None
            else Machine(
                processor=processor(),
                threads=threads,
                memory_bytes=device.memory_bytes,
                bandwidth=device.bandwidth,
                flops=device.flops_for(dtype)[0],
            )
        )
        return cls(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            model=spec.name,
            fingerprint=fingerprint(spec),
            dtype=dtype,
            kv_format=layout.format.name,
            block_size=layout.block_size,
            kv_rotation=kv_rotation,
            fast_path=fast_path,
            paths=None if paths is None else Ways.of(paths),
            machine=machine,
            origin=origin,
            versions=versions(),
            rates=Rates(**asdict(rates)),
            disturbance=disturbance,
            others_share=others_share,
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

    def refuse_other_way(self, *, rotated: bool, fast_path: bool) -> None:
        """Refuse a profile of an engine that was asked to compute in another way.

        Args:
            rotated: Whether keys and values are rotated.
            fast_path: Whether kvhouse's own code may compute the model.

        Raises:
            KvhouseError: It is; the message says in what it differs.
        """
        if self.machine is None:
            return
        if is_rotated(self.kv_format, self.kv_rotation) != rotated:
            raise KvhouseError(
                f"the profile is of keys and values that were {'not ' if rotated else ''}rotated: "
                f"calibrate with --{'' if rotated else 'no-'}kv-rotation"
            )
        if (self.fast_path is not False) != fast_path:
            raise KvhouseError(
                f"the profile was made {'without' if fast_path else 'with'} the fast path: "
                f"calibrate with --{'' if fast_path else 'no-'}fast-path"
            )

    def otherwise(self, paths: Paths) -> str | None:
        """What of a run was computed in another way than the profile's steps; None for nothing."""
        if self.machine is None:
            return None
        if self.paths is None:
            return "does not say which way the model was computed: an older kvhouse made it"
        ran = Ways.of(paths)
        if (self.paths.fast, self.paths.compiled) == (ran.fast, ran.compiled):
            return None
        return f"is of a model that was computed {self.paths.words}, and this run {ran.words}"

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
            "dtype": self.dtype,
            "kv_format": self.kv_format,
            "kv_rotation": self.kv_rotation,
            "paths": self.paths and self.paths.model_dump(),
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
