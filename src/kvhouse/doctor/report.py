"""A log, examined: its facts, the planner's figures, the memory, the diagnoses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvhouse.doctor.bar import Bar, bar_of
from kvhouse.doctor.case import ABOUT, SETTINGS, Derived, derive
from kvhouse.doctor.diagnoses import diagnose
from kvhouse.doctor.diagnoses.base import Diagnosis, Patient, Remedy
from kvhouse.doctor.engines import LINES
from kvhouse.doctor.facts import Fact, Value
from kvhouse.doctor.launch import option_value
from kvhouse.doctor.log import Log, read_log
from kvhouse.doctor.metrics.names import METRICS
from kvhouse.doctor.metrics.read import read_metrics
from kvhouse.doctor.metrics.scrape import MOST_LINE, is_scrape
from kvhouse.doctor.planned import planned
from kvhouse.doctor.scan import Readable
from kvhouse.doctor.texts import Texts
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.resolve import catalogue, load

#: Settings by the names that the planner's options have, where they are others.
_SETTING_OF = {
    "kv_dtype": "kv_cache_dtype",
    "prefix_caching": "enable_prefix_caching",
    "speculative_tokens": "num_speculative_tokens",
    "utilization": "gpu_memory_utilization",
    "version": "engine_version",
    "swa_ratio": "swa_full_tokens_ratio",
    "mamba_ratio": "mamba_full_memory_ratio",
    "unified": "kv_unified",
}


#: Parts of names that say how a model was tuned, and endings that say how it is stored: its KV is
#: that of the model without them.
_TUNED = re.compile(r"^meta-|-(?:instruct|chat|it|thinking)(?=-|$)")
_STORED = re.compile(
    r"[-_.](?:hf|gguf|awq|gptq|bnb|fp8|int[48]|[48]bits?|w\d{1,2}a\d{1,2}|i?q\d(?:_\w{1,6})?|"
    r"marlin|unsloth|25\d\d)$"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a log.

    Attributes:
        log: The log.
        model: The model whose numbers were used; empty for none.
        origin: Whether it was given, or found in the catalogue under the log's own name.
        derived: The planner's figures.
        bar: The memory; None where too little is known.
        diagnoses: What is wrong and what to do, the gravest first.
    """

    log: Log
    model: str
    origin: Literal["given", "catalogue", ""]
    derived: Derived
    bar: Bar | None
    diagnoses: tuple[Diagnosis, ...]

    @property
    def found(self) -> bool:
        """Whether the log has any figure that is known here; a name or a version is none."""
        facts = self.log.facts
        return bool(facts.series or facts.by_name.keys() - ABOUT)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts in the order of lines."""
        return tuple(sorted(self.log.facts, key=lambda fact: fact.line))

    def to_dict(self, texts: Texts) -> dict[str, Any]:
        """The report as plain values with stable keys; sentences in the language of ``texts``."""
        log = self.log
        return {
            "engine": log.engine,
            "engine_version": log.facts.word("engine_version") or "",
            "source": log.source,
            "bytes": log.size,
            "lines": log.lines,
            "runs": log.runs,
            "workers": list(log.workers),
            "model": self.model,
            "model_origin": self.origin,
            "facts": [fact.to_dict() for fact in self.facts],
            "series": [series.to_dict() for series in log.facts.series.values()],
            "derived": self.derived.to_dict(),
            "memory": None if self.bar is None else self.bar.to_dict(),
            "diagnoses": [_diagnosis(one, texts) for one in self.diagnoses],
            "looked_for": [] if self.found else looked_for(),
        }


def _diagnosis(one: Diagnosis, texts: Texts) -> dict[str, Any]:
    return {
        "code": one.code,
        "severity": one.severity,
        "title": texts.title(one),
        "reason": texts.reason(one),
        "lines": sorted({fact.line for fact in one.evidence}),
        "remedies": [_remedy(remedy, texts) for remedy in one.remedies],
    }


def _remedy(remedy: Remedy, texts: Texts) -> dict[str, Any]:
    before, after = remedy.before, remedy.after
    return {
        "code": remedy.code,
        "flag": remedy.flag,
        "text": texts.remedy(remedy),
        "risk": remedy.risk,
        "requests_before": None if before is None else float(before),
        "requests_after": None if after is None else float(after),
        "gained": remedy.gained,
    }


def looked_for() -> list[dict[str, Any]]:
    """What every engine's lines and samples are recognised by."""
    found: dict[str, list[str]] = {}
    for each in LINES:
        needles = found.setdefault(each.engine, [])
        needle = each.needle.decode().strip()
        if needle not in needles:
            needles.append(needle)
    for engine, metrics in METRICS.items():
        names = (name for metric in metrics for name in metric.names)
        found[engine] = list(dict.fromkeys((*found.get(engine, ()), *names)))
    return [{"engine": engine, "needles": needles} for engine, needles in found.items()]


