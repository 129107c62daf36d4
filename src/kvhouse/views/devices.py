"""The devices in a list, and one device with its sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kvhouse.devices import Device
from kvhouse.devices.device import DTYPES
from kvhouse.units import GIB, MIB, bytes_text
from kvhouse.views.tables import say_whole, table, visible

UNKNOWN = "-"

_COLUMNS = ("device", "GiB", "GB/s", "16 bit", "float8", "float4", "host\nGB/s", "peer\nGB/s")
#: Columns of a screen that takes them without breaking a figure.
_WIDTH = 80


def show_devices(console: Console, devices: Sequence[Device]) -> None:
    """Print one row a device, a table for each vendor."""
    prose = () if console.width >= _WIDTH else None
    for vendor in dict.fromkeys(device.vendor for device in devices):
        rows = (_row(device) for device in devices if device.vendor == vendor)
        console.print(table(vendor, _COLUMNS, rows, names=1, prose=prose))
    console.print(
        "GiB: memory, nominal. GB/s: read from it. 16 bit (bfloat16 or else float16), float8, "
        "float4: dense TFLOP/s, without sparsity. Links: one direction; peer: all links of its "
        "own together. "
        f"{UNKNOWN}: none, or not published. Sources: kvhouse devices NAME",
        soft_wrap=True,
    )


def show_device(console: Console, device: Device) -> None:
    """Print every figure of a device, and below them where they come from."""
    facts = [device.vendor, device.family, str(device.year or "")]
    about = ", ".join(fact for fact in facts if fact)
    head = Text.assemble((visible(device.name), "bold"), f": {visible(device.title)}")
    console.print(head, soft_wrap=True)
    if about:
        say_whole(console, about)
    numbers = {text: f"[{i}]" for i, text in enumerate(dict.fromkeys(device.sources.values()), 1)}
    rows = (
        (label, value, numbers.get(device.sources.get(figure, ""), ""))
        for figure, label, value in _figures(device)
    )
    console.print(table("Figures", ("", f"{device.basis} figures", "from"), rows))
    for text, number in numbers.items():
        say_whole(console, f"{number} {text}")
    if not numbers:
        say_whole(console, f"From {device.source}")


def _row(device: Device) -> tuple[str, ...]:
    half = device.flops.get("bfloat16", device.flops.get("float16"))
    return (
        device.name,
        f"{device.memory_bytes / GIB:,.0f}",
        _short(device.bandwidth, 1e9),
        *(_short(rate, 1e12) for rate in (half, *map(device.flops.get, ("float8", "float4")))),
        _short(device.host_link, 1e9),
        _short(device.peer_link, 1e9),
    )


def _short(rate: float | None, scale: float) -> str:
    """As ``_scaled``, and from a thousand on to a whole one."""
    return _scaled(rate, scale) if rate is None or rate < 1000 * scale else f"{rate / scale:,.0f}"


def _figures(device: Device) -> Iterator[tuple[str, str, str]]:
    """Each figure's key, what it is, and its value with its unit."""
    nominal = device.memory_bytes
    yield "memory_bytes", "memory, nominal", f"{bytes_text(nominal)} ({nominal:,} bytes)"
    driver = device.driver_bytes
    reported = "unknown" if driver is None else f"{driver / MIB:,.0f} MiB ({driver:,} bytes)"
    yield "driver_bytes", "memory that the driver reports", reported
    rates: Iterable[tuple[str, str, float | None]] = (
        ("bandwidth", "bandwidth of the memory", device.bandwidth),
        ("host_link", "link to the host, one direction", device.host_link),
        ("peer_link", "links to other devices, one direction", device.peer_link),
    )
    for figure, label, rate in rates:
        yield figure, label, _with_unit(rate, 1e9, "GB/s")
    for dtype in DTYPES:
        if dtype in device.flops:
            yield dtype, f"{dtype}, dense", _with_unit(device.flops[dtype], 1e12, "TFLOP/s")
    missing = [dtype for dtype in DTYPES if dtype not in device.flops]
    if missing:
        yield "", f"unknown: {', '.join(missing)}", UNKNOWN


def _with_unit(rate: float | None, scale: float, unit: str) -> str:
    return "unknown" if rate is None else f"{_scaled(rate, scale)} {unit}"


def _scaled(rate: float | None, scale: float) -> str:
    """A rate in multiples of ``scale``: to a tenth, and small ones to three digits."""
    if rate is None:
        return UNKNOWN
    value = rate / scale
    return f"{value:.3g}" if value < 10 else f"{value:,.1f}".removesuffix(".0")
