"""``kvhouse devices``: the list, one device, this machine, and errors of one line."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvhouse import devices
from kvhouse.cli import app
from kvhouse.devices import local
from kvhouse.errors import KvhouseError
from kvhouse.views.devices import show_device, show_devices


def shown(show, value, width=100):
    console = Console(file=io.StringIO(), width=width)
    show(console, value)
    return console.file.getvalue()


def test_the_list_has_every_device_and_fits_a_screen():
    lines = shown(show_devices, devices.listed()).splitlines()
    named = {line.split()[0]: line.split() for line in lines if line.strip()}
    for device in devices.listed():
        assert device.name in named
    assert named["h100-80g"] == ["h100-80g", "80", "3,350", "989.4", "1,979", "-", "63", "450"]
    assert named["t4"] == ["t4", "16", "320", "65", "-", "-", "15.8", "-"]
    tables = [line for line in lines if not line.startswith("GiB:")]
    assert max(map(len, tables)) <= 100


def test_no_figure_of_the_list_is_broken_on_a_screen_of_80_columns():
    narrow = shown(show_devices, devices.listed(), width=80).splitlines()
    wide = shown(show_devices, devices.listed(), width=200).splitlines()
    assert [line.split() for line in narrow[:-1]] == [line.split() for line in wide[:-1]]
    assert max(map(len, narrow[:-1])) <= 80


def test_sources_are_numbered_in_brackets_and_nothing_else():
    lines = shown(show_device, devices.get("h100-80g")).splitlines()
    assert "\\" not in "".join(lines)
    assert [line.split()[-1] for line in lines if "nominal" in line] == ["[1]"]
    assert [line[:4] for line in lines if line.startswith("[")] == [f"[{i}] " for i in range(1, 6)]


def test_one_device_shows_each_figure_and_its_source():
    text = shown(show_device, devices.get("l4"))
    assert "24 GiB (25,769,803,776 bytes)" in text
    assert "23,034 MiB (24,152,899,584 bytes)" in text
    assert "242.5 TFLOP/s" in text
    assert "half of 485 with sparsity" in text
    assert "unknown: int4, float4" in text
    for source in devices.get("l4").sources.values():
        assert source in text


def test_the_json_of_one_and_of_all_is_the_same():
    runner = CliRunner()
    one = json.loads(runner.invoke(app, ["devices", "mi300x", "--json"]).stdout)
    some = json.loads(runner.invoke(app, ["devices", "--vendor", "amd", "--json"]).stdout)
    assert one in some["devices"]
    assert one["driver_bytes"] == 206_141_652_992
    assert one["flops"]["int4"] is None
    assert len(some["devices"]) == len(devices.listed("AMD"))


def test_local_is_measured(monkeypatch):
    def measured():
        return replace(devices.get("l4"), basis="measured", sources={}, source="passes of a test")

    monkeypatch.setattr(local, "measure_anew", measured)
    result = CliRunner().invoke(app, ["devices", "local"])
    assert result.exit_code == 0
    assert "measured figures" in result.stdout
    assert "From passes of a test" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["h1000"], "did you mean h100-80g"),
        (["--vendor", "Cray"], "no device of vendor 'Cray'"),
        (["l4", "--vendor", "AMD"], "not both"),
    ],
)
def test_errors_say_what_to_do(arguments, reason):
    result = CliRunner().invoke(app, ["devices", *arguments])
    assert isinstance(result.exception, KvhouseError)
    assert reason in str(result.exception)
