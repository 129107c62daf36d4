"""What happened to whom, as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from kvhouse.core.refusal import Refusal
from kvhouse.replayer.records import RequestRecord

_FITS_NOT = "memory is free, yet it does not fit"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        event: ``arrival``, ``rejected``, ``admitted``, ``refused``, ``preempted``,
            ``first_token`` or ``finished``.
        step: The step it belongs to; of an arrival, the next one.
        time: Seconds on the drive's clock.
        request: The request's place in the order of arrival.
        details: What else there is to say, by name.
    """

    event: str
    step: int
    time: float
    request: int
    details: dict[str, int | str]

    def encode(self) -> bytes:
        """One line of JSON."""
        line = {
            "event": self.event,
            "step": self.step,
            "time": self.time,
            "request": self.request,
            **self.details,
        }
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def refusal_reason(refusal: Refusal) -> str:
    """Why the head of the queue gets no memory, by the names of ``Refusals``.

    All but ``full`` are refusals while enough is free.
    """
    if refusal.no_slot:
        return "slots"
    if refusal.fragmented:
        return "fragmented"
    return "watermark" if refusal.needed <= refusal.free else "full"


def _explain(refusal: Refusal, reason: str) -> str:
    blocks = f"{refusal.needed:,} blocks"
    if reason == "slots":
        return "no slot for the request's state is free"
    if reason == "fragmented":
        return f"{_FITS_NOT}: {blocks} in one run are needed, {refusal.free:,} are free in pieces"
    if reason == "watermark":
        return (
            f"{_FITS_NOT}: {blocks} are needed, {refusal.free:,} are free, and "
            f"{refusal.held_back:,} of these are held back for running requests to grow"
        )
    return f"{blocks} are needed, {refusal.free:,} are free"


class Reporter:
    """Turns what a drive sees into events for whoever asked for them."""

    def __init__(self, sink: Callable[[Event], None]) -> None:
        self._sink = sink

    def arrived(self, record: RequestRecord, step: int) -> None:
        """A request came; where it can never fit, it was rejected."""
        self._tell(
            "arrival",
            step,
            record.arrival,
            record,
            prompt_tokens=record.prompt_tokens,
            max_new_tokens=record.max_new_tokens,
        )
        if record.rejection is not None:
            self._tell("rejected", step, record.arrival, record, reason=record.rejection)

    def admitted(
        self, record: RequestRecord, step: int, now: float, found: int, loading: int
    ) -> None:
        """A request got memory with ``found`` of its tokens in it, and ``loading`` on their way."""
        self._tell("admitted", step, now, record, found_tokens=found, loaded_tokens=loading)

    def preempted(self, record: RequestRecord, step: int, now: float, lost: int) -> None:
        """A request lost its memory, with ``lost`` computed tokens in it."""
        self._tell("preempted", step, now, record, lost_tokens=lost)

    def refused(
        self, record: RequestRecord, step: int, now: float, refusal: Refusal, reason: str
    ) -> None:
        """The head of the queue got no memory, for another reason than before."""
        self._tell(
            "refused",
            step,
            now,
            record,
            reason=reason,
            needed_blocks=refusal.needed,
            free_blocks=refusal.free,
            held_back_blocks=refusal.held_back,
            message=_explain(refusal, reason),
        )

    def first_token(self, record: RequestRecord, step: int, now: float) -> None:
        """A request got its first token."""
        self._tell("first_token", step, now, record)

    def finished(self, record: RequestRecord, step: int, now: float) -> None:
        """A request got its last token."""
        self._tell(
            "finished",
            step,
            now,
            record,
            generated_tokens=record.generated,
            preemptions=record.preemptions,
        )

    def _tell(
        self, event: str, step: int, time: float, record: RequestRecord, **details: int | str
    ) -> None:
        self._sink(Event(event, step, time, record.index, details))
