"""``kvhouse chat``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options
from kvhouse.cli.engine_options import EngineOptions
from kvhouse.cli.groups import grouped
from kvhouse.cli.sampling_options import MaxNewTokens, SamplingOptions, Temperature, TopP
from kvhouse.errors import RequestRejected

if TYPE_CHECKING:
    from kvhouse.engine import Engine, SamplingParams, Token

_HELP = "Ctrl-C stops an answer, Ctrl-D ends, /clear begins anew."


@dataclass(frozen=True, slots=True)
class ChatOptions(SamplingOptions):
    """Longer answers, and livelier ones."""

    max_new_tokens: MaxNewTokens = 512
    temperature: Temperature = 0.7
    top_p: TopP = 0.95


@grouped
def chat_command(
    model: engine_options.RunModel,
    *,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told before all else.")
    ] = None,
    choosing: ChatOptions,
    seed: Annotated[
        int | None, typer.Option(help="Makes sampling repeatable. By default a fresh one.")
    ] = None,
    dtype: engine_options.Dtype = "float32",
    asked: EngineOptions,
) -> None:
    """Talk to a model in the terminal, on this machine's CPU.

    The conversation so far stays in the KV pool, so only what is new is computed.

    Example: kvhouse chat smollm2
    """
    answering.require(model, choosing.max_new_tokens)

    from kvhouse.engine import Engine

    sampling = choosing.params(seed=seed)
    config = answering.feasible_config(model, asked.config(dtype), dtype, share=True)
    engine = Engine(answering.load(model, dtype), config)
    turns = [] if system is None else [{"role": "system", "content": system}]
    engine.chat_prompt([*turns, {"role": "user", "content": "?"}])  # a template is there
    Conversation(engine, turns, choosing.max_new_tokens, sampling).run()


class Conversation:
    """A conversation: what was said, and who is to speak."""

    def __init__(
        self,
        engine: Engine,
        turns: list[dict[str, str]],
        max_new_tokens: int,
        sampling: SamplingParams,
    ) -> None:
        self._engine = engine
        self._begin = turns
        self._turns = list(turns)
        self._max_new_tokens = max_new_tokens
        self._sampling = sampling

    def run(self) -> None:
        """Ask and answer until the input ends."""
        asked_by_person = sys.stdin.isatty()
        if asked_by_person:
            answering.say(_HELP)
        while True:
            try:
                text = input("> " if asked_by_person else "").strip()
            except EOFError:
                break
            except KeyboardInterrupt:
                answering.say(f"\n{_HELP}")
                continue
            if text == "/clear":
                self._turns = list(self._begin)
            elif text:
                self.reply(text)
        if asked_by_person:
            answering.say("")

    def reply(self, text: str) -> None:
        """Answer one turn; a refused one is as if it had not been said."""
        turns = [*self._turns, {"role": "user", "content": text}]
        said: list[str] = []

        def show(token: Token) -> None:
            said.append(token.text)
            print(token.text, end="", flush=True)

        try:
            prompt = self._engine.chat_prompt(turns)
            room = self._engine.scheduler.config.max_length - len(prompt)
            usage = answering.Usage(len(prompt))
            most = max(1, min(self._max_new_tokens, room))
            try:
                (completion,) = answering.answer(
                    self._engine, prompt, most, self._sampling, usage, show
                )
                ended = completion.error
            except KeyboardInterrupt:
                ended = "stopped"
        except RequestRejected as error:
            answering.say(f"kvhouse: {error}; /clear begins anew")
            return
        print(flush=True)
        answering.say(f"[{usage.line()}{f' · {ended}' if ended else ''}]")
        self._turns = [*turns, {"role": "assistant", "content": "".join(said)}]
