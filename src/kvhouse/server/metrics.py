"""Figures for Prometheus, in a registry of each server's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.server.sight import PoolSight
from kvhouse.server.totals import StepTotals

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)

_STEP_COUNTERS = {
    "steps": "Steps that the engine made",
    "seconds": "Time of these steps",
    "computed_tokens": "Tokens computed, prompts and output",
    "generated_tokens": "Tokens sampled",
    "admitted_tokens": "Tokens known at each admission: prompts, after a preemption output too",
    "found_tokens": "Those of admitted_tokens that were in the pool or loaded from a tier",
    "preemptions": "How often a request lost its memory",
    "decode_bytes": "Bytes that steps of nothing but decoding had to read: weights once, and KV",
    "decode_seconds": "Time of these decoding steps; decode_bytes by it is the bandwidth achieved",
}


class Metrics:
    """What one server counts and times.

    Args:
        totals: What its steps add up to.
        pool: What does not change about its pool, from ``describe``.
    """

    def __init__(self, totals: StepTotals, pool: Mapping[str, Any]) -> None:
        self._registry = CollectorRegistry()
        self._pool = _Pool(totals, pool)
        self._registry.register(self._pool)
        self.prompt_tokens = Counter(
            "kvhouse_prompt_tokens",
            "Tokens of prompts, each request's with its first token",
            registry=self._registry,
        )
        self.requests = Counter(
            "kvhouse_requests",
            "Requests that ended, by how: finished, disconnected, timeout, refused or failed",
            ["outcome"],
            registry=self._registry,
        )
        self.first_token = Histogram(
            "kvhouse_time_to_first_token_seconds",
            "From a request's arrival to its first token",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.per_token = Histogram(
            "kvhouse_time_per_output_token_seconds",
            "Of each answer, the mean time between its tokens",
            buckets=_PER_TOKEN,
            registry=self._registry,
        )
        self.latency = Histogram(
            "kvhouse_request_seconds",
            "From a request's arrival to its last token",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def render(self, sight: PoolSight | None) -> bytes:
        """Everything in Prometheus' text format.

        Args:
            sight: The pool as it is now; None to show it as it was when it was last looked at.
        """
        self._pool.sight = sight or self._pool.sight
        return generate_latest(self._registry)


class _Pool(Collector):
    """What the engine knows, as it was when it was last looked at."""

    def __init__(self, totals: StepTotals, pool: Mapping[str, Any]) -> None:
        self._totals = totals
        self._labels = {
            "block_size": str(pool["block_tokens"]),
            "enable_prefix_caching": str(pool["prefix_cache"]),
            "kv_format": str(pool["kv_format"]),
        }
        self.sight: PoolSight | None = None

    def collect(self) -> Iterator[Metric]:
        totals = self._totals.to_dict()
        for name, text in _STEP_COUNTERS.items():
            if totals[name] is not None:
                full = f"kvhouse_step_{name}" if name == "seconds" else f"kvhouse_{name}"
                yield CounterMetricFamily(full, text, value=totals[name])
        info = GaugeMetricFamily(
            "kvhouse_cache_config_info", "Always 1; the labels say", labels=list(self._labels)
        )
        info.add_metric(list(self._labels.values()), 1)
        yield info
        if self.sight is None:
            return
        running, waiting = self.sight.running, self.sight.waiting
        yield GaugeMetricFamily("kvhouse_requests_running", "Requests in memory", value=running)
        yield GaugeMetricFamily("kvhouse_requests_waiting", "Requests in the queue", value=waiting)
        sizes = GaugeMetricFamily("kvhouse_kv_bytes", "Bytes of the pool", labels=["class"])
        ledger = self.sight.ledger.to_dict()
        for name in LEDGER_CLASSES:
            sizes.add_metric([name], ledger[name])
        yield sizes
        counts = GaugeMetricFamily("kvhouse_kv_blocks", "Blocks of the pool", labels=["class"])
        for name, blocks in self.sight.blocks.items():
            counts.add_metric([name], blocks)
        yield counts
