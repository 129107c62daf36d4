"""A drive with the fingerprint of its step plans, so that two drives can be held together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kvhouse.core.step import StepPlan
from kvhouse.replayer.results import ReplayResult


@dataclass(frozen=True, slots=True)
class LoggedDrive:
    """One drive.

    Attributes:
        result: Its figures.
        plan_log: SHA-256 of all its step plans.
        pool_bytes: Bytes of the pool: of a replay as laid out, of a run as its tensors hold.
    """

    result: ReplayResult
    plan_log: str
    pool_bytes: int


class PlanFingerprint:
    """A running SHA-256 over step plans."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, plan: StepPlan) -> None:
        """Take the next plan in."""
        self._hash.update(plan.encode())

    @property
    def digest(self) -> str:
        """The fingerprint of all plans so far, in hexadecimal."""
        return self._hash.hexdigest()
