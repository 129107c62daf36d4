"""Which remedy pays: the ranking, what each row rests on, and the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.padding import Padding

from kvhouse.replayer.remedies import Figures, Fitting, Limit, Report, Row
from kvhouse.replayer.remedies.limit import MARGIN, LimitName
from kvhouse.replayer.remedies.report import gain_text
from kvhouse.units import bytes_text, counted, seconds_text
from kvhouse.views.tables import table, visible

_MARKS = {"helps": "+", "no difference": "=", "worse": "-"}
_LIMITS: dict[LimitName, str] = {
    "arrivals": "arrivals are its limit",
    "memory": "memory is its limit",
    "max-running": "--max-running is its limit",
    "length": "the maximum length is its limit",
    "device": "the device's speed is its limit",
}
_ONLY_SOONER = (
    "Where a row with = has a gain, no more requests meet the SLO: only the last of the others is "
    "done sooner."
)


def show_remedies(console: Console, title: str, command: str, report: Report) -> None:
    """Print the base, the ranking, each row's flags and assumptions, and the verdict.

    Args:
        console: Where to.
        title: The traffic and the device in words.
        command: The command that replays the base.
        report: What was found.
    """
    console.print(table(_title(title, report), _columns(report), _rows(report)))
    if report.limit.name == "arrivals":
        _show_text(console, "Gains say how much sooner the last request is done, no more.", ())
    elif any(row.effect == "no difference" and (row.gain or 0) > MARGIN for row in report.rows):
        _show_text(console, _ONLY_SOONER, ())
    _show_text(console, "Each row is the base's command with its flags behind it:", ())
    _show_line(console, f"  {command}")
    evidence = [*report.limit.evidence, *_times(report.base)]
    _show_text(console, f"The base ({_limit(report.limit)}):", evidence)
    for row in report.rows:
        _show_line(console, f"{row.name}: {', '.join(row.flags)}")
        _show_text(console, None, _rests_on(row))
    for one in report.excluded:
        _show_text(console, f"Not tried: {one.name}: {one.reason}", ())
    _show_text(console, _pairs(report), ())
    for text in report.compared:
        _show_text(console, text, ())
    _show_verdict(console, report.verdict)


def show_fitting(console: Console, title: str, command: str, report: Fitting) -> None:
    """Print what makes a model fit, what each row rests on, and the verdict."""
    rows = [(row.name, *_figures(row.figures, None)) for row in report.rows]
    if rows:
        columns = _columns(report)
        ranked = f"ranked by goodput a device ({_goodput(report)}); times modelled"
        head = f"{_marked(title, report)}: {ranked}"
        shown = [(*row[:2], *row[3:]) for row in rows]  # there is no base to gain over
        console.print(table(head, (*columns[:2], *columns[3:]), shown))
        _show_text(console, "Each row is this command with its flags behind it:", ())
        _show_line(console, f"  {command}")
    for row in report.rows:
        _show_line(console, f"{row.name}: {row.flags}")
        lines = [
            f"{bytes_text(row.kv_bytes)} for keys and values on each device",
            f"accuracy: {row.accuracy}",
            *([f"assumes: {row.assumption}"] if row.assumption else []),
            *([f"needs: {row.needs}"] if row.needs else []),
        ]
        _show_text(console, None, lines)
    for one in report.excluded:
        _show_text(console, f"Not enough: {one.name}: {one.reason}", ())
    _show_verdict(console, report.verdict)


def _limit(limit: Limit) -> str:
    if limit.beyond is None:
        return _LIMITS[limit.name]
    then = _LIMITS[limit.beyond].removesuffix(" its limit")
    return f"{_LIMITS[limit.name]}; with enough of it, {then}"


def _goodput(report: Report | Fitting) -> str:
    return "requests/s that meet the SLO" if report.slo else "requests/s that finish"


def _marked(title: str, report: Report | Fitting) -> str:
    """The title, and whether Ctrl-C cut short what stands below it."""
    if not report.partial:
        return title
    return f"PARTIAL, ended after {counted(report.replays, 'replay')}: {title}"


def _title(title: str, report: Report) -> str:
    return (
        f"{_marked(title, report)}: ranked by goodput a device ({_goodput(report)}), then by "
        "requests in memory; times modelled; + helps, = no difference beyond 1 %, - makes it worse"
    )


def _columns(report: Report | Fitting) -> tuple[str, ...]:
    in_time = "meet\nSLO" if report.slo else "served"
    return ("", "goodput", "gain", "a\ndevice", in_time, "in\nmemory", "tokens/s")


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    yield ("  the base", *_figures(report.base, None))
    for row in report.rows:
        yield (f"{_MARKS[row.effect]} {row.name}", *_figures(row.figures, row.gain))
    if report.limit.unbounded:
        yield ("  (enough memory)", *_figures(report.limit.unbounded, None))


def _figures(figures: Figures, gain: float | None) -> tuple[str, ...]:
    return (
        f"{figures.goodput_per_second:,.4g}",
        "" if gain is None else gain_text(gain),
        f"{figures.goodput_per_device:,.4g}",
        f"{figures.in_time_share:.1%}",
        f"{figures.in_memory_peak:,}",
        f"{figures.output_tokens_per_second:,.0f}",
    )


def _rests_on(row: Row) -> Iterator[str]:
    if row.pair:
        yield "rests on what its parts rest on"
    else:
        yield f"accuracy: {row.accuracy}"
        yield f"assumes: {row.assumption}"
        if row.needs:
            yield f"needs: {row.needs}"
    if row.figures.devices > 1:
        yield f"{row.figures.devices} devices"
    yield from _times(row.figures)
    if row.measured:
        yield f"measured: {'; '.join(row.measured)}"


def _times(figures: Figures) -> Iterator[str]:
    """Mean times of its requests, where any finished."""
    first, each = figures.first_token_seconds, figures.per_token_seconds
    times = [
        *([] if first is None else [f"first token after {seconds_text(first)}"]),
        *([] if each is None else [f"{seconds_text(each)} per token after it"]),
    ]
    if times:
        yield f"{', '.join(times)}, on average (modelled)"


def _pairs(report: Report) -> str:
    tried = f"{counted(report.replays, 'replay')}, {counted(report.pairs_tried, 'pair')} among them"
    left = f"; {counted(report.pairs_left, 'more pair')} left out" if report.pairs_left else ""
    best = f"; the best pair is {report.best_pair}" if report.best_pair else ""
    return f"{tried}{left}{best}."


def _show_line(console: Console, text: str) -> None:
    """A line to copy, which only the terminal may break."""
    console.print(visible(text), highlight=False, markup=False, soft_wrap=True)


def _show_text(console: Console, head: str | None, lines: Iterable[str]) -> None:
    if head is not None:
        console.print(head, highlight=False, markup=False)
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2)), highlight=False, markup=False)


def _show_verdict(console: Console, verdict: str) -> None:
    """The answer, a line for each sentence."""
    for sentence in re.split(r"(?<=\.) (?=[A-Z])", verdict):
        console.print(sentence, style="bold", highlight=False, markup=False)
