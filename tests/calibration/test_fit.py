"""Rates that are fitted, against rates that are known and against every choice of columns."""

from dataclasses import astuple
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse import spec
from kvhouse.calibration.design import design, plan_of
from kvhouse.calibration.fit import fit, nonnegative
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.costs import FittedSteps, StepRates
from kvhouse.costs.fitted import Parts
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize

SPEC = spec.load("smollm2")
LAYOUT = KVLayout.of(SPEC, "fp32")
LIMITS = SchedulerConfig(8192)
POOL = PoolSize(3000)


def best_of_all_choices(matrix, target):
    """The least squares over each set of columns, of which the best without negatives counts."""
    unknowns = matrix.shape[1]
    least = float(target @ target)
    for size in range(1, unknowns + 1):
        for chosen in combinations(range(unknowns), size):
            x, *_ = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)
            if (x >= 0).all():
                least = min(least, float(((matrix[:, chosen] @ x - target) ** 2).sum()))
    return least


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 4))
def test_no_choice_of_columns_comes_nearer(seed, unknowns, spare):
    chance = np.random.default_rng(seed)
    matrix = chance.normal(size=(unknowns + spare, unknowns))
    target = chance.normal(size=unknowns + spare)
    x = nonnegative(matrix, target)
    assert (x >= 0).all()
    missed = float(((matrix @ x - target) ** 2).sum())
    assert missed == pytest.approx(best_of_all_choices(matrix, target), abs=1e-9)


def timed_steps():
    """What the steps of the design have to do."""
    parts = Parts(SPEC, LAYOUT)
    made = [plan_of(point, LAYOUT, POOL, LIMITS) for point in design(48_000, LIMITS)]
    return [parts.of([(r.first, r.count, r.samples) for r in plan.rows]) for plan in made if plan]


KNOWN = StepRates((1, 4, 2048), (0.04, 0.06, 2.5), 0.008, 1e-4, 5e-5, 3e-11, 1e-10, 1 / 300e9)


def test_known_rates_foretell_other_steps():
    """Fitted to the design alone; rates that cannot be told apart there need not be those."""
    known, parts = FittedSteps(SPEC, LAYOUT, KNOWN), timed_steps()
    rates, residuals = fit(parts, [known._sum(one) / 1e18 for one in parts])
    assert residuals.worst < 1e-6
    found = FittedSteps(SPEC, LAYOUT, rates)
    for rows in (
        [(300, 1, True)] * 9,
        [(900, 1, True)] * 17 + [(512, 100, True)],
        [(0, 777, False)],
        [(2048, 333, False), (0, 77, True), (10, 1, True)],
    ):
        assert found.of(rows).seconds == pytest.approx(known.of(rows).seconds, rel=0.02)


def test_noise_is_said():
    known, parts = FittedSteps(SPEC, LAYOUT, KNOWN), timed_steps()
    chance = np.random.default_rng(0)
    noisy = [known._sum(one) / 1e18 * chance.uniform(0.9, 1.1) for one in parts]
    _, residuals = fit(parts, noisy)
    assert residuals.steps == len(parts)
    assert 0.01 < residuals.mean < 0.05
    # A step that is foretold by the others is off by more than one that is fitted to.
    assert residuals.mean < residuals.cross_validated_mean < 0.15


def test_no_rate_is_negative():
    parts = timed_steps()
    backwards = [1 / (1 + one.tokens + one.decode_bytes) for one in parts]
    rates, _ = fit(parts, backwards)
    values = [value for value in astuple(rates)[1:] if not isinstance(value, tuple)]
    assert min(*values, *rates.knot_seconds) >= 0


def test_nothing_to_fit():
    with pytest.raises(KvhouseError, match="no steps"):
        fit([], [])


@pytest.mark.parametrize("pool", [POOL, PoolSize(64), PoolSize(3)])
@pytest.mark.parametrize(
    "limits",
    [LIMITS, SchedulerConfig(100, token_budget=64, max_running=4), SchedulerConfig(8192, 1)],
)
def test_the_design_keeps_to_the_engine_s_limits(pool, limits):
    points = design(pool.blocks * 16, limits)
    assert len(set(points)) == len(points)
    planned = 0
    for point in points:
        plan = plan_of(point, LAYOUT, pool, limits)
        if plan is None:
            continue
        planned += 1
        assert plan.tokens == point.tokens <= limits.token_budget
        assert len(plan.rows) == point.decoding + (point.chunk > 0) <= limits.max_running
        assert all(row.first + row.count <= limits.max_length for row in plan.rows)
        decoding = [row for row in plan.rows if row.count == 1 and row.samples]
        assert len(decoding) >= point.decoding
        blocks = [block for row in plan.rows for block in row.tables[0]]
        assert len(set(blocks)) == len(blocks) <= pool.blocks
    assert planned
    if pool is POOL and limits is LIMITS:
        assert planned == len(points) > 80
        assert {1, 2, 8, 64, 512, 2048} <= {point.tokens for point in points}
