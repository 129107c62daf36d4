"""Reading cases, trying what they leave open, and the verdict on each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.planner.engines.cases.buffers import (
    llama_case,
    llama_open,
    slot_case,
    slot_open,
    whisper_case,
    whisper_open,
)
from kvhouse.planner.engines.cases.case import Case, Check, Missing
from kvhouse.planner.engines.cases.pools import (
    pool_case,
    pool_open,
    sglang_case,
    sglang_open,
)
from kvhouse.planner.engines.cases.vllm import v0_case, v0_open, v1_case, v1_open
from kvhouse.spec.fields import show
from kvhouse.spec.model import ModelSpec

#: Inputs that may be other than the engine's default at once, where a case does not state them.
_MOST_CHANGED = 2
#: Values of every input that a case leaves open, the default first.
Open = Mapping[str, Sequence[Any]]
_Rules = Callable[[Case], list[Check]]


@dataclass(frozen=True, slots=True)
class Family:
    """The rules for one engine's logs, and the inputs that its logs leave open."""

    names: tuple[str, ...]
    rules: _Rules
    open: Callable[[Case], Open]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one case.

    Attributes:
        id: The case's name.
        engine: The engine and its version.
        checks: Every figure that was derived and compared.
        fits: Inputs that the case does not state, with the value that fits.
        reason: Why nothing could be computed; empty where something was.
        exact: Whether the case is said to be reproduced exactly by a formula.
    """

    id: str
    engine: str
    checks: tuple[Check, ...]
    fits: tuple[str, ...]
    reason: str
    exact: bool

    @property
    def agrees(self) -> bool:
        """Whether something was derived and all of it agrees."""
        return bool(self.checks) and all(check.agrees for check in self.checks)

    @property
    def computable(self) -> bool:
        """Whether the case states enough to derive something."""
        return bool(self.checks)


def read_cases(path: Path) -> Iterator[dict[str, Any]]:
    """The cases of a file of JSON lines; blank lines are passed over.

    Raises:
        KvhouseError: The file cannot be read, or a line is not a JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise KvhouseError(f"{show(str(path))}: cannot be read: {problem}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise KvhouseError(f"{show(str(path))}, line {number}: not JSON") from None
        if not isinstance(values, dict):
            raise KvhouseError(f"{show(str(path))}, line {number}: not an object")
        yield values


def judge(values: Mapping[str, Any], spec: ModelSpec | None = None) -> Verdict:
    """Derive what a case reports, and compare.

    Args:
        values: The case.
        spec: The model, in place of the case's ``config``.
    """
    case = Case(values, spec=spec)
    family = next((one for one in FAMILIES if _is(case.engine, one.names)), None)
    if family is None:
        return _by_common_form(case)
    best: Verdict | None = None
    for attempt, changed in _attempts(case, family.open(case)):
        verdict = _try(attempt, family.rules, changed)
        if verdict.agrees:
            return verdict
        if best is None or (verdict.computable and not best.computable):
            best = verdict
    return best or _verdict(case, (), (), "nothing to compute")


def _by_common_form(case: Case) -> Verdict:
    """Engines without rules here: a pool of blocks or a buffer of slots, where one explains all."""
    for rules in (pool_case, slot_case):
        verdict = _try(case, rules, ("a common form of cache",))
        if verdict.agrees:
            return verdict
    known = ", ".join(name for one in FAMILIES for name in one.names)
    return _verdict(case, (), (), f"no rules for engine {show(case.engine)}; known: {known}")


def summary(verdicts: Sequence[Verdict]) -> str:
    """The last line: how many of the exact cases that state their inputs were reproduced."""
    exact = [verdict for verdict in verdicts if verdict.exact and verdict.computable]
    agreeing = sum(verdict.agrees for verdict in exact)
    return f"{agreeing} of {len(exact)} exact cases reproduced"


def _attempts(case: Case, inputs: Open) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """The case with everything at its default, then with one input changed, then with two."""
    names = [name for name, values in inputs.items() if len(values) > 1]
    defaults = {name: values[0] for name, values in inputs.items() if values}
    for decimals in (2, 1):
        for size in range(_MOST_CHANGED + 1):
            for chosen in combinations(names, size):
                for values in product(*(inputs[name][1:] for name in chosen)):
                    changed = dict(zip(chosen, values, strict=True))
                    fits = tuple(f"{name} = {value}" for name, value in changed.items())
                    if decimals == 1:
                        fits += ("figures of one decimal",)
                    yield replace(case, assumed={**defaults, **changed}, decimals=decimals), fits


def _try(case: Case, rules: _Rules, fits: tuple[str, ...]) -> Verdict:
    try:
        checks = rules(case)
    except Missing as missing:
        return _verdict(case, (), (), f"not stated: {missing}")
    except KvhouseError as problem:
        return _verdict(case, (), (), str(problem))
    if not checks:
        return _verdict(case, (), (), "nothing that was reported follows from what is stated")
    return _verdict(case, tuple(checks), fits, "")


def _verdict(case: Case, checks: tuple[Check, ...], fits: tuple[str, ...], reason: str) -> Verdict:
    check = case.part("check")
    return Verdict(
        id=str(case.values.get("id") or "?"),
        engine=f"{case.values.get('engine')} {case.version}".strip(),
        checks=checks,
        fits=fits,
        reason=reason,
        exact=check.get("agree") == "exact",
    )


def _is(engine: str, names: tuple[str, ...]) -> bool:
    return any(engine == name or engine.startswith(f"{name}-") for name in names)


FAMILIES = (
    Family(("vllm-v0",), v0_case, v0_open),
    Family(("vllm-v1", "vllm", "tpu-inference"), v1_case, v1_open),
    Family(("sglang",), sglang_case, sglang_open),
    Family(
        ("llama.cpp", "ik_llama.cpp", "llamafile", "ollama", "koboldcpp", "llama-cpp-python"),
        llama_case,
        llama_open,
    ),
    Family(("whisper.cpp",), whisper_case, whisper_open),
    Family(("tensorrt-llm", "trtllm", "tgi", "xinfer", "pegainfer"), pool_case, pool_open),
    Family(("candle", "ggml", "jan", "transformers"), slot_case, slot_open),
)
