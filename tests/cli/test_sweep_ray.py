"""A sweep on a real Ray cluster of this machine gives what it gives without one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
#: The cluster takes nobody without this token, which is made for it.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ENVIRONMENT = os.environ | TOKEN | {"RAY_USAGE_STATS_ENABLED": "0", "NO_COLOR": "1"}
HEAD = """
import sys, ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2**27, log_to_driver=False,
         logging_level="ERROR")
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""
#: Windows together with a prefix cache are stepped, so that cells take long enough to be killed in.
CELLS = [
    *("poisson:rate=20,prompt=uniform(1,300),output=uniform(1,300),requests=200",),
    *("--models", "gemma-3-27b,llama-2-70b", "--devices", "h100-80g"),
    *("--block-sizes", "16,64", "--prefix-cache", "--json"),
]


@contextmanager
def sweep(*arguments):
    """A sweep under way, which does not outlive the block."""
    with subprocess.Popen(
        [KVHOUSE, "sweep", *CELLS, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(process):
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return json.loads(output)


def swept(*arguments):
    with sweep(*arguments) as process:
        return outcome(process)


def tasks(workers):
    """Processes that are computing a cell: Ray names them so."""
    return [pid for pid in workers if "ray::_row" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.fixture(scope="module")
def cluster():
    """The process that started a cluster, and its address."""
    with subprocess.Popen(
        [sys.executable, "-c", HEAD],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as head:
        address = head.stdout.readline().strip()
        assert address
        yield head.pid, address
        head.communicate(timeout=100)


@pytest.fixture(scope="module")
def expected():
    return swept("--workers", "1")["rows"]


def test_the_cluster_gives_what_this_machine_gives(cluster, expected, tmp_path):
    _, address = cluster
    out = tmp_path / "results.parquet"
    data = swept("--ray", address, "--out", str(out))
    assert data["rows"] == expected
    assert [row["status"] for row in data["rows"]] == ["done"] * 2 + ["impossible"] * 2
    assert swept("--ray", address, "--out", str(out))["reused"] == 4


def test_a_worker_that_is_killed_costs_nothing(cluster, expected, grandchildren):
    head, _ = cluster
    with sweep("--ray") as process:  # which finds the one of this machine
        end = time.monotonic() + 100
        while not (running := tasks(grandchildren(head))):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(running[0], signal.SIGKILL)
        assert outcome(process)["rows"] == expected
