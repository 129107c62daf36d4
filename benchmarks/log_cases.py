"""Recompute public engine logs and say which figures agree.

Usage: python benchmarks/log_cases.py FILE

FILE has one case a line, in the form of ``tests/planner/engines/data/log_cases.jsonl``. Prints a
row for every figure, or the reason why a case cannot be computed, and last how many of the exact
cases were reproduced. Exits with 1 when one was not, and with 2 when FILE cannot be read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.cases import Verdict, judge, read_cases, summary


def main(arguments: list[str]) -> int:
    """Judge every case of the file that is named."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        verdicts = [judge(values) for values in read_cases(Path(arguments[0]))]
    except KvhouseError as problem:
        print(problem, file=sys.stderr)
        return 2
    for verdict in verdicts:
        print(_row(verdict))
    print(summary(verdicts))
    missed = [one for one in verdicts if one.exact and one.computable and not one.agrees]
    return 1 if missed else 0


def _row(verdict: Verdict) -> str:
    head = f"{verdict.id:6} {verdict.engine[:34]:34}"
    if not verdict.computable:
        return f"{head} not computable: {verdict.reason}"
    figures = "; ".join(
        f"{check.name} {check.printed} | {check.ours}{'' if check.agrees else ' DIFFERS'}"
        for check in verdict.checks
    )
    fits = f" (not stated, fits: {', '.join(verdict.fits)})" if verdict.fits else ""
    return f"{head} {'agree ' if verdict.agrees else 'differ'} {figures}{fits}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
