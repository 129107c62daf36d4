"""A log, read: the facts of its last run and the engine that wrote it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from kvhouse.doctor.facts import MOST_WORKERS, Fact, Facts, Value
from kvhouse.doctor.line import Line
from kvhouse.doctor.prefixes import worker_of
from kvhouse.doctor.scan import Candidate, Readable, Scanner
from kvhouse.web.mask import mask

#: Lines of statistics that are put aside at most.
_ROWS = 1024
#: Facts that only the V1 engine prints, and only the V0 engine.
_V1 = frozenset({"v1", "available_kv_gib", "needed_gib", "attn_block_size"})


@dataclass(slots=True)
class Log:
    """What a log says, or a scrape.

    Attributes:
        facts: The facts of the last run.
        runs: How often the server was started.
        size: Bytes read.
        lines: Lines read.
        tried: Regexes that were tried on a line.
        wrote: How many facts each engine's formats gave.
        source: Whether it is a log, or samples of ``/metrics``.
    """

    facts: Facts = field(default_factory=Facts)
    runs: int = 1
    size: int = 0
    lines: int = 0
    tried: int = 0
    wrote: Counter[str] = field(default_factory=Counter)
    source: Literal["log", "metrics"] = "log"

    @property
    def engine(self) -> str:
        """The engine, by the name that ``ENGINES`` has for it; empty where nothing was found.

        PyTorch's messages come from any engine, so they name one only where nothing else does.
        """
        own = Counter({name: count for name, count in self.wrote.items() if name != "torch"})
        if not own:
            return "torch" if self.wrote["torch"] else ""
        engine = own.most_common(1)[0][0]
        if engine.startswith("vllm"):
            new = any(name in self.facts for name in _V1)
            return "vllm-v0" if own["vllm-v0"] and not new else "vllm"
        return engine

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that said something."""
        names = {fact.worker for name in self.facts.by_name for fact in self.facts.all(name)}
        return tuple(sorted(names - {""}))


def read_log(stream: Readable) -> Log:
    """Read a log to its end, keeping a bounded number of facts and none of its text."""
    scanner, reader = Scanner(), _Reader()
    for candidate in scanner.candidates(stream):
        reader.take(candidate)
    reader.settle()
    reader.log.size, reader.log.lines = scanner.size, scanner.count
    return reader.log


class _Reader:
    """Collects facts; a server that is started again begins a new run."""

    def __init__(self) -> None:
        self.log = Log()
        self.memories: dict[str, dict[str, Value]] = {}
        self.started: set[tuple[int, str]] = set()
        #: By format, lines of statistics that are summed up together, which is much faster.
        self.pending: dict[int, tuple[Line, list[tuple[int, re.Match[str]]]]] = {}

    def take(self, candidate: Candidate) -> None:
        worker: str | None = None
        for each in candidate.lines:
            self.log.tried += 1
            match = each.regex.search(candidate.text)
            if match is None:
                continue
            if worker is None:
                worker = "" if each.kind != "fact" else worker_of(candidate.text)
            if each.starts:
                self._start(each, worker)
            self._read(each, match, candidate.number, worker)

    def _read(self, each: Line, match: re.Match[str], number: int, worker: str) -> None:
        if each.kind == "series":
            self._observe(each, match, number)
            return
        masked: dict[str, str] = {}
        for name, value, own in each.read(match, self._memory(worker)):
            text = own or match[0]
            if text not in masked:
                masked[text] = mask(text)
            kept = mask(value) if isinstance(value, str) else value
            fact = Fact(name, kept, number, each.engine, worker, masked[text])
            self.log.facts.add(fact)
            self.log.wrote[each.engine] += 1

    def _observe(self, each: Line, match: re.Match[str], number: int) -> None:
        """Figures of a line of statistics; its format has nothing in it that would be masked."""
        if each.reading is not None or each.sets:
            self.log.wrote[each.engine] += 1
            for name, value, _ in each.read(match, self._memory("")):
                self.log.facts.observe(name, float(value), number, each.engine, match[0])
            return
        rows = self.pending.setdefault(id(each), (each, []))[1]
        rows.append((number, match))
        if len(rows) >= _ROWS:
            self.settle()

    def settle(self) -> None:
        """Sum up the lines of statistics that were put aside, a column at a time."""
        for each, rows in self.pending.values():
            self.log.wrote[each.engine] += len(rows)
            columns = zip(*(match.groups() for _, match in rows), strict=True)
            for name, column in zip(each.names, columns, strict=False):
                if name:
                    self._sum_up(each, name, rows, column)
        self.pending.clear()

    def _sum_up(
        self,
        each: Line,
        name: str,
        rows: list[tuple[int, re.Match[str]]],
        column: tuple[str | None, ...],
    ) -> None:
        if None in column:
            rows = [row for row, text in zip(rows, column, strict=True) if text is not None]
        values = [float(text.replace(",", "")) for text in column if text is not None]

        def said(index: int) -> tuple[int, str]:
            number, match = rows[index]
            return number, match[0]

        if values:
            self.log.facts.observe_all(name, values, each.engine, said)

    def _memory(self, worker: str) -> dict[str, Value]:
        if worker not in self.memories and len(self.memories) >= MOST_WORKERS:
            return {}
        return self.memories.setdefault(worker, {})

    def _start(self, each: Line, worker: str) -> None:
        key = (id(each), worker)
        if key in self.started:
            self.pending.clear()
            self.log.facts, self.log.wrote = Facts(), Counter()
            self.log.runs += 1
            self.memories.clear()
            self.started.clear()
        if len(self.started) < MOST_WORKERS:
            self.started.add(key)
