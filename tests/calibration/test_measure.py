"""What is made of times: the typical one, and what disturbs them on average."""

import pytest

from kvhouse.calibration.design import Point
from kvhouse.calibration.measure import Timed, disturbance
from kvhouse.costs import StepParts, StepRates

PARTS = StepParts(1, 1, 1, 0, 0, 0)


def timed(*seconds):
    return Timed(Point(1, 64), PARTS, [*seconds])


@pytest.mark.parametrize(
    ("seconds", "typical"), [((3.0,), 3.0), ((9.0, 2.0), 2.0), ((1.0, 9.0, 2.0), 2.0)]
)
def test_one_slow_step_is_not_typical(seconds, typical):
    assert timed(*seconds).typical == typical


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ([], 0.0),
        ([timed(1.0, 9.0)], 0.0),
        ([timed(1.0, 1.0, 1.0)], 0.0),
        ([timed(1.0, 1.0, 1.6)], 0.2),
        ([timed(1.0, 1.0, 500.0)], 2 / 3),  # counts as thrice the typical time
        ([timed(1.0, 1.0, 1.3), timed(10.0, 10.0, 10.0)], 0.3 / 33),  # long steps weigh more
    ],
)
def test_what_disturbs_is_a_share_of_all_the_time(steps, share):
    assert disturbance(steps) == pytest.approx(share)


def test_all_rates_are_slower_by_as_much():
    rates = StepRates((1, 2), (1.0, 2.0), 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    assert rates.slower(1.5) == StepRates((1, 2), (1.5, 3.0), 4.5, 6.0, 7.5, 9.0, 10.5, 12.0)
