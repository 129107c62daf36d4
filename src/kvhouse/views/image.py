"""The picture of drives as an image or a drawing, by matplotlib."""

from __future__ import annotations

import math
import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.errors import KvhouseError
from kvhouse.replayer.curves import Curve
from kvhouse.units import GIB, MIB, seconds_text
from kvhouse.views.map_pixels import map_pixels
from kvhouse.views.page.texts import Texts, texts_of
from kvhouse.views.palette import LIGHT, LINES
from kvhouse.views.picture import Drive, Picture, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_DPI = 100
#: Fonts that have the characters of a language beyond those of matplotlib's own, the first that is
#: installed counts.
FONTS = {
    "zh": (
        "Noto Sans CJK SC",
        "Noto Sans SC",
        "Source Han Sans SC",
        "Source Han Sans CN",
        "WenQuanYi Micro Hei",
        "WenQuanYi Zen Hei",
        "PingFang SC",
        "Hiragino Sans GB",
        "Heiti SC",
        "STHeiti",
        "Microsoft YaHei",
        "SimHei",
        "Arial Unicode MS",
        "Droid Sans Fallback",
    )
}
_DASHES = ("-", "--", ":", "-.", "--", ":")
_INK, _SOFT = LIGHT["ink"], LIGHT["soft"]
_STYLE: Any = {
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": LIGHT["line"],
    "axes.labelcolor": _SOFT,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "svg.hashsalt": "kvhouse",  # the same ids for the same picture
}


