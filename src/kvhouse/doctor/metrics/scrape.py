"""A scrape of ``/metrics``: the samples that are known here, line by line in bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kvhouse.doctor.metrics.names import CACHE_CONFIG, METRICS, NOT_HELD, PREFIXES, Metric
from kvhouse.errors import KvhouseError
from kvhouse.web.mask import mask

#: Samples of one scrape that are kept; a server has a few for each of its engines.
MOST_SAMPLES = 4096
#: A longer line is passed over.
MOST_LINE = 2**16
_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]{0,127}(?=[{ \t])")
#: Ray's exporter puts its name in front and writes underscores for colons.
_RAY = (("ray_vllm_", "vllm:"), ("ray_sglang_", "sglang:"), ("ray_", ""))
_WANTED = frozenset(
    name for metrics in METRICS.values() for metric in metrics for name in metric.names
) | frozenset(CACHE_CONFIG)
#: What a scrape is recognised by: a comment of the format, or a sample of an engine.
_COMMENT = re.compile(rb"# (?:HELP|TYPE) [a-zA-Z_:]")
_SAMPLE = re.compile(
    rb"(?:ray_)?(?:vllm|sglang|llamacpp|tgi|kvhouse)[:_][a-z_:]{1,120}"
    rb"(?:\{[^\n]{0,4096}\})?[ \t]-?[\dN+]"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        name: Its name, without what an exporter put in front.
        labels: Its labels.
        value: Its value, finite and not below 0.
        line: Number of its line, from 1.
        text: The line, without secrets.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    line: int
    text: str


@dataclass(slots=True)
class Scrape:
    """What one scrape says.

    Attributes:
        samples: Samples by name.
        count: How many they are.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    count: int = 0

    @property
    def engine(self) -> str:
        """The engine that most samples are of; empty for none."""
        counts: dict[str, int] = {}
        for name, samples in self.samples.items():
            engine = _engine_of(name)
            counts[engine] = counts.get(engine, 0) + len(samples)
        return max(counts, key=lambda name: counts[name], default="")

    def find(self, metric: Metric) -> list[Sample]:
        """The samples of a figure, by the first of its names that is there."""
        for name in metric.names:
            wanted = metric.labels
            found = [
                sample
                for sample in self.samples.get(name, ())
                if all(sample.labels.get(label) == value for label, value in wanted)
            ]
            if found:
                return found
        return []

    def gauges(self) -> dict[str, tuple[float, Sample]]:
        """What is so now: each figure with a sample that says it."""
        found: dict[str, tuple[float, Sample]] = {}
        for metric in METRICS.get(self.engine, ()):
            samples = self.find(metric)
            if not samples or metric.fold == "total":
                continue
            values = [sample.value for sample in samples]
            value = max(values) if metric.fold == "most" else sum(values)
            found[metric.fact] = value, samples[0]
        return found | self._held()

    def _held(self) -> dict[str, tuple[float, Sample]]:
        """The share of kvhouse's pool that requests hold, by its ledger."""
        sizes = self.samples.get("kvhouse_kv_bytes", [])
        total = sum(sample.value for sample in sizes)
        if not total:
            return {}
        idle = sum(sample.value for sample in sizes if sample.labels.get("class") in NOT_HELD)
        return {"usage_share": (1 - idle / total, sizes[0])}

    def add(self, sample: Sample) -> None:
        """Take in one sample."""
        if self.count < MOST_SAMPLES:
            self.samples.setdefault(sample.name, []).append(sample)
            self.count += 1


def is_scrape(head: bytes) -> bool:
    """Whether a text begins as a scrape does: most of its first lines are comments or samples."""
    lines = [line for line in head[:MOST_LINE].split(b"\n")[:64] if line.strip()]
    known = sum(bool(_COMMENT.match(line) or _SAMPLE.match(line)) for line in lines)
    return 0 < len(lines) <= 2 * known


def scrapes(lines: Iterable[bytes]) -> Iterator[Scrape]:
    """The scrapes of a text; where a sample comes again, another scrape begins.

    Raises:
        KvhouseError: The library that reads samples is not installed.
    """
    scrape, seen = Scrape(), set[tuple[object, ...]]()
    for number, line in enumerate(lines, start=1):
        sample = _sample(line, number)
        if sample is None:
            continue
        key = (sample.name, *sorted(sample.labels.items()))
        if key in seen:
            yield scrape
            scrape = Scrape()
            seen.clear()
        if len(seen) < MOST_SAMPLES:
            seen.add(key)
        scrape.add(sample)
    if scrape.count:
        yield scrape


def _sample(line: bytes, number: int) -> Sample | None:
    """A line's sample, where it is one that is known; damaged lines are passed over."""
    found = _NAME.match(line)
    name = "" if found is None else _plain(found[0].decode())
    if name not in _WANTED or len(line) > MOST_LINE:
        return None
    text = line.decode("utf-8", "replace").strip()
    parsed = _parsed(text)
    if parsed is None:
        return None
    labels, value = parsed
    if not math.isfinite(value) or value < 0 or labels.get("tp_rank", "0") != "0":
        return None  # other ranks of a tensor-parallel group say the same again
    return Sample(name, labels, value, number, mask(text))


def _parsed(text: str) -> tuple[dict[str, str], float] | None:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise KvhouseError(
            "reading /metrics needs prometheus-client: pip install 'kvhouse[server]'"
        ) from None
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return None
    samples = [sample for family in families for sample in family.samples]
    if len(samples) != 1:
        return None
    return {str(key): str(value) for key, value in samples[0].labels.items()}, samples[0].value


def _plain(name: str) -> str:
    for prefix, plain in _RAY:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def _engine_of(name: str) -> str:
    return next(engine for prefix, engine in PREFIXES.items() if name.startswith(prefix))
