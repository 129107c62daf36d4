"""kvhouse's engine beside its peers on the CPU; ``engine_vs_peers.sh`` makes their environments.

    benchmarks/engine_vs_peers.sh                                  # all, three rounds
    benchmarks/engine_vs_peers.sh --engines kvhouse vllm --rows 8 --rounds 1 --generate 16

SmolLM2-135M with the weights that kvhouse has of it, in bfloat16 (float16 where a peer reads no
other), random prompts, the end of a sequence ignored. In each round each engine runs in a process
of its own, one after the other, so that a machine which slows down slows down all of them; the
figures are medians over the rounds, with the least and the most. ``engine_peer.py`` says how they
are counted. Progress goes to stderr, tables to stdout, all figures to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_gguf import TYPES, write
from engine_peer import MARK

#: By name: the environment, the script and its variant. The first is what others are compared to.
ENGINES = {
    "kvhouse": ("kvhouse", "kvhouse", "paged:bf16"),
    "kvhouse-contiguous": ("kvhouse", "kvhouse", "contiguous-max:bf16"),
    "kvhouse-int8": ("kvhouse", "kvhouse", "paged:int8"),
    "kvhouse-int4": ("kvhouse", "kvhouse", "paged:int4"),
    "vllm": ("vllm", "vllm", "compiled"),
    "vllm-eager": ("vllm", "vllm", "eager"),
    "llama.cpp": ("llama_cpp", "llama_cpp", "bf16"),
    "openvino": ("openvino", "openvino", ""),
    "transformers": ("transformers", "transformers", "batch"),
    "transformers-continuous": ("transformers", "transformers", "continuous"),
}
#: By name: requests, tokens in, tokens out.
ROWS = {
    "1": (1, 128, 128),
    "8": (8, 128, 128),
    "32": (32, 128, 128),
    "prefill": (1, 2048, 1),
    "kv": (16, 2048, 64),
}


def main() -> None:
    """Take turns, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, help="a folder with an environment for each peer")
    parser.add_argument("--python", nargs="*", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--generate", type=int, help="instead of 128 and 64 tokens out")
    parser.add_argument("--prompt", type=int, help="instead of 128 and 2,048 tokens in")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process")
    parser.add_argument("--out", type=Path, default=Path("engine_vs_peers.json"))
    options = parser.parse_args()
    pythons = {"kvhouse": sys.executable, **dict(pair.split("=", 1) for pair in options.python)}
    rows = [_row(name, options) for name in options.rows]
    results: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(options.threads),
        "rows": rows,
        "engines": {name: [] for name in options.engines},
    }
    with tempfile.TemporaryDirectory() as folder:
        job = prepared(Path(folder), rows, options.threads)
        for number in range(options.rounds):
            for name in options.engines:
                peer, script, variant = ENGINES[name]
                python = pythons.get(peer) or str(options.venvs / peer / "bin" / "python")
                said = run(python, script, {**job, "variant": variant, "seed": number}, options)
                results["engines"][name].append(said)
                rates = {key: rate_of(key, row) for key, row in said.get("rows", {}).items()}
                note(f"round {number + 1} {name}: {rates or said.get('error')}")
                options.out.write_text(json.dumps(results, indent=2) + "\n")
    print("\n".join(tables(results)))


def _row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    concurrency, prompt, generate = ROWS[name]
    return {
        "name": name,
        "concurrency": concurrency,
        "prompt": options.prompt or prompt,
        "generate": min(options.generate or generate, generate),
    }


def prepared(folder: Path, rows: list[dict[str, Any]], threads: int) -> dict[str, Any]:
    """The job but for what differs between engines: the same weights in each one's format."""
    from kvhouse import spec
    from kvhouse.engine.gguf_weights import converted

    source = spec.find_gguf("smollm2")
    files = {}
    for kind in TYPES:
        note(f"writing the weights as {kind}")
        files[kind] = str(folder / f"smollm2-{kind}.gguf")
        write(str(source), files[kind], kind)
    return {
        "model": str(converted(source)),
        "gguf": files,
        "vocab": spec.load("smollm2").vocab_size,
        "threads": threads,
        "rows": rows,
    }


def run(python: str, script: str, job: dict[str, Any], options: argparse.Namespace) -> Any:  # noqa: ANN401
    """One engine, once through all rows, in a process of its own."""
    path = Path(__file__).with_name(f"engine_peer_{script}.py")
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [python, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
        try:
            asked = json.dumps({**job, "started": time.time()})
            said, errors = process.communicate(asked, timeout=options.timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"took over {options.timeout:g} s"}
        finally:
            # Whatever it started itself, such as vLLM's engine, goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        return {"error": errors[-2000:]}
    # An engine may have printed more, also on the same stream.
    found = [line for line in said.splitlines() if line.startswith(MARK)]
    return json.loads(found[-1].removeprefix(MARK)) if found else {"error": said[-2000:]}


def machine(threads: int) -> dict[str, Any]:
    """What the figures hold for."""
    from kvhouse.devices import local

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        processor = platform.processor()
    measured = local.measure()
    return {
        "processor": processor,
        "threads": threads,
        "bandwidth": measured.bandwidth,
        "memory_bytes": measured.memory_bytes,
        "python": platform.python_version(),
    }


def rate_of(row: str, figures: dict[str, Any]) -> float | None:
    """The rate that a row is about."""
    rate = figures["prefill" if row == "prefill" else "decode"]
    return None if rate is None else round(rate, 1)


def tables(results: dict[str, Any]) -> Iterator[str]:
    """Rates in Markdown: median (least to most), and how many times the first engine has."""
    names = [row["name"] for row in results["rows"]]
    heads = [f"{r['concurrency']} x ({r['prompt']:,}, {r['generate']})" for r in results["rows"]]
    where = results["machine"]
    yield f"{results['date']}, {where['processor']}, {where['threads']} threads, "
    yield f"{where['bandwidth'] / 1e9:.1f} GB/s read; tokens/s: decode, prefill where one comes out"
    yield ""
    yield "| engine | version | " + " | ".join(heads) + " | first token after |"
    yield "|---" * (len(names) + 3) + "|"
    base: dict[str, float] = {}
    for engine, rounds in results["engines"].items():
        good = [each for each in rounds if "rows" in each]
        if not good:
            yield f"| {engine} | failed |" + " |" * (len(names) + 1)
            continue
        cells = []
        for name in names:
            rates = [rate for each in good if (rate := rate_of(name, each["rows"][name]))]
            if not rates:
                cells.append("")
                continue
            middle = statistics.median(rates)
            ratio = base.setdefault(name, middle) / middle
            cells.append(f"{middle:,.1f} ({min(rates):,.1f} to {max(rates):,.1f}), {ratio:.2f}x")
        ready = statistics.median(each["first_token_after"] for each in good)
        yield f"| {engine} | {good[0]['version']} | " + " | ".join(cells) + f" | {ready:.1f} s |"
    yield ""
    yield "The last figure of a cell is the first engine's rate over this one's."


def note(text: str) -> None:
    """Say what goes on."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
