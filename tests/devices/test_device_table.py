"""The device table against the vendors' published figures, copied here by hand."""

import json
from importlib.resources import files

import pytest

from kvhouse import devices
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError

# name: memory in GiB, bandwidth in GB/s, then dense TFLOP/s in float32 and in 16 bit
PUBLISHED = {
    "a100-80g": (80, 2039, 19.5, 312),
    "a100-40g": (40, 1555, 19.5, 312),
    "h100-80g": (80, 3350, 66.9, 989.4),
    "rtx-4090": (24, 1008, 82.6, 165.2),
    "l4": (24, 300, 30.3, 121),
    "a10-24g": (24, 600, 31.2, 125),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    memory, bandwidth, float32, half = PUBLISHED[name]
    device = devices.get(name)
    assert device.name == name
    assert device.memory_bytes == memory * 1024**3
    assert device.bandwidth == pytest.approx(bandwidth * 1e9, rel=1e-9)
    assert device.flops_for("float32") == (pytest.approx(float32 * 1e12, rel=1e-9), "float32")
    for dtype in ("bfloat16", "float16"):
        assert device.flops_for(dtype) == (pytest.approx(half * 1e12, rel=1e-9), dtype)
    assert device.basis == "datasheet"


def test_names_are_the_table_and_local():
    assert set(devices.names()) == {*PUBLISHED, "local"}


def test_every_figure_has_a_source_with_an_address():
    table = json.loads(files("kvhouse.devices").joinpath("devices.json").read_text())
    for name, entry in table["devices"].items():
        for cell in (entry["memory_gib"], entry["bandwidth"], *entry["flops"].values()):
            address = table["sources"][cell["source"]]
            assert "https://" in address
            assert address in devices.get(name).source


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(KvhouseError, match=r"unknown device 'h1000'.*a100-80g.*local"):
        devices.get("h1000")


def test_a_missing_dtype_falls_back_to_float32_and_says_so():
    device = Device("d", "d", 1, 1.0, {"float32": 7.0}, "measured", "test")
    assert device.flops_for("bfloat16") == (7.0, "float32")


def test_no_figure_at_all_is_an_error():
    device = Device("d", "d", 1, 1.0, {"float16": 7.0}, "measured", "test")
    with pytest.raises(KvhouseError, match="device d has no FLOP/s for bfloat16"):
        device.flops_for("bfloat16")
