"""The share of tokens found in the cache, as the doctor reads it from ``/metrics``."""

from __future__ import annotations

import io

import pytest

from kvhouse.core.step import Row, StepPlan, StepResult, Transfer
from kvhouse.doctor import examine
from kvhouse.engine import SamplingParams
from kvhouse.server import describe
from kvhouse.server.metrics import Metrics
from kvhouse.server.totals import StepTotals

WARM = SamplingParams(temperature=1.0, seed=3, ignore_eos=True)


def hit_pct(content):
    return examine(io.BytesIO(content)).log.facts.series["hit_pct"].last


def test_each_of_several_answers_asks_for_the_prompt(tiny, serving):
    """The first computes 17 tokens in blocks of 4, and the three others find 16 of them."""
    server = serving(tiny(prefix_cache=True))
    assert server.ask(list(range(1, 18)), n=4, temperature=1).status_code == 200
    content = server.http.get("/metrics").content
    facts = examine(io.BytesIO(content)).log.facts
    assert (facts.count("queried_total"), facts.count("hit_total")) == (68, 48)
    assert hit_pct(content) == pytest.approx(100 * 48 / 68)
    totals = server.until_free()["totals"]
    assert (totals["admitted_tokens"], totals["found_tokens"]) == (68, 48)


@pytest.mark.parametrize("budget", [5, 64])
@pytest.mark.parametrize(("blocks", "preempts"), [(64, False), (12, True)])
def test_every_admission_counts(tiny, budget, blocks, preempts):
    """Against what the allocator itself was asked for, preempted requests and long prompts too."""
    engine = tiny(
        blocks, prefix_cache=True, token_budget=budget, max_length=44, watermark=0.0
    )  # fmt: skip
    totals = engine.observer = StepTotals(engine)
    memory, asked, found = engine.scheduler.memory, [], []
    admit = memory.admit

    def noted(request, **options):
        known = request.known
        refusal = admit(request, **options)
        if refusal is None:
            holding = memory.holding(request.id)
            asked.append(known)
            found.append(holding.reused + holding.loaded)
        return refusal

    memory.admit = noted
    prompts = [[7] * 9 + [number] * 4 for number in range(3)]
    engine.generate(prompts, 20, WARM, n=2)
    assert (totals.preemptions > 0) is preempts
    assert len(asked) == 6 + totals.preemptions
    assert totals.admitted_tokens == sum(asked)
    assert totals.found_tokens == sum(found) > 0
    content = Metrics(totals, describe(engine)).render(None)
    assert hit_pct(content) == pytest.approx(100 * sum(found) / sum(asked))


def test_an_admission_whose_load_failed_is_none(tiny):
    """It is admitted again, and counts then."""
    totals = StepTotals(tiny(prefix_cache=True))
    rows = (Row(0, 8, 1, True, ((1, 2, 3),)), Row(1, 4, 3, True, ((4, 5),)))
    plan = StepPlan(0, rows, (), (0, 1), (), loads=(Transfer(0, 0, 2), Transfer(0, 1, 4)))
    totals(plan, StepResult(0.1, (), failed_loads=(2,)))
    assert (totals.admitted_tokens, totals.found_tokens) == (7, 4)


@pytest.mark.parametrize(("shares", "codes"), [(True, {"no_hits"}), (False, set())])
def test_a_cache_that_is_off_is_not_said_to_find_nothing(tiny, shares, codes):
    engine = tiny(prefix_cache=shares)
    totals = StepTotals(engine)
    totals.admitted_tokens = 20_000
    content = Metrics(totals, describe(engine)).render(None)
    report = examine(io.BytesIO(content))
    found = {one.code for one in report.diagnoses if one.code.startswith("no_hits")}
    assert found == codes
    assert report.log.facts.count("block_size") == 4
