"""``kvhouse demo chatbot``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from kvhouse.cli import answering, options
from kvhouse.cli.output import print_json, whole_file
from kvhouse.cli.progress import progress

if TYPE_CHECKING:
    from kvhouse.demo.chatbot import ChatbotDemo
    from kvhouse.engine.load import LoadedModel
    from kvhouse.replayer.recorder import Recorder
    from kvhouse.views.chatbot import Watched


def chatbot_command(
    html: options.Html = None, lang: options.Lang = "en", as_json: options.AsJson = False
) -> None:
    """Serve a chatbot for real, contiguous and paged, in one small pool.

    SmolLM2-135M-Instruct on this machine's CPU, in bfloat16 with int8 KV: conversations of 1,500
    tokens on average where 8,192 are allowed, and memory that reserves them for eight. Each policy
    is watched for 75 seconds of the same load. Takes about three minutes.
    """
    from rich.console import Console

    from kvhouse.demo.chatbot import POLICIES, ChatbotDemo, ChatbotOutcome, ChatbotSetting
    from kvhouse.replayer.recorder import Recorder
    from kvhouse.views.chatbot import show_chatbot
    from kvhouse.views.tables import say_wrapped

    console, setting = Console(quiet=as_json), ChatbotSetting()
    demo = ChatbotDemo(setting)
    console.print(
        f"{setting.reservations} x {setting.max_length:,} tokens of memory, conversations of "
        f"{demo.mean_tokens:,.0f} tokens on average, four new ones a second; each policy is "
        f"watched for {setting.seconds:.0f} seconds of steps."
    )
    with ExitStack() as files:
        write = files.enter_context(whole_file(html, "page"))
        loaded = answering.load(setting.model, setting.dtype)
        recorders = {policy: Recorder(setting.seconds) for policy in POLICIES}
        watched = {
            policy: _watch(demo, policy, loaded, recorders[policy], as_json=as_json)
            for policy in POLICIES
        }
        if write:
            write(_page(demo, watched, recorders, lang))
    outcome = ChatbotOutcome(setting, demo.mean_tokens, watched)
    if as_json:
        print_json(outcome.to_dict())
        return
    title = f"A chatbot on {setting.model}, the same memory and load (measured)"
    show_chatbot(console, title, *(watched[policy] for policy in POLICIES))
    if html:
        say_wrapped(console, f"Who held which block: {html}")


def _watch(
    demo: ChatbotDemo, policy: str, loaded: LoadedModel, recorder: Recorder, *, as_json: bool
) -> Watched:
    seconds = int(demo.setting.seconds)
    with progress(policy, seconds, unit="seconds", as_json=as_json) as on_second:
        return demo.watch(policy, loaded, on_second, recorder)


def _page(
    demo: ChatbotDemo, watched: dict[str, Watched], recorders: dict[str, Recorder], lang: str
) -> bytes:
    """Who held which block, under both policies."""
    from kvhouse.views.page import page
    from kvhouse.views.picture import Drive, Picture

    drives = [Drive(found.result, recorders[policy].recording) for policy, found in watched.items()]
    picture = Picture("chatbot", demo.setting.model, "this machine", demo.layout, drives)
    return page(picture, lang).encode()
