"""Several models, devices and KV formats side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.planner.sizing import Plan, plan
from kvhouse.spec.model import ModelSpec

#: Combinations of the largest comparison.
MOST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One combination. Where it is impossible, ``error`` says why and all figures are None.

    Attributes:
        model: As it was named.
        device: As it was named.
        kv_format: How keys and values are stored.
        error: Why there are no figures; empty where there are.
        weight_bytes: Bytes of the weights.
        missing_bytes: What weights and a given KV memory lack to fit; 0 where they fit.
        kv_budget_bytes: What they leave for keys and values; 0 for nothing.
        bytes_per_token: What one more token takes while no layer lets an old one go.
        request_bytes: What a request of ``context`` tokens needs.
        requests: Requests of ``context`` tokens that fit, by placement policy.
        tokens_per_second: Ceiling of decoding as many as fit paged; 0 for none.
        request_tokens_per_second: The same for one of them.
        prefill_seconds: Floor of one prompt of ``context`` tokens.
        max_length: Longest request allowed.
    """

    model: str
    device: str
    kv_format: str
    error: str = ""
    weight_bytes: int | None = None
    missing_bytes: int | None = None
    kv_budget_bytes: int | None = None
    bytes_per_token: int | None = None
    request_bytes: int | None = None
    requests: dict[str, int] | None = None
    tokens_per_second: float | None = None
    request_tokens_per_second: float | None = None
    prefill_seconds: float | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows in the order of the models, for each of the devices, and for each of the formats.

    Attributes:
        context: Tokens that each request holds, the same in every row; None where each model has
            its own default.
        rows: One for each combination.
    """

    context: int | None
    rows: tuple[ComparisonRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, as plain values."""
        return asdict(self)


def compare(
    models: Sequence[str | Path | ModelSpec],
    devices: Sequence[str | Device],
    kv_formats: Sequence[str] = ("bf16",),
    **options: Any,  # noqa: ANN401 - those of plan
) -> Comparison:
    """Plan every combination.

    Args:
        models: Catalogue names, configs, GGUF files, or specs.
        devices: Names or figures.
        kv_formats: How keys and values are stored.
        options: Those of ``plan``, for every row.

    Raises:
        KvhouseError: Nothing to compare, or over 10,000 combinations. An impossible combination
            is a row that says why.
    """
    rows = len(models) * len(devices) * len(kv_formats)
    if not 1 <= rows <= MOST_ROWS:
        raise KvhouseError(
            f"{len(models)} models, {len(devices)} devices and {len(kv_formats)} KV formats are "
            f"{rows:,} combinations: give 1 to {MOST_ROWS:,}"
        )
    return Comparison(
        context=options.get("context"),
        rows=tuple(
            _row(model, device, kv_format, options)
            for model in models
            for device in devices
            for kv_format in kv_formats
        ),
    )


def _row(
    model: str | Path | ModelSpec, device: str | Device, kv_format: str, options: dict[str, Any]
) -> ComparisonRow:
    names = (
        model.name if isinstance(model, ModelSpec) else str(model),
        device.name if isinstance(device, Device) else device,
        kv_format,
    )
    try:
        result = plan(model, device, kv_format=kv_format, **options)
    except KvhouseError as error:
        return ComparisonRow(*names, error=str(error))
    return _filled(names, result)


def _filled(names: tuple[str, str, str], result: Plan) -> ComparisonRow:
    requests = {fit.policy: fit.requests for fit in result.fits}
    speed = next((one for one in result.speeds if one.batch == requests["paged"]), None)
    return ComparisonRow(
        *names,
        weight_bytes=result.budget.weights,
        missing_bytes=result.budget.missing,
        kv_budget_bytes=result.budget.kv,
        bytes_per_token=result.bytes_per_token,
        request_bytes=result.numbers.logical,
        requests=requests,
        tokens_per_second=speed.tokens_per_second if speed else 0.0,
        request_tokens_per_second=speed.request_tokens_per_second if speed else 0.0,
        prefill_seconds=result.prefill_seconds,
        max_length=result.max_length,
    )
