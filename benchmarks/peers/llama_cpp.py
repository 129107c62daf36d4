"""Loads SmolLM2 and Gemma 3 with llama.cpp and keeps its log, for each type of cache.

    python benchmarks/peers/llama_cpp.py --python VENV/bin/python --out DIR

Each log is what llama.cpp writes to stderr while a context is made; nothing is generated. Lines on
single tokens and tensors are left out, and paths do not occur: the files are linked to as
``MODEL.gguf``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvhouse.spec import find_gguf

#: What the other Python runs. Types are those of ggml.h: f16 is 1, q4_0 is 2, q8_0 is 8.
PROGRAM = """
import sys
from llama_cpp import Llama, __version__
path, length, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print(f"llama-cpp-python {__version__}", file=sys.stderr)
Llama(path, n_ctx=length, n_batch=512, n_threads=1, type_k=kind, type_v=kind,
      flash_attn=kind != 1, verbose=True)
"""
TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}
_LEFT_OUT = (
    *("control token:", "control-looking token", "is not marked as EOG", "EOG token"),
    *("create_tensor: ", "llama_graph_n_input_tensors: ", "tokenizer.ggml.", "Model metadata: "),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One context."""

    model: str
    tokens: int
    kind: str


SCENARIOS = (
    *(Scenario("smollm2", 4096, kind) for kind in TYPES),
    Scenario("gemma-3-270m", 8192, "f16"),
    Scenario("gemma-3-270m", 8192, "q8_0"),
)


def record(python: Path, scenario: Scenario, out: Path) -> None:
    """Make one context and keep what is said of it."""
    with tempfile.TemporaryDirectory() as work:
        name = f"{scenario.model}.gguf"
        Path(work, name).symlink_to(find_gguf(scenario.model))
        arguments = (name, str(scenario.tokens), str(TYPES[scenario.kind]))
        done = subprocess.run(
            [str(python.absolute()), "-c", PROGRAM, *arguments],
            cwd=work,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=True,
        )
    lines = [x for x in done.stderr.splitlines() if not any(word in x for word in _LEFT_OUT)]
    file = out / f"llama-cpp-{scenario.model}-{scenario.kind}.log"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{file.name}: {len(lines)} lines")


def main(arguments: list[str]) -> None:
    """Record every scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        record(given.python, scenario, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
