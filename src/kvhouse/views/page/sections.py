"""The parts of a page that are there without its script: what it says in words and tables."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer.curves import TIMES
from kvhouse.replayer.results import Distribution
from kvhouse.units import seconds_text
from kvhouse.views.page.texts import Texts
from kvhouse.views.picture import Drive, Picture, percentile, size_text

_NOTHING = "–"


def headline(picture: Picture, texts: Texts) -> str:
    """What was driven, and which of its figures are what."""
    result = picture.drives[0].result
    timing = picture.timing
    trace, model, device = picture.names
    known = f"timing_{timing}" if timing in ("modelled", "measured") else "timing_other"
    lines = [
        texts.say(
            "subject",
            requests=f"{result.submitted:,}",
            trace=trace,
            model=model,
            device=device,
        ),
        texts.say(
            "pool" if result.pool.blocks else "pool_states",
            pool=size_text(result.pool.bytes),
            blocks=f"{result.pool.blocks:,}",
            tokens=f"{result.pool.block_size:,}",
            format=picture.layout.format.name,
        ),
    ]
    return (
        f"<h1>{escape(texts.say('heading'))}</h1>\n"
        f"<p>{escape(' '.join(lines))}</p>\n"
        f'<p class="note">{escape(texts.say(known, timing=timing))}</p>'
    )


def drive_section(drive: Drive, number: int, texts: Texts) -> str:
    """One drive: its headline in numbers and words, and where its two pictures go."""
    name = escape(drive.name)
    mean = drive.result.ledger.mean_bytes
    means = ", ".join(f"{texts.classes[kind]} {size_text(mean[kind])}" for kind in LEDGER_CLASSES)
    return f"""<section class="drive" aria-labelledby="drive-{number}">
<h2 id="drive-{number}">{name}</h2>
<dl class="facts">{"".join(_fact(*fact) for fact in _facts(drive, texts))}</dl>
<p>{escape(_summary(drive, texts))}</p>
<figure>
{_map_figure(drive, number, texts)}
</figure>
<figure>
<figcaption><h3>{escape(texts.say("ledger_heading"))}</h3></figcaption>
<div class="plot ledger" role="img" data-drive="{number}"
 aria-label="{escape(texts.say("ledger_alt", name=drive.name, means=means))}"></div>
