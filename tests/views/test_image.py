"""Images: what they are, and that a map's pixels are its cells."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import BytesIO

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from kvhouse import devices, spec
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.errors import KvhouseError
from kvhouse.replayer import Setup, read_trace
from kvhouse.replayer.recorder import PoolMap
from kvhouse.replayer.records import RequestRecord
from kvhouse.views.image import FONTS, fonts_of, image
from kvhouse.views.map_pixels import map_pixels
from kvhouse.views.page.texts import texts_of
from kvhouse.views.palette import DARK, LIGHT, css
from kvhouse.views.picture import Drive, Picture


@pytest.fixture(scope="module")
def picture():
    setup = Setup(
        read_trace("poisson:rate=5,prompt=uniform(5,90),output=uniform(2,80),requests=40,seed=3"),
        spec.load("llama-3-8b"),
        devices.get("a100-80g"),
        kv_blocks=300,
    )
    recorder = setup.recorder()
    result = setup.drive(recorder=recorder)
    name = "a $trace$ of \x1b[2J <names> & __more__ 请求 \U0001f3e0"
    return Picture(name, "m", "d", setup.layout, [Drive(result, recorder.recording)])


def test_a_png_is_an_image_with_the_colours_of_requests(picture):
    content = image(picture, "png")
    with Image.open(BytesIO(content)) as opened:
        assert opened.format == "PNG"
        colours = {colour for _, colour in opened.convert("RGB").getcolors(2**24)}
    assert tuple(bytes.fromhex(LIGHT["owner-0"][1:])) in colours
    assert len(content) < 150_000


def test_a_drawing_is_xml_and_the_same_each_time(picture):
    content = image(picture, "svg")
    assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    assert image(picture, "svg") == content


def texts_in(picture, language):
    """What a drawing says."""
    with mpl.rc_context({"svg.fonttype": "none"}):  # text as text
        root = ET.fromstring(image(picture, "svg", language))
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_drawing_is_labelled_in_the_language_that_is_asked_for(picture, monkeypatch):
    monkeypatch.setitem(FONTS, "zh", ("No Such Font", "DejaVu Sans"))
    chinese, english = texts_in(picture, "zh"), texts_in(picture, "en")
    for name in ("ledger", "latency", "running", "waiting", "block", "within"):
        ours, theirs = (texts_of(language).image[name] for language in ("zh", "en"))
        assert any(ours in text for text in chinese)
        assert any(theirs in text for text in english)
        assert not any(theirs in text for text in chinese)
    assert not any(word in " ".join(chinese) for word in ("modelled", "requests", "time"))
    assert texts_of("zh").classes["used"] in chinese


def test_without_a_font_for_a_language_the_reason_is_given(picture, monkeypatch):
    monkeypatch.setitem(FONTS, "zh", ("No Such Font",))
    reason = "--lang zh: no font with its characters is installed for an image: install No Such"
    with pytest.raises(KvhouseError, match=reason):
        image(picture, "png", "zh")
    assert fonts_of("en")


def test_one_request_in_a_tiny_pool_has_axes_of_whole_requests_and_of_mib():
    setup = Setup(
        read_trace("backlog:prompt=5,output=9,requests=1"),
        spec.load("llama-3-8b"),
        devices.get("a100-80g"),
        kv_blocks=2,
    )
    recorder = setup.recorder()
    drive = Drive(setup.drive(recorder=recorder), recorder.recording)
    with mpl.rc_context({"svg.fonttype": "none"}):  # text as text
        root = ET.fromstring(image(Picture("t", "m", "d", setup.layout, [drive]), "svg"))
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "MiB" in texts
    assert "GiB" not in texts
    assert not [text for text in texts if text.startswith("1e") or "\u2212" in text]


def test_pixels_are_cells():
    kinds = {name: place for place, name in enumerate(LEDGER_CLASSES)}
    moments = [["used", "free"], ["cached", "reserved"]]
    pool = PoolMap(
        times=np.array([0.0, 5.0]),
        blocks=np.array([0, 1]),
        owners=np.array([[1, 0], [0, 2]]),
        kinds=np.array([[kinds[name] for name in column] for column in moments]),
        counts=np.zeros((2, len(kinds))),
        requests=(RequestRecord(8, 1, 1, 0.0), RequestRecord(3, 1, 1, 0.0)),
    )
    pixels = map_pixels(pool, 10.0)
    height, width, _ = pixels.shape

    def colour(name):
        return np.array(list(bytes.fromhex(LIGHT[name][1:])))

    quarters = [
        (pixels[: height // 2, : width // 2], colour("owner-0")),  # request 8 of 8 colours
        (pixels[height // 2 :, : width // 2], colour("panel")),
        (pixels[: height // 2, width // 2 :], colour("cached")),
        (
            pixels[height // 2 :, width // 2 :],
            np.round(0.45 * colour("owner-3") + 0.55 * colour("panel")),
        ),
    ]
    for quarter, expected in quarters:
        assert (quarter == expected).all()


def test_a_map_of_nothing_is_the_ground():
    empty = np.zeros((0, 4), dtype=int)
    pool = PoolMap(np.zeros(0), np.arange(4), empty, empty, empty, ())
    assert (map_pixels(pool, 0.0) == list(bytes.fromhex(LIGHT["panel"][1:]))).all()


def test_both_schemes_have_every_colour():
    assert LIGHT.keys() == DARK.keys()
    assert css().count("--owner-0:") == 2


def luminance(colour):
    """Relative luminance of a colour (WCAG 2.2)."""
    values = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
@pytest.mark.parametrize(
    ("one", "other", "least"),
    [
        ("ink", "ground", 4.5),  # text
        ("soft", "ground", 4.5),
        ("soft", "card", 4.5),
        *((f"line-{place}", "ground", 3.0) for place in range(6)),  # graphics
    ],
)
def test_text_and_lines_stand_out(scheme, one, other, least):
    lighter, darker = sorted((luminance(scheme[one]), luminance(scheme[other])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= least