def require_matplotlib() -> None:
    """Make sure that images can be drawn.

    Raises:
        KvhouseError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise KvhouseError(
            "images are drawn by matplotlib, which is not installed: pip install 'kvhouse[plots]'"
        ) from None


def fonts_of(language: str) -> list[str]:
    """The fonts that an image in a language is labelled with.

    Raises:
        KvhouseError: None that has its characters is installed.
    """
    import matplotlib as mpl
    from matplotlib.font_manager import fontManager

    usual = list(mpl.rcParams["font.sans-serif"])
    if language not in FONTS:
        return usual
    installed = set(fontManager.get_font_names())
    found = next((name for name in FONTS[language] if name in installed), None)
    if found is None:
        raise KvhouseError(
            f"--lang {language}: no font with its characters is installed for an image: install "
            f"{FONTS[language][0]}, or leave --lang out; --html needs no font"
        )
    return [found, *usual]


def image(picture: Picture, kind: str, language: str = "en") -> bytes:
    """A picture as a file's content.

    Args:
        picture: What it shows.
        kind: ``png`` or ``svg``.
        language: What it is labelled in.

    Raises:
        KvhouseError: matplotlib is not installed, or no font with the language's characters.
    """
    require_matplotlib()
    texts, fonts = texts_of(language), {"font.sans-serif": fonts_of(language)}
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(2, len(picture.drives))
    lines = -(-len(picture.drives) // columns)
    with mpl.rc_context(_STYLE | fonts), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a name, shown as boxes
        figure = Figure(
            figsize=((10.0, 13.0)[columns - 1], 5.7 * lines + 3.2), layout="constrained"
        )
        heights = [5.7] * lines + [2.5]
        *places, bottom = figure.subfigures(lines + 1, 1, height_ratios=heights, squeeze=False).flat
        for line, place in enumerate(places):
            shown = picture.drives[columns * line : columns * (line + 1)]
            beside = place.subfigures(1, columns, squeeze=False).flat
            for drive, part in zip(shown, beside, strict=False):
                _draw_drive(part, drive, picture, texts)
        _draw_times(bottom, picture, texts)
        figure.suptitle(_title(picture, texts), x=0.01, ha="left", fontsize=11)
        content = BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(content, format=kind, dpi=_DPI, metadata=metadata)
    return content.getvalue() if kind == "svg" else _with_a_palette(content)


def _with_a_palette(content: BytesIO) -> bytes:
    """The same image in 256 colours, which takes a third of the bytes."""
    from PIL import Image

    small = BytesIO()
    with Image.open(content) as whole:
        whole.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png")
    return small.getvalue()


def _title(picture: Picture, texts: Texts) -> str:
    result = picture.drives[0].result
    # A dollar sign in a name would begin a formula.
    trace, model, device = (name.replace("$", r"\$") for name in picture.names)
    return texts.image["title"].format(
        requests=f"{result.submitted:,}",
        trace=trace,
        model=model,
        device=device,
        pool=size_text(result.pool.bytes),
        timing=texts.timing(picture.timing),
    )


def _draw_drive(part: SubFigure, drive: Drive, picture: Picture, texts: Texts) -> None:
    """One drive: its headline, its memory map and its ledger."""
    result, first = drive.result, drive.result.first_token_seconds
    ttft = f"{seconds_text(first.p50)} / {seconds_text(first.p99)}" if first else "–"
    timing = texts.timing(result.timing)
    part.suptitle(
        texts.image["drive"].format(
            name=drive.name,
            peak=f"{result.running.peak:,}",
            used=size_text(drive.used_bytes),
            held=size_text(drive.held_bytes),
            ttft=ttft,
            rate=f"{result.output_tokens_per_second:,.0f}",
            timing=timing,
        ),
        x=0.01,
        ha="left",
        fontsize=10,
    )
    top, below = part.subplots(2, 1, sharex=True, height_ratios=[4, 2.3])
    blocks, rows = result.pool.blocks, len(drive.recording.pool.blocks)
    title = "map_none" if not rows else "map" if rows == blocks else "map_sampled"
    top.set_title(texts.image[title].format(rows=f"{rows:,}", blocks=f"{blocks:,}"))
    top.set_ylabel(texts.image["block"])
    end = result.makespan_seconds
    pixels = map_pixels(drive.recording.pool, end)
    top.imshow(pixels, extent=(0, end or 1, blocks or 1, 0), aspect="auto", interpolation="nearest")
    if end < 0.9 * picture.end:
        done = texts.image["all_done"].format(time=seconds_text(end))
        top.text(end, blocks / 2, f"  {done}", in_layout=False)
    _draw_ledger(below, drive, texts)
    _count_in_whole(top)
    if not rows:
        top.set_yticks([])
    below.set_xlim(0, picture.end or 1)
    below.set_xlabel(texts.image["time"].format(timing=timing))


def _draw_ledger(axes: Axes, drive: Drive, texts: Texts) -> None:
    timeline, names = drive.recording.timeline, texts.classes
    shown = [name for name in LEDGER_CLASSES if any(timeline.ledger[name])]
    edges = np.arange(len(timeline.running) + 1) * timeline.bin_seconds
    below = np.zeros(len(edges))
    size = drive.result.pool.bytes
    unit, unit_name = (GIB, "GiB") if size >= GIB else (MIB, "MiB")
    for name in shown:
        values = np.array(timeline.ledger[name]) / unit
        above = below + np.append(values, values[-1:])
        label, colour = names[name], LIGHT[name]
        axes.fill_between(edges, below, above, step="post", color=colour, lw=0, label=label)
        below = above
    axes.set_ylabel(unit_name)
    axes.set_ylim(0, size / unit)
    axes.set_title(texts.image["ledger"])
    if shown:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.3), ncols=3, fontsize=8, frameon=False)


def _draw_times(part: SubFigure, picture: Picture, texts: Texts) -> None:
    """The distributions of the requests' times, and how many ran and waited."""
    names = {
        "first_token_seconds": "TTFT",
        "per_token_seconds": "TPOT",
        "latency_seconds": texts.image["latency"],
    }
    counts = {name: texts.image[name] for name in ("running", "waiting")}
    timing = texts.timing(picture.timing)
    places = part.subplots(1, len(names) + len(counts))
    charts, others = places[: len(names)], places[len(names) :]
    for axes, (name, title) in zip(charts, names.items(), strict=True):
        axes.set_title(texts.image["seconds"].format(name=title, timing=timing))
        axes.set_ylabel(texts.image["within"] if name == "first_token_seconds" else "")
        _show_seconds(axes, [drive.recording.curves[name] for drive in picture.drives])
        for place, drive in enumerate(picture.drives):
            values = drive.recording.curves[name].quantiles
            axes.plot(values, np.linspace(0, 100, len(values)), **_line(place), label=drive.name)
        axes.set_ylim(0, 105)
    for axes, (name, title) in zip(others, counts.items(), strict=True):
        axes.set_title(title)
        axes.set_xlabel(texts.image["time"].format(timing=timing))
        for place, drive in enumerate(picture.drives):
            timeline = drive.recording.timeline
            middles = (np.arange(len(timeline.running)) + 0.5) * timeline.bin_seconds
            axes.plot(middles, getattr(timeline, name), **_line(place))
        most = max(max(getattr(d.recording.timeline, name), default=0) for d in picture.drives)
        axes.set_ylim(0, 1.05 * max(1, most))
        _count_in_whole(axes)
    for axes in places:
        axes.grid(axis="y", color=LIGHT["line"], lw=0.6)
    if len(picture.drives) > 1:
        charts[0].legend(fontsize=8, frameon=False)


def _count_in_whole(axes: Axes) -> None:
    """Let no tick stand for a part of what is counted."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _show_seconds(axes: Axes, curves: list[Curve]) -> None:
    """A logarithmic axis with round times, more of them where there are few powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = [value for curve in curves for value in curve.quantiles if value > 0] or [1.0]
    decades = math.log10(max(values) / min(values))
    steps = (1.0,) if decades > 1.4 else (1.0, 3.0) if decades > 0.6 else (1.0, 2.0, 5.0)
    axes.set_xscale("log")
    axes.tick_params(axis="x", labelsize=7.5)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _line(place: int) -> dict[str, Any]:
    return {"color": LIGHT[f"line-{place % LINES}"], "ls": _DASHES[place % LINES], "lw": 1.6}
