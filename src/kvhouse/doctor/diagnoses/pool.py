"""A pool that does not suit what is asked of it, or whose figures mislead."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor

from kvhouse.doctor.diagnoses.base import (
    LITTLE,
    NONE,
    SOME,
    Diagnosis,
    Patient,
    ranked,
    whole,
)
from kvhouse.doctor.diagnoses.startup import narrower
from kvhouse.spec.layers import FullAttention

_SEQS = ("max_num_seqs", "max_running_requests", "max_concurrent_requests", "max_num_requests")
#: So many times as many requests as are let in would fit; the rest of the pool is for prefixes.
_IDLE = 4


def few_requests(patient: Patient) -> Iterable[Diagnosis]:
    """The pool holds many requests of full length, and few are let in."""
    facts = patient.facts
    fits, limit = facts.number("max_concurrency"), facts.count(*_SEQS)
    if fits is None and patient.planned is not None:
        requests = patient.planned.requests()
        fits = None if requests is None else float(requests)
    waiting = facts.series.get("waiting")
    if fits is None or limit is None or fits < _IDLE * limit:
        return
    if waiting is not None and not waiting.most:
        return
    yield Diagnosis(
        "few_requests",
        "warning" if waiting is not None else "note",
        (("fits", f"{fits:,.1f}"), ("limit", whole(limit))),
        patient.evidence("max_concurrency", *_SEQS, "waiting", "kv_tokens"),
        tuple(patient.change("more_requests", "seqs", LITTLE, floor(fits))),
    )


def many_requests(patient: Patient) -> Iterable[Diagnosis]:
    """More requests are let in than the pool holds at full length, and it runs full."""
    facts = patient.facts
    fits, limit = facts.number("max_concurrency"), facts.count(*_SEQS)
    usage = facts.series.get("usage_pct") or facts.series.get("usage_share")
    full = usage is not None and usage.most >= (90 if usage.most > 1 else 0.9)
    if fits is None or limit is None or limit <= 2 * fits or not full:
        return
    yield Diagnosis(
        "many_requests",
        "warning",
        (("fits", f"{fits:,.1f}"), ("limit", whole(limit))),
        patient.evidence("max_concurrency", *_SEQS, "usage_pct", "usage_share"),
        ranked(
            [
                *patient.change("fewer_requests", "seqs", LITTLE, max(1, floor(fits))),
                *narrower(patient),
            ]
        ),
    )


def hybrid_tokens(patient: Patient) -> Iterable[Diagnosis]:
    """Printed tokens of a hybrid model are no measure of its pool."""
    facts = patient.facts
    if patient.engine != "vllm" or "kv_tokens" not in facts:
        return
    view = patient.planned.at() if patient.planned is not None else None
    groups = 1 if view is None else len(view.groups)
    if groups < 2 and "attn_block_size" not in facts and "padding_layers" not in facts:
        return
    fits = facts.number("max_concurrency")
    yield Diagnosis(
        "hybrid_tokens",
        "note",
        (
            ("tokens", whole(facts.count("kv_tokens") or 0)),
            ("fits", "?" if fits is None else f"{fits:.2f}"),
        ),
        patient.evidence(
            "kv_tokens",
            "max_concurrency",
            "attn_block_size",
            "mamba_page_padding_pct",
            "padding_layers",
        ),
    )


def tp_over_heads(patient: Patient) -> Iterable[Diagnosis]:
    """More ranks than KV heads: heads are copied, so KV no longer shrinks."""
    ranks, spec = patient.facts.count("tp"), patient.spec
    if spec is None or not ranks:
        return
    heads = [
        part.kv_heads
        for layer in spec.layers
        for part in layer.parts
        if isinstance(part, FullAttention)
    ]
    if not heads or ranks <= max(heads):
        return
    most = max(heads)
    yield Diagnosis(
        "tp_over_heads",
        "warning",
        (("ranks", whole(ranks)), ("heads", whole(most)), ("copies", whole(-(-ranks // most)))),
        patient.evidence("tp"),
        tuple(patient.change("split_stages", "pp", SOME, ranks // most)),
    )


def scales_of_one(patient: Patient) -> Iterable[Diagnosis]:
    """KV in 8 bits without scales loses accuracy in silence."""
    if "kv_scale_one" not in patient.facts:
        return
    yield Diagnosis(
        "scales_of_one",
        "warning",
        (),
        patient.evidence("kv_scale_one", "kv_cache_dtype"),
        tuple(patient.change("scales", "scales", LITTLE)),
    )


def split_context(patient: Patient) -> Iterable[Diagnosis]:
    """llama.cpp's sequences share one context, or each has a part of it."""
    facts = patient.facts
    short = facts.series.get("cells_short")
    if short is None:
        return
    context, sequences = facts.count("n_ctx"), facts.count("n_seq_max")
    yield Diagnosis(
        "cells_short",
        "warning",
        (("times", whole(short.count)), ("cells", "?" if context is None else whole(context))),
        patient.evidence("cells_short", "n_ctx", "n_seq_max"),
        (
            *patient.change("longer", "length", NONE, 2 * context if context else "…"),
            *patient.change("fewer_requests", "seqs", LITTLE, max(1, (sequences or 2) // 2)),
        ),
    )
