"""The chatbot demo, made small: what each policy holds at once, counted, and its page."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvhouse.cli import app
from kvhouse.demo import chatbot
from kvhouse.demo.chatbot import POLICIES, ChatbotDemo, ChatbotSetting

#: All wait from the start: the first step admits whom memory has room for, however long it takes,
#: and none ends within the time watched, however short its steps are.
SMALL = ChatbotSetting(
    traffic="backlog:prompt=uniform(2,6),output=400,requests=9,seed=1",
    seconds=0.5,
    calm_traffic="constant:rate=0.5,prompt=4,output=2,requests=1",
    max_length=512,
    reservations=2,
)


def test_the_setting_is_the_chapter_s():
    demo = ChatbotDemo(ChatbotSetting())
    # 30 layers x 2 x 3 heads x (64 B + 2 B of scale) a token, 8,192 tokens, 8 times.
    assert demo.kv_memory == 8 * 8192 * 11_880
    assert 1400 <= demo.mean_tokens <= 1700


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    page = tmp_path_factory.mktemp("page") / "chatbot.html"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chatbot, "ChatbotSetting", lambda: SMALL)
        arguments = ["demo", "chatbot", "--html", str(page), "--json"]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout), page.read_text()


def test_paging_holds_more_at_once(outcome):
    data, _ = outcome
    contiguous, paged = (data["watched"][policy]["result"] for policy in POLICIES)
    assert contiguous["running"]["peak"] == 2
    assert paged["running"]["peak"] == 9
    assert contiguous["pool"]["bytes"] == paged["pool"]["bytes"] == 2 * 512 * 11_880
    assert contiguous["timing"] == "measured"


def test_the_time_watched_counts_every_token(outcome):
    data, _ = outcome
    for watched in data["watched"].values():
        result = watched["result"]
        assert result["makespan_seconds"] >= 0.5
        assert watched["tokens"] > result["output_tokens"]  # of those that ended
        assert watched["tokens_per_second"] * result["makespan_seconds"] == pytest.approx(
            watched["tokens"]
        )
        assert watched["step_seconds"] * result["steps"] <= result["makespan_seconds"] * 1.001
        assert 1 <= watched["rows"] <= result["running"]["peak"]
        assert watched["calm_first_token_seconds"] > 0
    old, new = (data["watched"][policy]["tokens_per_second"] for policy in POLICIES)
    assert data["ratios"]["tokens_per_second"] == pytest.approx(new / old)


def test_the_page_shows_both(outcome):
    _, page = outcome
    assert all(policy in page for policy in POLICIES)
    assert page.lower().startswith("<!doctype html>")
