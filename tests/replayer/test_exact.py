"""Sums that are exact until they are asked for, against ``math.fsum``."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.replayer.exact import ExactSum

floats = st.floats(-1e18, 1e18) | st.floats(-1e-300, 1e-300) | st.sampled_from([0.1, 1e16, -1e16])


@given(st.lists(st.lists(floats)))
def test_it_is_the_correctly_rounded_sum(parts):
    total = ExactSum()
    for part in parts:
        total.add(np.array(part, dtype=float))
    assert total.value == math.fsum(value for part in parts for value in part)


def test_many_values_of_all_sizes():
    values = np.random.default_rng(1).normal(size=100_000) * np.logspace(-200, 200, 100_000)
    total = ExactSum()
    for part in np.array_split(values, 7):
        total.add(part)
    assert total.value == math.fsum(values)
