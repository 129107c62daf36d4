"""A page in a real Chromium: it opens from disk, asks for nothing, and draws what it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvhouse import devices, spec
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.replayer import Setup, read_trace
from kvhouse.replayer.compare import compare, variants
from kvhouse.views.page import page
from kvhouse.views.palette import DARK, LIGHT
from kvhouse.views.picture import Drive, Picture

#: 20,000 requests in an hour, about as long as those of a chat.
MANY = "poisson:rate=5.5,prompt=lognormal(1000,0.8),output=lognormal(200,0.8),requests=20000,seed=1"
FEW = "backlog:prompt=450,output=100,requests=60"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


def picture_of(trace, policies, **options):
    setup = Setup(read_trace(trace), spec.load("llama-2-7b"), devices.get("a100-80g"), **options)
    setups = variants(setup, policies)
    recorders = [one.recorder() for one in setups]
    results = compare(setups, recorders=recorders)
    drives = [Drive(*pair) for pair in zip(results, (r.recording for r in recorders), strict=True)]
    return Picture(trace, "llama-2-7b", "a100-80g", setup.layout, drives)


@pytest.fixture(scope="module")
def few():
    """The case of 24 GiB: 2 GiB reserved for each request, of which 500 tokens are used."""
    return picture_of(
        FEW,
        ["contiguous-max", "paged"],
        kv_memory=24 * 2**30,
        max_length=4096,
        as_backlog=True,
    )


@pytest.fixture(scope="module")
def many():
    return picture_of(
        MANY, ["contiguous-max", "paged"], kv_memory=24 * 2**30, max_length=4096
    )  # fmt: skip


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a page from disk, and afterwards sees that it asked for and complained of nothing."""
    said, asked, contexts = [], [], []

    def open_page(picture, viewport=DESKTOP, scheme="light", language="en", **options):
        file = tmp_path / "page.html"
        file.write_text(page(picture, language), encoding="utf-8")
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-drawn]", state="attached")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.endswith("/page.html")] == []


#: The colours of a memory map with how many pixels have each.
COLOURS = """canvas => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const counts = {};
  for (let at = 0; at < data.length; at += 4) {
    const name = data[at + 3] ? [data[at], data[at + 1], data[at + 2]].join() : "none";
    counts[name] = (counts[name] || 0) + 1;
  }
  return counts;
}"""


def hexadecimal(colour):
    return ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))


def maps_of(tab):
    return [canvas.evaluate(COLOURS) for canvas in tab.query_selector_all(".map .holder > canvas")]


