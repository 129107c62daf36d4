"""The live page in a real Chromium: it shows what a pool holds, and asks for that alone."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.views.live import live_page
from kvhouse.views.palette import DARK, LIGHT

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
BLOCK = 2**20
KEY = "the-key"


def state(step, runs, requests):
    """What ``/kv`` gives of a pool of 100 blocks; ``runs``: cells, class and request."""
    counts = dict.fromkeys(LEDGER_CLASSES, 0)
    cells, first = [], 0
    for count, name, request in runs:
        counts[name] += count
        cells.append({"first": first, "count": count, "class": name, "request": request})
        first += count
    ledger = {name: count * BLOCK for name, count in counts.items()}
    totals = {
        "steps": step, "generated_tokens": 10 * step, "computed_tokens": 20 * step,
        "admitted_tokens": 64, "found_tokens": 16, "preemptions": 3, "seconds": 0.1 * step,
        "decode_seconds": 0.1 * step, "decode_bytes": 10**9 * step,
    }  # fmt: skip
    return {
        "model": "<b>model</b>",
        "seconds": 0.5 * step,
        "pool": {
            "policy": "paged", "kv_format": "fp32", "block_tokens": 16, "block_bytes": BLOCK,
            "blocks": 100, "bytes": 100 * BLOCK, "max_length": 512, "max_running": 8,
            "prefix_cache": True,
        },
        "ledger": {"total": 100 * BLOCK, **ledger, "saved": 0},
        "blocks": counts,
        "running": len(requests),
        "waiting": 0,
        "totals": totals,
        "requests": [
            {
                "id": request, "state": "running", "prompt_tokens": 100, "generated_tokens": 7,
                "max_new_tokens": 50, "computed_tokens": 106, "found_tokens": 0,
                "preemptions": 0, "blocks": 20,
            }
            for request in requests
        ],
        "cells": 100,
        "map": cells,
    }  # fmt: skip


FULL = [
    (30, "used", 1),
    (20, "used", 2),
    (5, "internal", 2),
    (10, "cached", None),
    (35, "free", None),
]
EMPTY = [(65, "cached", None), (35, "free", None)]


class Warehouse(BaseHTTPRequestHandler):
    """A server whose pool is full at first, and empty once told so."""

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        if path == "/ui":
            language = "zh" if "lang=zh" in self.path else "en"
            self.answer(live_page("<b>model</b>", language).encode(), "text/html; charset=utf-8")
        elif path == "/kv" and self.server.key in (None, self.headers["authorization"]):
            self.server.steps += 1
            now = state(self.server.steps, *self.server.shown)
            self.answer(json.dumps(now).encode(), "application/json")
        else:
            self.answer(b"{}", "application/json", 401)

    def answer(self, body, kind, status=200):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def warehouse():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Warehouse)
    server.asked, server.steps, server.key = [], 0, None
    server.shown = (FULL, (1, 2))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    assert set(server.asked) <= {"/ui", "/kv"}


@pytest.fixture
def opened(chromium, warehouse):
    """Opens the page, and afterwards sees that it complained of nothing and asked nobody else."""
    said, elsewhere, contexts = [], [], []
    url = f"http://127.0.0.1:{warehouse.server_address[1]}/ui"

    def open_page(viewport=DESKTOP, scheme="light", language="en"):
        context = chromium.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on(
            "console",
            lambda message: None if "401" in message.text else said.append(message.text),
        )
        tab.on("request", lambda asked: elsewhere.append(asked.url))
        tab.goto(f"{url}?lang={language}")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [one for one in elsewhere if not one.startswith((url[:-2], "data:,"))] == []


def drawn(tab):
    tab.wait_for_selector("html[data-drawn]", state="attached")
    return tab


def until(tab, condition):
    """Wait until something is so; the page itself may not evaluate texts."""
    while not tab.evaluate(condition):
        tab.wait_for_timeout(50)


#: Pixels of the map by colour.
COLOURS = """() => {
  const canvas = document.getElementById("map");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const counts = {};
  for (let at = 0; at < data.length; at += 4) {
    const name = data[at + 3] ? [data[at], data[at + 1], data[at + 2]].join() : "none";
    counts[name] = (counts[name] || 0) + 1;
  }
  return counts;
}"""


def fact(tab, name):
    """The figure of that name."""
    return tab.inner_text(f'#facts div:has(dt:text-is("{name}")) .value')


def rgb(colour):
    return ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))


@pytest.mark.parametrize(("scheme", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_the_warehouse_fills_and_empties(opened, warehouse, scheme, colours):
    tab = drawn(opened(scheme=scheme))
    counts = tab.evaluate(COLOURS)
    first, second = (counts[rgb(colours[f"owner-{request}"])] for request in (1, 2))
    assert first / second == pytest.approx(30 / 20)
    assert counts[rgb(colours["cached"])] / first == pytest.approx(10 / 30)
    widths = tab.evaluate("[...document.querySelectorAll('#ledger i')].map((i) => i.style.width)")
    assert [float(width.rstrip("%")) for width in widths] == [50, 0, 0, 5, 0, 10, 35]
    assert fact(tab, "of the pool held") == "55 %"
    assert fact(tab, "requests in memory") == "2"
    assert "<b>model</b>, pool of 100 MiB: 100 blocks of 16 tokens" in tab.inner_text("#subject")
    assert len(tab.query_selector_all("#requests tr")) == 2
    # Ten tokens come with each look, one look stands for half a second.
    until(tab, "document.documentElement.dataset.drawn > 4")
    assert fact(tab, "output tokens/s") == "20"
    assert fact(tab, "GB/s read by decoding") == "10"
    warehouse.shown = (EMPTY, ())
    until(tab, "!document.querySelector('#requests tr')")
    counts = tab.evaluate(COLOURS)
    assert rgb(colours["owner-1"]) not in counts
    assert "Nobody asks for anything." in tab.inner_text("#requests-note")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_fits_a_phone(opened, language):
    tab = drawn(opened(PHONE, language=language))
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert tab.evaluate("document.documentElement.lang").startswith(language)
    assert "undefined" not in tab.inner_text("body")


def test_what_a_cell_is_is_said_where_the_pointer_is(opened):
    tab = drawn(opened())
    box = tab.query_selector("#map").bounding_box()
    tab.mouse.move(box["x"] + 3, box["y"] + 3)
    assert tab.inner_text("#tooltip").split("\n") == ["block 0", "holds tokens", "request 1"]


def test_a_server_with_keys_is_given_one(opened, warehouse):
    warehouse.key = f"Bearer {KEY}"
    tab = opened()
    tab.wait_for_selector("#key", state="visible")
    assert not tab.is_visible("#shown")
    tab.fill("#secret", "wrong")
    tab.click("#key button")
    tab.wait_for_selector("text=does not know that key")
    tab.fill("#secret", KEY)
    tab.click("#key button")
    drawn(tab)
    assert not tab.is_visible("#key")
    assert KEY not in tab.url
