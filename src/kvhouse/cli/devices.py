"""``kvhouse devices``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.devices import Device


def devices_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one device and where each of its figures comes from: a name of the list, "
            "a device file.json, or local, which measures this machine anew. By default all are "
            "listed."
        ),
    ] = None,
    vendor: Annotated[
        str | None, typer.Option(help="List one vendor's devices: NVIDIA, AMD, Intel, Apple, ...")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the devices that plans can be made for, or show one with its sources.

    Example: kvhouse devices h100-80g

    The JSON of one device, edited, is a device file: kvhouse plan llama-2-7b --device mine.json
    """
    from kvhouse import devices

    if name is None:
        found = devices.listed(vendor)
        if as_json:
            print_json({"devices": [device.to_dict() for device in found]})
            return
    else:
        if vendor is not None:
            raise KvhouseError("give a device or --vendor, not both")
        found = (_measured() if name == devices.LOCAL else devices.get(name),)
        if as_json:
            print_json(found[0].to_dict())
            return
    from rich.console import Console

    from kvhouse.views.devices import show_device, show_devices

    if name is None:
        show_devices(Console(), found)
    else:
        show_device(Console(), found[0])


def _measured() -> Device:
    """This machine, measured now, whatever is kept of it."""
    from kvhouse.devices.local import measure_anew

    return measure_anew()
