"""Measuring this machine: the arithmetic against a fake clock, the rest for being plausible."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse import devices
from kvhouse.devices import local


def test_rate_takes_the_fastest_pass():
    moments = iter([0.0, 4.0, 10.0, 12.0, 20.0, 28.0])
    assert local.rate(lambda: None, 100.0, 3, clock=lambda: next(moments)) == 50.0


def test_local_is_measured_and_complete():
    device = devices.get("local")
    assert device.name == "local"
    assert device.basis == "measured"
    assert device.bandwidth > 0
    assert set(device.flops) == {"float32"}
    assert device.flops["float32"] > 0
    assert devices.get("local") is device


def test_larger_products_are_tried_while_they_are_over_quickly():
    fast = {1536: 2e12, 3072: 5e12, 6144: 4e12}
    assert local._best_gemm_rate(lambda side: fast[side]) == 5e12
    assert local._best_gemm_rate(lambda side: {1536: 1e11}[side]) == 1e11


def test_memory_is_what_the_kernel_says(monkeypatch):
    monkeypatch.setattr(local, "_CGROUP_LIMITS", ())
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            assert local.memory_bytes() == pytest.approx(int(line.split()[1]) * 1024, rel=1e-3)


def test_a_control_group_limit_counts(monkeypatch, tmp_path):
    limit, unlimited = tmp_path / "memory.max", tmp_path / "other"
    limit.write_text("1048576\n")
    unlimited.write_text("max\n")
    monkeypatch.setattr(
        local, "_CGROUP_LIMITS", (str(limit), str(unlimited), str(tmp_path / "none"))
    )
    assert local.memory_bytes() == 1048576


def test_the_table_alone_needs_no_numpy():
    code = (
        "import sys; from kvhouse import devices; devices.get('l4'); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