<ul class="legend"></ul>
</figure>
</section>
"""


def _map_figure(drive: Drive, number: int, texts: Texts) -> str:
    rows, blocks = len(drive.recording.pool.blocks), drive.result.pool.blocks
    note = "map_none" if not rows else "map_note" if rows == blocks else "map_note_sampled"
    text = texts.say(note, rows=f"{rows:,}", blocks=f"{blocks:,}")
    caption = (
        f"<figcaption><h3>{escape(texts.say('map_heading'))}</h3>\n"
        f"<p>{escape(text)}</p></figcaption>"
    )
    if not rows:
        return caption
    peak = f"{drive.result.running.peak:,}"
    label = escape(texts.say("map_alt", name=drive.name, peak=peak))
    return (
        f'{caption}\n<div class="plot map" role="img" data-drive="{number}"\n'
        f' aria-label="{label}"></div>\n<ul class="legend"></ul>'
    )


def _facts(drive: Drive, texts: Texts) -> list[tuple[str, str, str]]:
    """A name, a value and what it stands beside, for each number of a headline."""
    result, timing = drive.result, texts.timing(drive.result.timing)
    first = result.first_token_seconds
    both = _pair(_seconds(first, "p50"), _seconds(first, "p99"))
    return [
        (
            texts.say("at_once"),
            f"{result.running.peak:,}",
            texts.say("at_once_detail", mean=f"{result.running.mean:,.1f}"),
        ),
        (
            texts.say("in_use"),
            size_text(drive.used_bytes),
            texts.say("in_use_detail", held=size_text(drive.held_bytes)),
        ),
        (texts.say("ttft", timing=timing), both, texts.say("ttft_detail")),
        (
            texts.say("rate", timing=timing),
            f"{result.output_tokens_per_second:,.0f}",
            texts.say(
                "rate_detail",
                finished=f"{result.finished:,}",
                makespan=seconds_text(result.makespan_seconds),
            ),
        ),
    ]


def _pair(one: str, other: str) -> str:
    """Two times, the unit said once where it is the same."""
    value, _, unit = one.partition(" ")
    return f"{value if other.endswith(f' {unit}') else one} / {other}"


def _fact(name: str, value: str, detail: str) -> str:
    return (
        f'<div><dt>{escape(name)}</dt><dd class="value">{escape(value)}</dd>'
        f"<dd>{escape(detail)}</dd></div>"
    )


def _summary(drive: Drive, texts: Texts) -> str:
    wasted = drive.held_bytes - drive.used_bytes
    text = texts.say(
        "summary",
        pool=size_text(drive.result.pool.bytes),
        idle=size_text(drive.idle_bytes),
        wasted=size_text(wasted),
        free=size_text(drive.idle_bytes - wasted),
    )
    if drive.result.rejections:
        text += " " + texts.say("rejected", count=f"{len(drive.result.rejections):,}")
    return text


def figures_table(picture: Picture, texts: Texts) -> str:
    """Every figure of a page in a table, a column for each drive."""
    drives = picture.drives
    heads = "".join(f'<th scope="col">{escape(drive.name)}</th>' for drive in drives)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(value(drive))}</td>" for drive in drives)
        + "</tr>"
        for name, value in _rows(picture, texts)
    )
    corner = escape(texts.say("figure"))
    return (
        f'<table>\n<thead><tr><th scope="col">{corner}</th>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>"
    )


def _rows(picture: Picture, texts: Texts) -> list[tuple[str, Callable[[Drive], str]]]:
    timing = texts.timing(picture.timing)
    rows: list[tuple[str, Callable[[Drive], str]]] = [
        (texts.say("row_finished"), lambda d: f"{d.result.finished:,}"),
        *_goodput(picture, texts),
        (texts.say("row_rejected"), lambda d: f"{len(d.result.rejections):,}"),
        (texts.say("row_pool"), lambda d: size_text(d.result.pool.bytes)),
        *((texts.classes[kind], _mean_bytes(kind)) for kind in LEDGER_CLASSES),
        (texts.say("row_peak"), lambda d: f"{d.result.running.peak:,}"),
        (texts.say("row_mean"), lambda d: f"{d.result.running.mean:,.1f}"),
        (texts.say("row_waiting"), lambda d: f"{d.result.waiting.mean:,.1f}"),
        (texts.say("row_preemptions"), lambda d: f"{d.result.preemptions:,}"),
    ]
    rows += [
        (texts.say(f"row_{time}", percentile=name, timing=timing), _time(time, name))
        for time in TIMES
        for name in ("p50", "p90", "p99")
    ]
    return [
        *rows,
        (
            texts.say("row_rate", timing=timing),
            lambda d: f"{d.result.output_tokens_per_second:,.1f}",
        ),
        (
            texts.say("row_makespan", timing=timing),
            lambda d: seconds_text(d.result.makespan_seconds),
        ),
    ]


def _goodput(picture: Picture, texts: Texts) -> list[tuple[str, Callable[[Drive], str]]]:
    """How many requests met the SLO, where one was given."""

    def met(drive: Drive) -> str:
        good = drive.result.goodput
        return f"{good.requests:,} ({good.share:.1%})" if good else _NOTHING

    def rate(drive: Drive) -> str:
        good = drive.result.goodput
        return f"{good.requests_per_second:,.3g}" if good else _NOTHING

    if not any(drive.result.goodput for drive in picture.drives):
        return []
    timing = texts.timing(picture.timing)
    return [
        (texts.say("row_in_time", timing=timing), met),
        (texts.say("row_goodput", timing=timing), rate),
    ]


def _mean_bytes(kind: str) -> Callable[[Drive], str]:
    def cell(drive: Drive) -> str:
        share = drive.result.ledger.mean_share[kind]
        return f"{size_text(drive.result.ledger.mean_bytes[kind])} ({share:.1%})"

    return cell


def _time(time: str, name: str) -> Callable[[Drive], str]:
    return lambda drive: _seconds(getattr(drive.result, time), name)


def _seconds(distribution: Distribution | None, name: str) -> str:
    value = percentile(distribution, name)
    return _NOTHING if value is None else seconds_text(value)
