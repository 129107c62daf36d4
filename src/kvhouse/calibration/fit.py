"""Rates from timed steps: least squares without negative rates, by the share that is missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvhouse.costs.fitted import StepParts, StepRates, between
from kvhouse.errors import KvhouseError

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Parts in which the steps are cut to be foretold from the others.
_FOLDS = 8
#: What a rate must gain to be let in, as a share of the largest.
_GAIN = 1e-10


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far the rates are off on the steps themselves, as shares of the measured times.

    Attributes:
        steps: Steps that the rates are fitted to.
        mean: Mean of the absolute errors.
        worst: The largest of them.
        cross_validated_mean: Mean of the absolute errors where each step is foretold by rates
            that are fitted without it.
        cross_validated_p90: Their 90th percentile.
    """

    steps: int
    mean: float
    worst: float
    cross_validated_mean: float
    cross_validated_p90: float


def fit(parts: Sequence[StepParts], seconds: Sequence[float]) -> tuple[StepRates, Residuals]:
    """The rates that come nearest to what was measured, and how near that is.

    A step's time is a sum of parts at rates, so the rates solve a linear least-squares problem;
    each equation is divided by its measured time, so that shares count and no step outweighs
    the others by being long.

    Args:
        parts: What each step had to do.
        seconds: How long it took, above 0.

    Raises:
        KvhouseError: There are no steps.
    """
    if not parts:
        raise KvhouseError("calibration: there are no steps to fit rates to")
    knots = sorted({one.tokens for one in parts})
    columns = np.array([_row(one, knots) for one in parts], dtype=np.float64)
    rates, residuals = fit_columns(columns, np.asarray(seconds, dtype=np.float64))
    return _rates_of(knots, rates), residuals


def fit_columns(columns: Array, seconds: Array) -> tuple[Array, Residuals]:
    """As ``fit``, of any parts: the rate of each column, none of them negative.

    Args:
        columns: ``[steps, parts]``, how much of each part a step has.
        seconds: ``[steps]``, how long each took, above 0.
    """
    columns = columns / seconds[:, None]
    rates = _solve(columns)
    errors = np.abs(columns @ rates - 1)
    validated = _cross_validate(columns)
    return rates, Residuals(
        len(columns),
        float(errors.mean()),
        float(errors.max()),
        float(validated.mean()),
        float(np.percentile(validated, 90)),
    )


def _row(parts: StepParts, knots: Sequence[int]) -> list[float]:
    """What a step's time has of each rate: first those at the knots, then the others."""
    shares = [0.0] * len(knots)
    at, along, way = between(knots, parts.tokens)
    shares[at] = 1 - along / way
    if along:
        shares[at + 1] = along / way
    sampling = float(parts.samples > 0)
    others = (sampling, parts.samples, parts.rows)
    return [*shares, *others, parts.decode_bytes, parts.chunk_bytes, parts.chunk_flops]


def _rates_of(knots: Sequence[int], rates: Array) -> StepRates:
    values = [float(rate) for rate in rates]
    return StepRates(tuple(knots), tuple(values[: len(knots)]), *values[len(knots) :])


def _solve(columns: Array) -> Array:
    """Rates for which every row comes near 1; each column is scaled to its largest entry."""
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0
    solved: Array = nonnegative(columns / scale, np.ones(len(columns))) / scale
    return solved


def _cross_validate(columns: Array) -> Array:
    """The absolute error of each step by rates that were fitted without its fold.

    Steps of one number of tokens stand side by side, so folds are dealt out one step at a time.
    """
    folds = np.arange(len(columns)) % _FOLDS
    errors = np.zeros(len(columns))
    for fold in range(min(_FOLDS, len(columns))):
        left_out = folds == fold
        if not left_out.all():
            rates = _solve(columns[~left_out])
            errors[left_out] = np.abs(columns[left_out] @ rates - 1)
    return errors


def nonnegative(matrix: Array, target: Array) -> Array:
    """The ``x ≥ 0`` for which ``matrix @ x`` comes nearest to ``target``.

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter
    23): columns are let in one at a time, the one that helps most first, and go out again where
    their share would turn negative.

    Args:
        matrix: ``[equations, unknowns]``.
        target: ``[equations]``.
    """
    x = np.zeros(matrix.shape[1])
    inside = np.zeros(matrix.shape[1], dtype=bool)
    least = _GAIN * max(1.0, float(np.abs(matrix.T @ target).max(initial=0.0)))
    for _ in range(3 * matrix.shape[1]):
        gain = matrix.T @ (target - matrix @ x)
        gain[inside] = -np.inf
        best = int(np.argmax(gain))
        if gain[best] <= least:
            break
        inside[best] = True
        solved = _inside(matrix, target, inside)
        while inside.any() and solved[inside].min() <= 0:
            turning = inside & (solved <= 0)
            step = (x[turning] / (x[turning] - solved[turning] + 1e-300)).min()
            x += step * (solved - x)
            inside &= x > 1e-15
            x[~inside] = 0.0
            solved = _inside(matrix, target, inside)
        x = solved
    return x


def _inside(matrix: Array, target: Array, inside: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
    """The least-squares solution over the columns that are let in; 0 for the others."""
    solved = np.zeros(matrix.shape[1])
    solved[inside] = np.linalg.lstsq(matrix[:, inside], target, rcond=None)[0]
    return solved
