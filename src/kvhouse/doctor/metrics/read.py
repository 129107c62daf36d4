"""Scrapes as the facts of a log, so that the same diagnoses look at both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvhouse.doctor.facts import Fact, Value
from kvhouse.doctor.launch import option_value
from kvhouse.doctor.line import WORDS
from kvhouse.doctor.log import Log
from kvhouse.doctor.metrics.names import CACHE_CONFIG, METRICS, MODEL_LABELS
from kvhouse.doctor.metrics.scrape import MOST_LINE, Sample, Scrape, scrapes
from kvhouse.doctor.scan import Readable
from kvhouse.web.mask import mask

#: Histograms of which the mean is a fact.
_MEANS = ("queue_seconds", "prefill_seconds", "prefilled_tokens", "prompt_length", "output_length")
#: Bytes read at once.
_CHUNK = 2**20


@dataclass(slots=True)
class Collected:
    """Scrapes of one server, one after the other.

    Attributes:
        log: Its facts; gauges are series, one value a scrape.
        count: How many scrapes there were.
        restarts: How often a total fell: the server was started again, or another one answered.
        last: The totals of the last scrape.
        grown: What the totals grew by from the first scrape to the last.
    """

    log: Log = field(default_factory=Log)
    count: int = 0
    restarts: int = 0
    last: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    _said: dict[str, Sample] = field(default_factory=dict)

    def take(self, scrape: Scrape) -> dict[str, float]:
        """Take in a scrape; what its totals grew by since the one before, all of them at first."""
        engine = scrape.engine
        if not engine:
            return {}
        totals: dict[str, float] = {}
        for metric in METRICS[engine]:
            samples = scrape.find(metric) if metric.fold == "total" else []
            if samples and metric.fact not in totals:
                totals[metric.fact] = sum(sample.value for sample in samples)
                self._said[metric.fact] = samples[0]
        for name, (value, sample) in scrape.gauges().items():
            self._gauge(name, value, sample, engine)
        self._configured(scrape, engine)
        grown = self._grow(totals)
        self._hits(grown, engine)
        self.count += 1
        return grown

    def finish(self) -> Log:
        """The log with the totals: since the server's start, or from first scrape to last."""
        totals = self.grown if self.count > 1 else self.last
        engine = max(self.log.wrote, key=lambda name: self.log.wrote[name], default="")
        for name, value in totals.items():
            if not name.endswith(("_sum", "_count")):
                self._add(name, value, self._said[name], engine)
        for name in _MEANS:
            count, total = totals.get(f"{name}_count"), totals.get(f"{name}_sum")
            if count and total is not None:
                said = self._said[f"{name}_sum"]
                self._add(f"{name}_mean", total / count, said, engine)
        _length(self.log, engine)
        return self.log

    def _grow(self, totals: Mapping[str, float]) -> dict[str, float]:
        """A total that fell was counted from 0 again."""
        if not self.count:
            self.last = dict(totals)
            return dict(totals)
        fell = any(value < self.last.get(name, 0.0) for name, value in totals.items())
        self.restarts += fell
        since = {} if fell else self.last
        grown = {name: value - since.get(name, 0.0) for name, value in totals.items()}
        for name, value in grown.items():
            self.grown[name] = self.grown.get(name, 0.0) + value
        self.last = dict(totals)
        return grown

    def _gauge(self, name: str, value: float, sample: Sample, engine: str) -> None:
        if name == "swapped":
            self.log.wrote["vllm-v0"] += 1
        elif name == "hit_share":
            self._observe("hit_pct", 100 * value, sample, engine)
        elif name in ("max_total_num_tokens", "longest_tokens", "kv_bytes"):
            self._add(name, value, sample, engine)
        else:
            self._observe(name, value, sample, engine)

    def _hits(self, grown: Mapping[str, float], engine: str) -> None:
        """The share of prompt tokens that were found, since the scrape before."""
        asked = grown.get("queried_total") or grown.get("prompt_total")
        hit = grown.get("hit_total")
        if asked and hit is not None:
            self._observe("hit_pct", min(100.0, 100 * hit / asked), self._said["hit_total"], engine)
        preempted = grown.get("preempted_total")
        if preempted is not None:
            self._observe("preempted", preempted, self._said["preempted_total"], engine)

    def _configured(self, scrape: Scrape, engine: str) -> None:
        for name, labels in CACHE_CONFIG.items():
            for sample in scrape.samples.get(name, ())[:1]:
                for label, fact in labels.items():
                    value = option_value(sample.labels.get(label, ""))
                    if value is not None:
                        self._add(fact, value, sample, engine, f"{label}={value}")
        for samples in scrape.samples.values():
            model = next((samples[0].labels[x] for x in MODEL_LABELS if x in samples[0].labels), "")
            if model:
                self._add("model", model, samples[0], engine, f"model_name={model}")
                break

    def _observe(self, name: str, value: float, sample: Sample, engine: str) -> None:
        self.log.facts.observe(name, value, sample.line, engine, sample.text)
        self.log.wrote[engine] += 1

    def _add(self, name: str, value: Value, sample: Sample, engine: str, text: str = "") -> None:
        whole = isinstance(value, float) and value.is_integer() and name not in WORDS
        kept = int(value) if whole else mask(value) if isinstance(value, str) else value
        shown = mask(text) if text else sample.text
        self.log.facts.add(Fact(name, kept, sample.line, engine, "", shown))
        self.log.wrote[engine] += 1


def _length(log: Log, engine: str) -> None:
    """The longest request, which vLLM does not expose: tokens are concurrency times length."""
    tokens, fits = log.facts.count("kv_tokens"), log.facts.number("max_concurrency")
    if engine != "vllm" or not tokens or not fits:
        return
    length = round(tokens / fits)
    said = log.facts.one("max_concurrency")
    if said is not None and abs(fits * length - tokens) < 1:
        text = "kv_cache_size_tokens / kv_cache_max_concurrency"
        log.facts.add(Fact("max_model_len", length, said.line, engine, "", text))


def read_metrics(stream: Readable) -> Log:
    """Read a saved scrape, or several one after the other."""
    lines = Lines(stream)
    collected = Collected()
    for scrape in scrapes(lines):
        collected.take(scrape)
    log = collected.finish()
    log.runs += collected.restarts
    log.size, log.lines, log.source = lines.size, lines.count, "metrics"
    return log


@dataclass(slots=True)
class Lines:
    """The lines of a stream, long ones cut.

    Attributes:
        stream: What is read.
        size: Bytes that were read.
        count: Lines that were read.
    """

    stream: Readable
    size: int = 0
    count: int = 0

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while chunk := self.stream.read(_CHUNK):
            self.size += len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[: MOST_LINE + 1]
            for line in whole:
                self.count += 1
                yield line
        if rest:
            self.count += 1
            yield rest
