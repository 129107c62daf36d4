"""The figures of a load, with stable keys: replay's own where they mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.bench.load import Sent
from kvhouse.bench.records import LoadRecord
from kvhouse.replayer.ratio import ratio
from kvhouse.replayer.results import Distribution, Level
from kvhouse.replayer.slo import SLO, Goodput


@dataclass(frozen=True, slots=True)
class Failures:
    """Requests that came to nothing in one way: how many, and one of them in words."""

    kind: str
    requests: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load came to. Times are in seconds and measured.

    Attributes:
        about: What was asked, when and how: the target, the model, how prompts were given, and
            of an engine in this process which way the model was computed.
        mode: ``open`` or ``closed`` loop.
        concurrency: Senders of a closed loop; None for an open one.
        trace: The traffic.
        requests: How many the trace has.
        partial: Whether the load ended before all had ended; the figures are those of what had.
        submitted: Requests that were sent.
        finished: Whole answers.
        failed: Requests that came to nothing.
        unfinished: Requests that were under way when the load ended early.
        errors: In which ways requests failed, the most frequent first.
        shorter: Whole answers with fewer tokens than were asked for.
        prompt_tokens: Prompt tokens of the whole answers, in the target's count where it gave
            one.
        output_tokens: Their tokens.
        cached_tokens: Their prompt tokens that were in the target's cache; None where it did not
            say.
        token_counts: Who counted: ``usage`` (the target), ``pieces`` (one token for each piece
            that came), or ``mixed``.
        makespan_seconds: From the first arrival to the last token or failure.
        output_tokens_per_second: Over the makespan.
        requests_per_second: Over the makespan.
        running: Requests under way.
        first_token_seconds: From arrival to the first token (TTFT).
        per_token_seconds: From the first token to the last, per token after the first (TPOT).
        between_tokens_seconds: From one arrival of tokens to the next.
        latency_seconds: From arrival to the last token.
        lag_seconds: From arrival to sending: how late the load itself was.
        goodput: Requests that met the SLO; None where none was given.
    """

    about: dict[str, Any]
    mode: str
    concurrency: int | None
    trace: str
    requests: int
    partial: bool
    submitted: int
    finished: int
    failed: int
    unfinished: int
    errors: tuple[Failures, ...]
    shorter: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    token_counts: str
    makespan_seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    running: Level
    first_token_seconds: Distribution | None
    per_token_seconds: Distribution | None
    between_tokens_seconds: Distribution | None
    latency_seconds: Distribution | None
    lag_seconds: Distribution | None
    goodput: Goodput | None

    def to_dict(self) -> dict[str, Any]:
        """The same keys, nested, as plain values; those of ``about`` stand beside them.

        Of a server nobody knows which way it computes the model: ``paths`` is None.
        """
        values = asdict(self)
        return {"paths": None, **values.pop("about"), "timing": "measured", **values}


def summarise(
    sent: Sent,
    about: dict[str, Any],
    *,
    trace: str,
    requests: int,
    concurrency: int | None = None,
    slo: SLO | None = None,
) -> LoadResult:
    """Sum a load up.

    Args:
        sent: What came of it.
        about: What was asked and how.
        trace: The traffic's name.
        requests: How many requests it has.
        concurrency: Senders of a closed loop.
        slo: What requests should meet.
    """
    records = sent.records
    ended = [record for record in records if record.ended is not None]
    done = [record for record in ended if record.error is None]
    failed = [record for record in ended if record.error is not None]
    timed = [record.timed() for record in done]
    makespan = max((record.ended or 0.0 for record in ended), default=0.0)
    tokens = sum(record.output_tokens for record in done)
    return LoadResult(
        about=about,
        mode="open" if concurrency is None else "closed",
        concurrency=concurrency,
        trace=trace,
        requests=requests,
        partial=len(ended) < requests,
        submitted=len(records),
        finished=len(done),
        failed=len(failed),
        unfinished=len(records) - len(ended),
        errors=_failures(failed),
        shorter=sum(record.output_tokens < record.request.output_tokens for record in done),
        prompt_tokens=sum(_prompt_tokens(record) for record in done),
        output_tokens=tokens,
        cached_tokens=_cached(done),
        token_counts=_counted(done),
        makespan_seconds=makespan,
        output_tokens_per_second=ratio(tokens, makespan),
        requests_per_second=ratio(len(done), makespan),
        running=under_way(records, sent.seconds),
        first_token_seconds=Distribution.of([one.first_token_seconds for one in timed]),
        per_token_seconds=Distribution.of(
            [span for span in (one.per_token_seconds for one in timed) if span is not None]
        ),
        between_tokens_seconds=Distribution.of([gap for one in done for gap in one.gaps]),
        latency_seconds=Distribution.of([one.latency_seconds for one in timed]),
        lag_seconds=Distribution.of([one.sent - one.arrival for one in records]),
        goodput=Goodput.of(slo, [one.timed() for one in ended], makespan) if slo else None,
    )


def _failures(failed: Sequence[LoadRecord]) -> tuple[Failures, ...]:
    counts = Counter(str(record.error) for record in failed)
    reasons = {str(one.error): str(one.reason) for one in reversed(failed)}
    return tuple(Failures(kind, n, reasons[kind]) for kind, n in counts.most_common())


def under_way(records: Sequence[LoadRecord], end: float) -> Level:
    """How many requests were under way at once, at most and on average from 0 to ``end``."""
    changes = [
        change
        for record in records
        for change in ((record.sent, 1), (end if record.ended is None else record.ended, -1))
    ]
    level = peak = 0
    area = before = 0.0
    for moment, by in sorted(changes):  # at one moment, whoever ends goes first
        area += level * (moment - before)
        before = moment
        level += by
        peak = max(peak, level)
    return Level(peak, ratio(area, before))


def _prompt_tokens(record: LoadRecord) -> int:
    return record.usage.prompt_tokens if record.usage else record.request.prompt_tokens


def _cached(done: Sequence[LoadRecord]) -> int | None:
    said = [one.usage.cached_tokens for one in done if one.usage]
    known = [tokens for tokens in said if tokens is not None]
    return sum(known) if known else None


def _counted(done: Sequence[LoadRecord]) -> str:
    kinds = {"pieces" if record.usage is None else "usage" for record in done}
    return "mixed" if len(kinds) > 1 else next(iter(kinds), "usage")
