"""Measuring this machine: the arithmetic against fake clocks and meters, the rest for sense."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvhouse import devices
from kvhouse.cli import app
from kvhouse.costs import Roofline
from kvhouse.devices import kept, local, others, passes
from kvhouse.layout import KVLayout
from kvhouse.meters import METERS, Rates
from kvhouse.spec import load

QUICK = Rates(5e9, {"float32": 2e11, "bfloat16": 9e11, "float16": 1e9}, "a meter of the test's")


def numpy_alone(monkeypatch, bandwidth=4e9, float32=1e11):
    """Take numpy's figures as given, and no meter above it."""
    monkeypatch.setattr(passes, "best_rate", lambda _: float32)
    monkeypatch.setattr(passes, "read_bandwidth", lambda *_: bandwidth)
    monkeypatch.setattr(local, "METERS", [])


class Taken:
    """Stands for a watch that saw others take a share of the cores."""

    def __init__(self, share):
        self._share = share

    def __call__(self):
        return self

    def share(self):
        return self._share


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    local.measure.cache_clear()
    yield tmp_path / "kvhouse" / "machines"
    local.measure.cache_clear()


def test_rate_takes_the_fastest_pass():
    moments = iter([0.0, 0.04, 0.1, 0.12, 0.2, 0.28])
    assert passes.rate(lambda: None, 1.0, 3, lambda: next(moments)) == pytest.approx(50.0)


def test_slow_passes_are_few():
    moments = iter([0.0, 30.0])
    assert passes.rate(lambda: None, 60.0, 3, lambda: next(moments)) == 2.0


def test_larger_products_are_tried_while_they_are_over_quickly():
    fast = {256: 1e11, 768: 4e12, 1536: 8e12, 3072: 2e12}
    assert passes.best_rate(lambda side: fast[side]) == 8e12
    assert passes.best_rate(lambda side: {256: 1e9}[side]) == 1e9


def test_local_is_measured_with_the_engine_s_products():
    """The front door appoints the engine, which is installed where tests run."""
    assert len(METERS) == 1
    device = devices.get("local")
    assert device.name == "local"
    assert device.basis == "measured"
    assert device.bandwidth > 0
    assert device.flops["float32"] > 0
    assert "numpy's reads and products; torch's" in device.source
    assert devices.get("local") is device


def test_the_fastest_way_counts(monkeypatch):
    numpy_alone(monkeypatch)
    monkeypatch.setattr(others, "Watch", Taken(0.0))
    assert local.measure_anew().flops == {"float32": 1e11}
    monkeypatch.setattr(local, "METERS", [lambda: QUICK])
    device = local.measure_anew()
    # Float16 is multiplied sooner as float32, and that is its rate.
    assert device.flops == {"float32": 2e11, "bfloat16": 9e11}
    assert device.flops_for("float16") == (2e11, "float32")
    assert device.bandwidth == 5e9
    assert "numpy's" in device.source
    assert QUICK.source in device.source
    numpy_alone(monkeypatch, 6e9, 3e11)
    monkeypatch.setattr(local, "METERS", [lambda: QUICK])
    device = local.measure_anew()
    assert (device.bandwidth, device.flops["float32"]) == (6e9, 3e11)


def test_a_narrow_type_that_is_slower_than_a_wide_one_has_no_figure():
    assert local.fastest({"float32": 5.0, "bfloat16": 5.0}, {"bfloat16": 2.0}) == {"float32": 5.0}
    assert local.fastest({"float32": 1.0}, {"float16": 3.0}) == {"float32": 1.0, "float16": 3.0}


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_without_the_engine_numpy_s_figures_do(monkeypatch, error):
    def broken():
        raise error("not here")

    numpy_alone(monkeypatch)
    monkeypatch.setattr(local, "METERS", [broken])
    device = local.measure_anew()
    assert (device.bandwidth, device.flops) == (4e9, {"float32": 1e11})


def test_what_was_measured_is_kept_unless_others_disturbed_it(monkeypatch, cache, capsys):
    numpy_alone(monkeypatch)
    monkeypatch.setattr(others, "Watch", Taken(0.3))
    device = local.measure_anew()
    assert "other work took 30% of the cores" in device.source
    assert "other work took 30% of the cores" in capsys.readouterr().err
    assert not cache.exists()
    monkeypatch.setattr(others, "Watch", Taken(0.01))
    device = local.measure_anew()
    assert "other work" not in device.source
    (file,) = cache.iterdir()
    numpy_alone(monkeypatch, float32=7e11)
    assert local.measure() == device  # as kept
    monkeypatch.setattr(local, "memory_bytes", lambda: 2**30)
    local.measure.cache_clear()
    assert local.measure().memory_bytes == 2**30  # as it is now
    local.measure.cache_clear()
    file.write_text("{")
    assert local.measure().flops == {"float32": 7e11}  # measured again


def test_other_cores_or_software_have_figures_of_their_own(monkeypatch):
    here = kept.kept_at(2)
    assert kept.kept_at(2) == here
    assert kept.kept_at(4) != here
    monkeypatch.setattr(kept, "versions", lambda: {"torch": "0"})
    assert kept.kept_at(2) != here
    torch = kept.kept_at(2)
    monkeypatch.setattr(kept, "processor", lambda: "another")
    assert kept.kept_at(2) != torch


def test_where_nothing_can_be_kept_the_figures_are_there_all_the_same(monkeypatch, tmp_path):
    (tmp_path / "kvhouse").write_text("a file, where a directory is to be")
    numpy_alone(monkeypatch)
    monkeypatch.setattr(others, "Watch", Taken(0.0))
    assert local.measure_anew().flops == {"float32": 1e11}


def test_the_command_measures_anew_and_others_go_by_what_is_kept(monkeypatch):
    monkeypatch.setattr(others, "Watch", Taken(0.0))
    numpy_alone(monkeypatch)
    devices.get("local")
    numpy_alone(monkeypatch, float32=3e11)
    assert devices.get("local").flops == {"float32": 1e11}
    done = CliRunner().invoke(app, ["devices", "local", "--json"])
    assert json.loads(done.stdout)["flops"]["float32"] == 3e11
    local.measure.cache_clear()
    assert devices.get("local").flops == {"float32": 3e11}


def test_a_floor_goes_by_the_rate_of_its_dtype(monkeypatch):
    numpy_alone(monkeypatch)
    monkeypatch.setattr(local, "METERS", [lambda: QUICK])
    device, model = local.measure_anew(), load("smollm2")
    seconds = {}
    for dtype in ("float32", "bfloat16"):
        roofline = Roofline(model, KVLayout.of(model, "bf16", dtype=dtype), device, dtype)
        cost = roofline.prefill(512)
        assert cost.bound == "compute"
        seconds[dtype] = cost.seconds
        assert roofline.compute_dtype == dtype
    assert seconds["float32"] / seconds["bfloat16"] == pytest.approx(9 / 2)


def test_what_is_kept_is_read_without_numpy_or_torch(monkeypatch):
    monkeypatch.setattr(others, "Watch", Taken(0.0))
    numpy_alone(monkeypatch)
    local.measure_anew()
    code = (
        "import sys; from kvhouse import devices; print(devices.get('local').flops['float32']); "
        "print({'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["100000000000.0", "set()"]
    assert done.stderr == ""


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
