"""What models keep of one request: kvhouse beside the calculators hf-mem and kvfit.

    python benchmarks/against_calculators.py                    # installs both, for this run only
    python benchmarks/against_calculators.py --python OTHER     # they are installed there
    python benchmarks/against_calculators.py --configs DIR      # other configs, *config.json
    python benchmarks/against_calculators.py --catalogue        # kvhouse's own catalogue

Prints a row for each config and length: bytes in GiB in bfloat16 by each, what they say relative to
kvhouse, and, where they differ by more than 2 %, why. The reason is found by counting the layers as
the calculator does until its own number comes out, so it names what the number is made of; where
none does, the row says so. Both calculators are asked through their own functions. That kvhouse is
right is not its own word: the tests compare it with what transformers' cache holds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calculators import Answer, ask, install
from kvhouse.errors import KvhouseError
from kvhouse.formats import get_format
from kvhouse.spec import ModelSpec
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.resolve import read_catalogue
from reasons import reason

LENGTHS = (4096, 131_072)
TOOLS = ("hf-mem", "kvfit")
#: Beyond this share, two numbers differ.
TOLERANCE = 0.02
DEFAULT = Path(__file__).parents[1] / "tests" / "spec" / "data" / "public_configs.jsonl"

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One config at one length: bytes by kvhouse and, by tool, its answer and the reason."""

    name: str
    tokens: int
    ours: int | str
    theirs: Mapping[str, Answer]
    reasons: Mapping[str, str]


def configs(path: Path) -> dict[str, Config]:
    """The configs in a file with one on each line, or in the ``*config.json`` of a directory."""
    if path.is_dir():
        found = sorted(path.rglob("*config.json"))
        files = [file for file in found if not file.name.endswith("hf_quant_config.json")]
        return {str(file.relative_to(path)): json.loads(file.read_text()) for file in files}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["name"]: row["config"] for row in rows}


def rows(known: Mapping[str, Config], answers: Mapping[str, Any]) -> Iterator[Row]:
    """Every config at every length."""
    for name, config in known.items():
        spec: ModelSpec | str
        try:
            spec = read_config(config, name, name)
        except KvhouseError as error:
            spec = str(error)
        for tokens in LENGTHS:
            theirs = {tool: answers[name][str(tokens)][tool] for tool in TOOLS}
            if isinstance(spec, str):
                yield Row(name, tokens, spec, theirs, {})
                continue
            ours = spec.kv_bytes(tokens, get_format("bf16"), dtype="bfloat16")
            reasons = {
                tool: reason(spec, config, tokens, answer)
                for tool, answer in theirs.items()
                if differs(ours, answer)
            }
            yield Row(name, tokens, ours, theirs, reasons)


def differs(ours: int, theirs: Answer) -> bool:
    """Whether a calculator gave a number, and another one."""
    return isinstance(theirs, int) and abs(theirs - ours) > TOLERANCE * ours


def show(row: Row) -> str:
    """One row, and a line for each reason."""
    if isinstance(row.ours, str):
        return f"{row.name}  {row.tokens:,}: kvhouse refuses: {row.ours}"
    cells = [f"{row.name[:48]:48} {row.tokens:>7,} {row.ours / 2**30:>9.3f}"]
    for tool in TOOLS:
        answer = row.theirs[tool]
        if isinstance(answer, str):
            cells.append(f"{'cannot':>18}")
        else:
            cells.append(f"{answer / 2**30:>9.3f} {factor(row, tool):>7.3f}x")
    lines = ["  ".join(cells)]
    for tool in TOOLS:
        answer = row.theirs[tool]
        if tool in row.reasons:
            lines.append(f"    kvhouse is right: {tool} {row.reasons[tool]}")
        elif isinstance(answer, str) and row.tokens == LENGTHS[0]:
            lines.append(f"    {tool}: {answer}")
    return "\n".join(lines)


def factor(row: Row, tool: str) -> float:
    """A calculator's number over what is kept."""
    return float(row.theirs[tool]) / float(row.ours)


def summary(all_rows: list[Row]) -> Iterator[str]:
    """For each tool and length: how many it reads, on how many it differs, and the worst."""
    for tokens in LENGTHS:
        here = [row for row in all_rows if row.tokens == tokens]
        read = [row for row in here if isinstance(row.ours, int)]
        yield f"{tokens:,} tokens: kvhouse reads {len(read)} of {len(here)} configs"
        for tool in TOOLS:
            both = [row for row in read if isinstance(row.theirs[tool], int)]
            factors = {row.name: factor(row, tool) for row in both if tool in row.reasons}
            line = f"  {tool} reads {len(both)} and differs by more than 2 % on {len(factors)}"
            if factors:
                worst = max(factors, key=lambda name: max(factors[name], 1 / factors[name]))
                line += f"; at worst {factors[worst]:.3g} times what is kept, on {worst}"
            yield line


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--configs", type=Path, default=DEFAULT, help="a .jsonl file or a directory"
    )
    parser.add_argument("--python", help="an interpreter that has hf-mem and kvfit")
    parser.add_argument("--catalogue", action="store_true", help="compare on kvhouse's catalogue")
    options = parser.parse_args()
    known = configs(options.configs)
    if options.catalogue:
        known = {name: entry["config"] for name, entry in read_catalogue().items()}
    with tempfile.TemporaryDirectory() as place:
        python = options.python or install(Path(place))
        versions, answers = ask(python, known, LENGTHS)
    print("bytes of one request in GiB, bfloat16; " + versions)
    print(f"{'model':48} {'tokens':>7} {'kvhouse':>9}  {'hf-mem':>18}  {'kvfit':>18}")
    found = list(rows(known, answers))
    for row in found:
        print(show(row))
    print("\n".join(summary(found)))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"the calculators could not be run: {error.stderr or error}")
    except (OSError, ValueError) as error:
        sys.exit(f"the configs or the interpreter cannot be used: {error}")