@dataclass(slots=True)
class _Begun:
    """A stream of which the head was read already."""

    head: bytes
    stream: Readable

    def read(self, size: int) -> bytes:
        """The next bytes."""
        if self.head:
            head, self.head = self.head[:size], self.head[size:]
            return head
        return self.stream.read(size)


def read(stream: Readable) -> Log:
    """Read a log, or a scrape of ``/metrics``, whichever it is."""
    head = stream.read(MOST_LINE)
    begun = _Begun(head, stream)
    return read_metrics(begun) if is_scrape(head) else read_log(begun)


def examine(
    stream: Readable, model: str | None = None, options: Mapping[str, str] | None = None
) -> Report:
    """Read a log or a scrape of ``/metrics`` and explain it.

    Args:
        stream: Its bytes.
        model: The model that it served, as ``kvhouse.spec.load`` takes it; by default the one of
            the catalogue that has the name in the log.
        options: Settings that the log does not state, by the names that the planner's options of
            the engine have, such as ``max_model_len``.

    Raises:
        KvhouseError: The model cannot be read, or an option is not known.
    """
    spec = None if model is None else load(model)
    settings = settings_of(options or {})
    return report_of(read(stream), spec, settings)


def report_of(log: Log, spec: ModelSpec | None, settings: Mapping[str, Value]) -> Report:
    """Explain what was read.

    Args:
        log: The log's facts.
        spec: The model, where the user names it.
        settings: See ``settings_of``.
    """
    origin: Literal["given", "catalogue", ""] = "" if spec is None else "given"
    named = _of_catalogue(log)
    if spec is None:
        spec, named = named, None
        origin = "" if spec is None else "catalogue"
    derived = derive(log, spec, settings) if log.facts else Derived()
    server = planned(log, spec, derived, settings)
    patient = Patient(log, spec, derived, server, given=origin == "given", named=named)
    return Report(
        log,
        "" if spec is None else spec.name,
        origin,
        derived,
        bar_of(log),
        diagnose(patient) if log.facts else (),
    )


def settings_of(options: Mapping[str, str]) -> dict[str, Value]:
    """What ``examine`` is given as options, as settings.

    Raises:
        KvhouseError: An option is not known.
    """
    found: dict[str, Value] = {}
    for name, text in options.items():
        setting = _SETTING_OF.get(name, name)
        if setting not in SETTINGS | {"engine_version"}:
            known = ", ".join(sorted(SETTINGS))
            raise KvhouseError(f"engine option {show(name)}: not known here; known are {known}")
        value = option_value(text)
        if setting == "engine_version":
            value = text.strip()
        if value is not None:
            found[setting] = value
    return found


def _of_catalogue(log: Log) -> ModelSpec | None:
    """The model of the catalogue whose name the log has; never a path that the log names."""
    name = log.facts.word("model")
    if name is None:
        return None
    last = name.rstrip("/").rpartition("/")[2].lower().replace(" ", "-")
    known = catalogue()
    while last not in known:
        shorter = _STORED.sub("", last)
        shorter = _TUNED.sub("", last) if shorter == last else shorter
        if shorter == last:
            return None
        last = shorter
    return load(last)
