"""What the doctor found, on a terminal."""

from __future__ import annotations

from fractions import Fraction

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from kvhouse.doctor import Report
from kvhouse.doctor.bar import Bar
from kvhouse.doctor.diagnoses.base import Diagnosis, Remedy
from kvhouse.doctor.report import looked_for
from kvhouse.doctor.texts import Texts
from kvhouse.units import bytes_text
from kvhouse.views.tables import table

_MOST_FACTS = 24
_WIDTH = 64
#: Whose figures have nothing to do with a model's sizes, or stand on kvhouse's own core.
_UNDERIVED = ("torch", "kvhouse")
_STYLES = {"error": "bold red", "warning": "yellow", "note": "green"}
#: Of the bar's parts, told apart by their characters where there are no colours.
_INK = {
    "others": ("x", "magenta"),
    "weights": ("█", "blue"),
    "activations": ("▓", "cyan"),
    "graphs": ("▒", "cyan"),
    "non_torch": ("░", "magenta"),
    "other_torch": ("▓", "blue"),
    "kv_used": ("■", "green"),
    "kv_reserved": ("□", "green"),
    "states": ("◆", "green"),
    "reserved_idle": ("▚", "red"),
    "unused": ("-", "white"),
    "free": ("·", "white"),
}


def show_report(console: Console, report: Report, texts: Texts) -> None:
    """Print the diagnoses first, then the memory, the figures and the facts."""
    if not report.found:
        _show_nothing(console, report, texts)
        return
    _show_head(console, report, texts)
    for one in report.diagnoses:
        _show_diagnosis(console, one, texts)
    if report.bar is not None:
        _show_bar(console, report.bar, texts)
    _show_derived(console, report, texts)
    _show_facts(console, report, texts)


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(escape(text), style=style, highlight=False, soft_wrap=True)


def _show_nothing(console: Console, report: Report, texts: Texts) -> None:
    _print(console, texts.say("nothing", lines=_lines(report, texts)), "bold")
    engines = dict.fromkeys(each["engine"].removesuffix("-v0") for each in looked_for())
    _print(console, texts.say("looked_for", engines=", ".join(engines)))


def _lines(report: Report, texts: Texts) -> str:
    """How many lines were read, in words."""
    count = report.log.lines
    return texts.say("line_one" if count == 1 else "line_count", count=f"{count:,}")


def _show_head(console: Console, report: Report, texts: Texts) -> None:
    log = report.log
    version = log.facts.word("engine_version") or ""
    head = texts.say("engine", engine=log.engine, version=version, lines=_lines(report, texts))
    _print(console, head.replace(" ,", ",").replace(" ，", "，"), "bold")
    if log.runs > 1:
        _print(console, texts.say("runs", runs=log.runs))
    if report.origin:
        _print(console, texts.say(f"model_{report.origin}", model=report.model))
    elif log.engine not in _UNDERIVED:
        _print(console, texts.say("model_unknown"))
    if len(log.workers) > 1:
        names = ", ".join(log.workers[:8]) + (", …" if len(log.workers) > 8 else "")
        _print(console, texts.say("workers", count=len(log.workers), names=names))


def _show_diagnosis(console: Console, one: Diagnosis, texts: Texts) -> None:
    console.print()
    style = _STYLES[one.severity]
    severity = texts.say(one.severity)
    _print(console, f"{texts.title(one)} ({severity})", style)
    lines = sorted({fact.line for fact in one.evidence})
    name = "shown_by_one" if len(lines) == 1 else "shown_by"
    shown = texts.say(name, lines=", ".join(map(str, lines[:8]))) if lines else ""
    _print(console, texts.reason(one) + (f" [{shown}]" if shown else ""))
    for remedy in one.remedies:
        _show_remedy(console, remedy, texts)


def _show_remedy(console: Console, remedy: Remedy, texts: Texts) -> None:
    notes = [texts.say(f"risk_{remedy.risk}")]
    before, after = remedy.before, remedy.after
    if before is not None and after is not None:
        name = "gains" if after > before else "gains_none"
        notes.insert(0, texts.say(name, before=_requests(before), after=_requests(after)))
    console.print(Text.assemble("  → ", (remedy.flag, "bold")), soft_wrap=True)
    _print(console, f"    {texts.remedy(remedy)} ({'; '.join(notes)})")


def _requests(count: Fraction) -> str:
    return f"{float(count):,.2f}" if count < 10 else f"{float(count):,.1f}"


def _show_bar(console: Console, bar: Bar, texts: Texts) -> None:
    """One bar: every part has its width, and its size beneath."""
    whole = max(bar.total or 0, sum(size for _, size in bar.parts))
    console.print()
    title = texts.say("device", device=bar.device) if bar.device else texts.say("memory")
    total = f" ({texts.say('total', total=bytes_text(bar.total))})" if bar.total else ""
    _print(console, title + total, "bold")
    line = Text()
    for name, size in bar.parts:
        ink, colour = _INK[name]
        line.append(ink * max(1, round(_WIDTH * size / whole)), colour)
    console.print(line)
    legend = Text()
    for name, size in bar.parts:
        ink, colour = _INK[name]
        legend.append(f"{ink} ", colour).append(f"{texts.parts[name]} {bytes_text(size)}   ")
    console.print(legend)


def _show_derived(console: Console, report: Report, texts: Texts) -> None:
    derived = report.derived
    console.print()
    if not derived.checks:
        if derived.reason:
            _print(console, texts.say("underived", reason=derived.reason))
        return
    columns = tuple(texts.words[name] for name in ("figure", "printed", "ours", "verdict"))
    rows = [
        (
            check.name,
            escape(check.printed),
            escape(check.ours),
            texts.say("agrees" if check.agrees else "differs"),
        )
        for check in derived.checks
    ]
    console.print(table(texts.say("derived"), columns, rows))
    if derived.fits:
        _print(console, texts.say("assumed", assumed=", ".join(derived.fits)))
    if derived.rule:
        _print(console, texts.rules[derived.rule])


def _show_facts(console: Console, report: Report, texts: Texts) -> None:
    _show_series(console, report, texts)
    said = list({(fact.line, fact.worker, fact.text): fact for fact in report.facts}.values())
    if not said:
        return
    columns = tuple(texts.words[name] for name in ("line", "worker", "says"))
    rows = [(f"{f.line:,}", escape(f.worker), escape(f.text)) for f in said[:_MOST_FACTS]]
    console.print(table(texts.say("facts"), columns, rows))
    if len(said) > _MOST_FACTS:
        _print(console, texts.say("more_facts", count=len(said) - _MOST_FACTS))


def _show_series(console: Console, report: Report, texts: Texts) -> None:
    """Figures that are printed again and again; of a single scrape, each as it is."""
    series = list(report.log.facts.series.values())
    if not series:
        return
    title, names = "series", ["figure", "times", "least", "mean", "most", "last"]
    rows: list[tuple[str, ...]] = [
        (
            each.peak.name,
            f"{each.count:,}",
            *map(_plain, (each.least, each.mean, each.most, each.last)),
        )
        for each in series
    ]
    if report.log.source == "metrics" and all(each.count == 1 for each in series):
        title, names = "series_once", ["figure", "value"]
        rows = [(each.peak.name, _plain(each.last)) for each in series]
    console.print(table(texts.say(title), [texts.words[name] for name in names], rows))


def _plain(value: float) -> str:
    return f"{value:,.6g}"
