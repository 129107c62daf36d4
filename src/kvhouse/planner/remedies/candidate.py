"""A change that a remedy may consist of: fields of a case, and its price in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvhouse.errors import KvhouseError
from kvhouse.planner.case import Case
from kvhouse.planner.remedies.prices import NONE, UNCHANGED

#: What a plan assumes of the traffic, which it does not know.
IDENTICAL = "identical requests of the asked length"


@dataclass(frozen=True, slots=True)
class Options:
    """What is known of the traffic; see ``remedies``.

    Raises:
        KvhouseError: A share outside [0, 1], lengths below 1, or two statements of one thing.
    """

    shared_tokens: int | None = None
    hit_share: float | None = None
    shorter: int | None = None
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.shared_tokens is not None and self.hit_share is not None:
            raise KvhouseError("shared_tokens and hit_share say the same thing: give one of them")
        if self.hit_share is not None and not 0 <= self.hit_share <= 1:
            raise KvhouseError(f"hit_share {self.hit_share}: give a share from 0 to 1")
        if any(length < 1 for length in self.lengths):
            raise KvhouseError("lengths: a request has at least 1 token")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change to try.

    Attributes:
        name: Short, such as ``int8 KV``.
        change: What changes, in words.
        fields: The fields of ``Case`` that change, and their new values.
        accuracy: What it costs in accuracy.
        latency: What it does to the time of a request.
        needs: What it asks for beside a setting.
        basis: What the requests that then fit are.
        assumption: What they rest on.
        hardware: Whether it takes other or further devices.
        other_model: Whether it is a choice of model and no remedy.
    """

    name: str
    change: str
    fields: Mapping[str, Any]
    accuracy: str = UNCHANGED
    latency: str = NONE
    needs: str = ""
    basis: Literal["exact", "modelled", "estimated"] = "exact"
    assumption: str = IDENTICAL
    hardware: bool = False
    other_model: bool = False

    def apply(self, case: Case) -> Case:
        """The case with the change.

        Raises:
            KvhouseError: It is impossible then.
        """
        return replace(case, **self.fields)

    def goes_with(self, other: Candidate) -> bool:
        """Whether both can be made, and each adds something to the other."""
        ours, theirs = dict(self.fields), dict(other.fields)
        agree = all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())
        return agree and bool(ours.keys() - theirs.keys()) and bool(theirs.keys() - ours.keys())

    def joined(self, other: Candidate) -> Candidate:
        """Both changes as one."""
        pair = (self, other)
        return Candidate(
            name=" + ".join(one.name for one in pair),
            change="; ".join(one.change for one in pair),
            fields={**self.fields, **other.fields},
            accuracy=_joined(UNCHANGED, self.accuracy, other.accuracy),
            latency=_joined(NONE, self.latency, other.latency),
            needs=_joined("", self.needs, other.needs),
            basis="exact" if self.basis == other.basis == "exact" else "estimated",
            assumption=_joined("", self.assumption, other.assumption),
            hardware=self.hardware or other.hardware,
        )


def _joined(nothing: str, *texts: str) -> str:
    """The texts that say something, each once; ``nothing`` where none does."""
    return "; ".join(dict.fromkeys(text for text in texts if text != nothing)) or nothing


@dataclass(frozen=True, slots=True)
class Excluded:
    """A remedy that does not apply, and why."""

    name: str
    reason: str
