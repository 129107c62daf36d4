"""The demo of why the cache is there, made small: its floors, and that both ways agree."""

from __future__ import annotations

import pytest
from rich.console import Console

from kvhouse.demo.cache import CacheDemo, CacheSetting, load
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.views.cache import Point, show_cache

DEVICE = Device("d", "A device", 2**34, 1e10, {"float32": 1e11}, "datasheet", "")
SMALL = CacheSetting(lengths=(5, 40), repeats=2)


@pytest.fixture(scope="module")
def demo() -> CacheDemo:
    return CacheDemo(SMALL, load(SMALL), DEVICE)


def test_times_are_measured_and_floors_follow_from_bytes_and_flops(demo):
    """134,515,008 float32 weights and 46,080 bytes of KV a token at 10 GB/s."""
    points = [demo.measure(length) for length in SMALL.lengths]
    for point in points:
        assert min(point.uncached, point.decode, point.prefill) > 0
        read = 134_515_008 * 4 + point.length * 46_080
        assert point.decode_floor == pytest.approx(read / 1e10, rel=0.01)
    body = 134_515_008 - 49_152 * 576  # the head works on the last token only
    assert points[1].prefill_floor == pytest.approx(40 * 2 * body / 1e11, rel=0.05)


def test_a_token_that_differs_is_an_error(demo, monkeypatch):
    logits = demo._uncached.logits
    monkeypatch.setattr(demo._uncached, "logits", lambda ids: -logits(ids))
    with pytest.raises(KvhouseError, match=r"after 5 tokens the model says .* without a cache"):
        demo.measure(5)


def test_the_picture_has_a_pair_of_bars_for_each_length(demo):
    console = Console(record=True, width=100, file=None)
    with console.capture() as captured:
        show_cache(console, "A title", [demo.measure(5)])
    lines = captured.get().splitlines()
    assert sum("█" in line for line in lines) == 2
    assert "A title" in lines[0]


@pytest.mark.parametrize(("floor", "said"), [(0.9, False), (1.1, True)])
def test_a_time_below_its_floor_is_explained(floor, said):
    console = Console(width=80)
    with console.capture() as captured:
        show_cache(console, "A title", [Point(32, 5.0, 0.5, 0.4, 1.0, floor)])
    text = captured.get()
    assert ("lie below their floors, so other work" in text) is said
    heads = " ".join(text.splitlines()[2].split()), " ".join(text.splitlines()[3].split())
    assert heads == ("tokens with, prefill,", "so far without with ratio floor prefill floor")