@pytest.mark.parametrize(("scheme", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_the_map_shows_what_the_allocator_did(opened, few, scheme, colours):
    contiguous, paged = maps_of(opened(few, scheme=scheme))
    owners = [hexadecimal(colours[f"owner-{place}"]) for place in range(8)]
    for counts, drive in zip((contiguous, paged), few.drives, strict=True):
        assert all(counts.get(owner) for owner in owners)
        drawn = sum(counts.values()) - counts.get("none", 0)
        share = sum(counts[owner] for owner in owners) / drawn
        # Pixels in a request's full colour are as many as blocks with tokens in them.
        pool, end = drive.recording.pool, drive.result.makespan_seconds
        blocks = pool.counts[:, LEDGER_CLASSES.index("used")] / pool.counts.sum(axis=1)
        mean = np.average(blocks, weights=np.diff(pool.times, append=end))
        assert share == pytest.approx(mean, abs=0.02)
    # "Only about 3 GB is used" of 24 when 2 are reserved for each.
    used, pool = (few.drives[0].result.ledger.mean_bytes["used"], few.drives[0].result.pool.bytes)
    assert used / pool == pytest.approx(0.12, abs=0.01)
    # Paged ends sooner, on the same axis: beyond its end nothing is drawn.
    ends = [drive.result.makespan_seconds for drive in few.drives]
    assert paged["none"] / sum(paged.values()) == pytest.approx(1 - ends[1] / ends[0], abs=0.01)
    assert "none" not in contiguous


def test_the_stacked_areas_sum_to_the_pool(opened, few):
    tab = opened(few)
    sums = tab.evaluate(
        """() => data.drives.map((drive) => {
          const layers = stack(drive.ledger);
          return [...layers.at(-1).above].map((sum) => sum / drive.pool_bytes);
        })"""
    )
    for drive in sums:
        assert len(drive) == 400
        assert drive == pytest.approx([1.0] * 400)
    drawn = tab.query_selector_all(".ledger path.layer")
    present = sum(
        any(drive.recording.timeline.ledger[name])
        for drive in few.drives
        for name in LEDGER_CLASSES
    )
    assert len(drawn) == present


def test_twenty_thousand_requests_are_few_elements(opened, many):
    assert len(page(many)) < 3_000_000
    tab = opened(many)
    assert tab.evaluate("document.querySelectorAll('*').length") < 1500
    points = tab.evaluate(
        "[...document.querySelectorAll('path')].reduce((n, p) => n + p.getAttribute('d').length, 0)"
    )
    assert points < 300_000
    assert all(len(counts) >= 10 for counts in maps_of(tab))
    # A picture is drawn in a frame of its own, so that none waits for all.
    assert tab.evaluate("pictures.length") == 2 * 2 + 8


def test_a_pointer_over_a_map_is_answered(opened, few):
    tab = opened(few)
    canvas = tab.query_selector(".map .holder > canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 1.5)
    text = tab.inner_text("#tooltip")
    assert "block 18 at " in text
    assert "holds tokens" in text
    assert "450 prompt + 100 output tokens" in text
    assert "keeps 275 MiB in the end" in text  # 549 tokens of half a MiB each
    ledger = tab.query_selector(".ledger")
    ledger.scroll_into_view_if_needed()
    box = ledger.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    text = tab.inner_text("#tooltip")
    assert "held, never to be filled: 20." in text
    assert "pool: 24 GiB" in text
    tab.mouse.move(1, 1)
    assert tab.is_hidden("#tooltip")


def test_a_pointer_over_a_chart_is_answered_for_each_drive(opened, few):
    tab = opened(few)
    charts = tab.query_selector_all(".chart")
    names = [chart.get_attribute("aria-label") for chart in charts]
    margin = tab.evaluate("MARGIN")

    def said(beginning, share):
        """What is said of a chart at a share of its axis."""
        (chart,) = (one for one, name in zip(charts, names, strict=True) if beginning in name)
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        axis = box["width"] - margin["left"] - margin["right"]
        tab.mouse.move(box["x"] + margin["left"] + share * axis, box["y"] + box["height"] / 2)
        return tab.inner_text("#tooltip").splitlines()

    at, contiguous, paged = said("Requests in memory", 0.4)
    assert at.startswith("at ")
    assert contiguous == "contiguous-max: 12"
    assert paged.startswith("paged: ")
    # The last requests of the slower drive finish at the end of the axis, where the other is done.
    at, contiguous = said("Latency of those finished", 0.995)
    assert at.startswith("at ")
    assert contiguous.startswith("contiguous-max: p50 ")
    most, *shares = said("Latency: share", 0.99)
    assert most.startswith("\u2264 ")
    assert shares == ["contiguous-max: 100 %", "paged: 100 %"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_phone_s_width_is_enough(opened, few, language):
    tab = opened(few, viewport=PHONE, language=language, device_scale_factor=2)
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    outside = tab.evaluate(
        """[...document.querySelectorAll('main *')].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.right > 360.5 && !one.closest('.scroll');
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_a_window_that_changes_is_drawn_anew(opened, few):
    tab = opened(few)
    before = tab.eval_on_selector(".map .holder > canvas", "canvas => canvas.width")
    tab.set_viewport_size(PHONE)
    tab.wait_for_selector("html[data-drawn='2']", state="attached")
    assert tab.eval_on_selector(".map .holder > canvas", "canvas => canvas.width") < before
    assert tab.evaluate("document.querySelectorAll('.map .holder > canvas').length") == 2


def test_every_picture_has_a_name_and_the_table_has_the_figures(opened, few):
    tab = opened(few)
    names = tab.evaluate(
        "[...document.querySelectorAll('[role=img]')].map((one) => one.getAttribute('aria-label'))"
    )
    assert len(names) == 2 * 2 + 8
    assert all(names)
    table = tab.inner_text("table")
    contiguous, paged = (drive.result for drive in few.drives)
    assert f"requests in memory, peak\t{contiguous.running.peak}\t{paged.running.peak}" in table
    assert contiguous.running.peak == 12
    assert tab.evaluate("document.querySelectorAll('h1').length") == 1


def test_hostile_names_do_nothing(opened, few):
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    tab = opened(replace(few, trace=hostile, model=hostile, device=hostile))
    assert tab.inner_text("header p").count(hostile) == 3
    assert tab.evaluate("document.images.length") == 0
    assert tab.evaluate("document.scripts.length") == 2


TICKS = """(plot) => [...plot.querySelectorAll(".axes text[text-anchor=end]:not(.label)")]
  .filter((text) => text.hasAttribute("dy")).map((text) => text.textContent)"""


def test_a_tiny_pool_has_axes_that_tell_its_sizes_apart(opened):
    few_blocks = picture_of("backlog:prompt=5,output=2,requests=2", ["paged"], kv_blocks=2)
    tab = opened(few_blocks)
    assert tab.text_content(".ledger .axes .label >> nth=1") == "MiB"
    assert tab.eval_on_selector(".ledger", TICKS) == ["0", "5", "10", "15"]  # of 16 MiB
    assert sorted(tab.eval_on_selector(".map", TICKS)) == ["0", "1", "2"]
    for chart in tab.query_selector_all(".chart")[-2:]:
        assert all(tick.isdecimal() for tick in chart.evaluate(TICKS))
