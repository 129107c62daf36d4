"""A page's content without a browser: what it embeds, what it refers to, and hostile names."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import string
from dataclasses import replace

import numpy as np
import pytest

from kvhouse import devices, spec
from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.errors import KvhouseError
from kvhouse.replayer import SLO, Setup, Trace, read_trace
from kvhouse.replayer.compare import compare, variants
from kvhouse.spec.layers import State
from kvhouse.spec.tensors import Tensor
from kvhouse.views.image import image
from kvhouse.views.page import LANGUAGES, page
from kvhouse.views.page.data import pack
from kvhouse.views.page.texts import texts_of
from kvhouse.views.picture import Drive, Picture, size_text

TRAFFIC = (
    "conversations:rate=6,turns=4,pause=1,system=64,systems=2,block=16,prompt=uniform(5,90),"
    "output=uniform(2,80),requests=90,seed=3"
)
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    "\"'&$title{0}${data}\u2028\x1b[2J"
)


def draw(trace, policies, slo=None, **options):
    """What a picture shows of these policies, and their results."""
    setup = Setup(trace, spec.load("llama-3-8b"), devices.get("a100-80g"), **options)
    setups = variants(setup, policies)
    recorders = [setup.recorder() for setup in setups]
    results = compare(setups, recorders=recorders, slo=slo)
    drives = [
        Drive(result, recorder.recording)
        for result, recorder in zip(results, recorders, strict=True)
    ]
    return Picture(trace.name, "llama-3-8b", "a100-80g", setup.layout, drives)


@pytest.fixture(scope="module")
def picture():
    return draw(
        read_trace(TRAFFIC),
        ["contiguous-max", "paged"],
        kv_blocks=300,
        max_length=1024,
        prefix_cache=True,
    )


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def unpack(packed):
    kind = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "f4": "<f4", "f8": "<f8"}[packed["type"]]
    return np.frombuffer(base64.b64decode(packed["base64"]), dtype=kind)


def test_every_byte_of_the_pool_is_in_one_of_the_areas(picture):
    data = data_of(page(picture))
    assert [drive["name"] for drive in data["drives"]] == [
        "contiguous-max",
        "paged",
        "paged + prefix cache",
    ]
    for drive, shown in zip(data["drives"], picture.drives, strict=True):
        sums = np.sum([unpack(drive["ledger"][name]) for name in LEDGER_CLASSES], axis=0)
        assert len(sums) == 400
        assert sums == pytest.approx(shown.result.pool.bytes)
        assert drive["pool_bytes"] == shown.result.pool.bytes == 300 * 2**21


def test_the_map_is_whole(picture):
    for drive, shown in zip(data_of(page(picture))["drives"], picture.drives, strict=True):
        drawn, pool = drive["map"], shown.recording.pool
        moments = len(unpack(drawn["times"]))
        for name in ("owners", "kinds"):
            assert unpack(drawn[name]).reshape(moments, drawn["rows"]).tolist() == (
                getattr(pool, name).tolist()
            )
        assert unpack(drive["requests"]["number"]).tolist() == [r.index for r in pool.requests]
        # 128 KiB for each token that is kept; the last one is never computed.
        tokens = [r.prompt_tokens + r.generated - 1 for r in pool.requests]
        assert unpack(drive["requests"]["bytes"]).tolist() == [n * 131_072 for n in tokens]


def test_the_headline_says_what_the_results_say(picture):
    text = page(picture)
    for drive in picture.drives:
        mean = drive.result.ledger.mean_bytes
        assert f">{drive.result.running.peak:,}</dd>" in text
        assert f">{size_text(mean['used'] + mean['shared'])}</dd>" in text
        idle = drive.result.pool.bytes - mean["used"] - mean["shared"]
        assert f"{size_text(idle)} held no token that was needed" in text
        assert f"{drive.result.output_tokens_per_second:,.0f}</dd>" in text
    assert text.count("TTFT p50 / p99, modelled") == len(picture.drives)


def test_a_page_with_an_slo_says_how_many_met_it(picture):
    assert "met the SLO" not in page(picture)
    asked = draw(read_trace("azure-conv-2023", limit=9), ["paged"], slo=SLO(first_token=0.05))
    good = asked.drives[0].result.goodput
    assert 0 < good.requests < 9
    text = page(asked)
    row = '<tr><th scope="row">met the SLO (modelled)</th>'
    assert f"{row}<td>{good.requests} ({good.share:.1%})</td>" in text
    assert f"<td>{good.requests_per_second:,.3g}</td>" in text
    assert "达到 SLO 的请求" in page(asked, "zh")


def test_a_model_of_states_has_no_map_and_says_so():
    states = spec.load("llama-3-8b")
    states = replace(states, layers=(State((Tensor(4096),)),) * 4)
    setup = Setup(
        read_trace(TRAFFIC), states, devices.get("a100-80g"), kv_memory=2**20, weight_dtype="fp8"
    )
    recorder = setup.recorder()
    drive = Drive(setup.drive(recorder=recorder), recorder.recording)
    shown = Picture("t", "m", "d", setup.layout, [drive])
    text = page(shown)
    assert "so there is no map" in text
    assert 'class="plot map"' not in text
    assert drive.result.finished == 90
    assert image(shown, "png").startswith(b"\x89PNG")


class Tags(html.parser.HTMLParser):
    """Every tag with its attributes, and the text outside of scripts and styles."""

    def __init__(self):
        super().__init__()
        self.tags, self.text, self.inside = [], [], None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.text.append(data)


def tags_of(text):
    parser = Tags()
    parser.feed(text)
    return parser


def test_hostile_names_stay_text(picture):
    hostile = replace(picture, trace=HOSTILE, model=HOSTILE, device=HOSTILE)
    parsed = tags_of(page(hostile))
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    assert not [tag for tag, _ in parsed.tags if tag in ("img", "a", "link", "iframe")]
    shown = HOSTILE.replace("\u2028", r"\u2028").replace("\x1b", r"\x1b")
    assert "".join(parsed.text).count(shown) == 3
    assert data_of(page(hostile)) == data_of(page(picture))
    # Nothing hostile is embedded today; what is, could not end its element.
    named = Trace(HOSTILE, read_trace(TRAFFIC).requests)
    assert "</script><script>" not in page(draw(named, ["paged"], kv_blocks=300))


def test_a_page_refers_to_nothing_and_allows_only_its_own_style_and_script(picture):
    text = page(picture)
    parsed = tags_of(text)
    for _, attributes in parsed.tags:
        assert not {"src", "href", "srcset", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    policy = next(a["content"] for _, a in parsed.tags if a.get("http-equiv"))
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert policy.split("; ") == [
        "default-src 'none'",
        *(
            f"{name}-src 'sha256-"
            f"{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
            for name, content in (("style", style), ("script", script))
        ),
    ]


def test_every_language_has_every_text_with_the_same_places():
    def places(text):
        return sorted(str(name) for _, name, _, _ in string.Formatter().parse(text) if name)

    english = texts_of("en")
    for language in LANGUAGES:
        texts = texts_of(language)
        for part in ("page", "parts", "classes", "image", "script"):
            ours, theirs = getattr(texts, part), getattr(english, part)
            assert ours.keys() == theirs.keys()
            assert {k: places(v) for k, v in ours.items()} == {
                k: places(v) for k, v in theirs.items()
            }
    assert texts_of("zh").classes["free"] == "空闲"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_page_is_in_its_language(picture, language):
    text = page(picture, language)
    assert texts_of(language).classes["internal"] in text
    assert data_of(text)["texts"]["internal"] == texts_of(language).classes["internal"]


def test_an_unknown_language_is_refused(picture):
    with pytest.raises(KvhouseError, match=r"language 'fr': choose one of en, zh"):
        page(picture, "fr")


def test_pack_is_little_endian():
    assert base64.b64decode(pack([1, 258], "u2")["base64"]) == b"\x01\x00\x02\x01"
