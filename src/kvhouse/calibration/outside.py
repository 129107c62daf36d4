"""Rates of a server that is known only by when its tokens came: fitted to benches of it.

No step is seen from outside. But a request's tokens come one a step, so the median time between
them is that of a step, and who decoded beside it is known by when the others began and ended; and a
request that was alone waited for nothing but its own prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np

from kvhouse.bench.stored import StoredLoad
from kvhouse.calibration.fit import Residuals, fit_columns
from kvhouse.calibration.profile import Profile
from kvhouse.calibration.profile_parts import MOST_TEXT
from kvhouse.calibration.seen import LEAST_STEPS, Seen, Span
from kvhouse.costs.fitted import Parts, StepRates
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec.fields import show, show_path
from kvhouse.spec.model import ModelSpec

#: Decode phases and lone prompts without which nothing is fitted.
LEAST_PHASES, LEAST_ALONE = 20, 5
#: By what factor batches and contexts must differ to be told apart, and between which percentiles.
LEAST_SPREAD = 1.5
_BATCHES, _CONTEXTS = (10, 90), (5, 95)
#: By how much prompts must, longest over shortest, for attention to be told from their tokens.
_CURVED = 4.0
#: Numbers of tokens nearer than this factor are one knot.
_KNOTS_APART = 1.5
#: Percentiles of the chunks of prompts at which there are knots.
_CHUNKS = tuple(range(0, 101, 10))


def profile_from(
    loads: Sequence[StoredLoad], spec: ModelSpec, layout: KVLayout, dtype: str, token_budget: int
) -> Profile:
    """The profile of a server, fitted to benches of it; see ``fit_loads``.

    Raises:
        KvhouseError: They are of several servers, or do not tell the parts apart.
    """
    servers = sorted({(load.figures["target"], load.figures["model"]) for load in loads})
    if len(servers) > 1:
        named = [f"{show(served)} at {show_path(target)}" for target, served in servers[:2]]
        raise KvhouseError(f"the benches are of {' and of '.join(named)}: give those of one server")
    target, served = servers[0]
    days = sorted({load.figures["made"][:10] for load in loads})
    rates, residuals = fit_loads(loads, spec, layout, token_budget)
    origin = f"from a bench of {target} ({served}) at {', '.join(days)}, seen from outside"
    return Profile.of(
        spec,
        layout,
        dtype,
        None,
        0,
        rates,
        residuals,
        disturbance=0.0,
        partial=any(load.figures.get("partial") is True for load in loads),
        origin=origin[:MOST_TEXT],
    )


def fit_loads(
    loads: Sequence[StoredLoad], spec: ModelSpec, layout: KVLayout, token_budget: int
) -> tuple[StepRates, Residuals]:
    """The rates that come nearest to what benches of one server saw.

    What cannot be told apart from outside is 0 and stands in another rate: sampling, and what a
    row takes, in the seconds by tokens; attention in prompts too, where these are all about as
    long. Earlier keys and values are read by chunks of prompts at the rate of decoding rows where
    hardly a lone prompt took several steps.

    Args:
        loads: The benches.
        spec: The model that the server ran.
        layout: How its KV lies in memory.
        token_budget: Tokens that it computes in a step at most.

    Raises:
        KvhouseError: The benches do not tell the parts apart; the message says what is missing.
    """
    parts = Parts(spec, layout)
    seen = [Seen(load, parts, token_budget) for load in loads]
    phases = [span for one in seen for span in one.decoding()]
    alone = [span for one in seen for span in one.alone()]
    _require(phases, alone)
    chunks = [tokens for span in alone for tokens in span.steps]
    knots = _knots(phases, alone)
    spans = phases + alone
    columns = np.array([_row(span, knots) for span in spans])
    if max(chunks) < _CURVED * min(chunks):
        columns[:, -1] = 0.0
    read_by_chunks = sum(len(span.steps) > 1 for span in alone) >= LEAST_ALONE
    if not read_by_chunks:  # what a cache held is too little to tell a rate from
        columns[:, -3] += columns[:, -2]
        columns[:, -2] = 0.0
    rates, residuals = fit_columns(columns, np.array([span.seconds for span in spans]))
    decode, chunk, flop = (float(rate) for rate in rates[len(knots) :])
    rises = rates[1 : len(knots)] * np.diff(knots)
    by_tokens = tuple(float(rates[0] + rise) for rise in (0.0, *np.cumsum(rises)))
    return StepRates(
        knots, by_tokens, 0.0, 0.0, 0.0, decode, chunk if read_by_chunks else decode, flop
    ), residuals


def _require(phases: Sequence[Span], alone: Sequence[Span]) -> None:
    """Refuse what does not tell the parts apart."""
    if len(phases) < LEAST_PHASES:
        raise KvhouseError(
            f"{len(phases)} answers came token by token and had over {LEAST_STEPS} tokens, and a "
            f"fit takes {LEAST_PHASES}: bench more requests, or longer ones"
        )
    if len(alone) < LEAST_ALONE:
        raise KvhouseError(
            f"{len(alone)} requests found the server idle, and a fit takes {LEAST_ALONE}, whose "
            "first token waited for nothing else: bench at a low rate or --concurrency 1 too, and "
            "give both files"
        )
    if _spread([span.rows for span in phases], _BATCHES) < LEAST_SPREAD:
        raise KvhouseError(
            "wherever tokens came evenly about as many requests decoded together, so a step's own "
            "time and that of each row cannot be told apart: bench at another rate or "
            "--concurrency too, at which the server is busy but not overwhelmed, and give all files"
        )
    if _spread([span.decode_bytes / span.rows for span in phases], _CONTEXTS) < LEAST_SPREAD:
        raise KvhouseError(
            "all requests had about as many tokens, so the time of a row and of the KV that it "
            "reads cannot be told apart: bench with prompts of several lengths, such as --trace "
            "'poisson:rate=1,prompt=uniform(50,1500),output=uniform(20,200),requests=100'"
        )


def _spread(values: Sequence[float], between: tuple[int, int]) -> float:
    low, high = np.percentile(values, between)
    return float(high / low) if low > 0 else 1.0


def _knots(phases: Sequence[Span], alone: Sequence[Span]) -> tuple[int, ...]:
    """Numbers of tokens between which a step's time is taken to be a straight line.

    Each is a batch or a chunk of a prompt that was seen, so something was measured there.
    """
    batches = [span.rows for span in phases]
    chunks = [tokens for span in alone for tokens in span.steps]
    middle = (min(batches) * max(batches)) ** 0.5
    wanted = [min(batches), min(batches, key=lambda rows: abs(rows - middle)), max(batches)]
    wanted += [float(at) for at in np.percentile(chunks, _CHUNKS, method="nearest")]
    kept: list[int] = []
    for knot in sorted(max(1, round(tokens)) for tokens in wanted):
        if not kept or knot >= _KNOTS_APART * kept[-1]:
            kept.append(knot)
    longest = round(max(wanted))
    return (*kept[:-1], longest) if len(kept) > 1 else (kept[0], longest + (longest == kept[0]))


def _row(span: Span, knots: Sequence[int]) -> list[float]:
    """What a span's time has of each rate.

    First its steps, each as long as one at the first knot; then by how many tokens they go beyond
    each knot but the last, up to the next; then the others. As no rate is negative, more tokens
    never take less time.
    """
    beyond = [0.0] * (len(knots) - 1)
    for tokens in span.steps:
        for at, (low, high) in enumerate(pairwise(knots)):
            least = -inf if at == 0 else 0.0
            most = inf if at == len(beyond) - 1 else float(high - low)
            beyond[at] += min(max(tokens - low, least), most)
    others = (span.decode_bytes, span.chunk_bytes, span.chunk_flops)
    return [float(len(span.steps)), *beyond, *others]
