"""``kvhouse chat``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.errors import RequestRejected
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.engine import Engine, SamplingParams, Token

_HELP = "Ctrl-C stops an answer, Ctrl-D ends, /clear begins anew."


def chat_command(
    model: engine_options.RunModel,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told before all else.")
    ] = None,
    max_new_tokens: engine_options.MaxNewTokens = 512,
    temperature: engine_options.Temperature = 0.7,
    top_k: engine_options.TopK = 0,
    top_p: engine_options.TopP = 0.95,
    min_p: engine_options.MinP = 0.0,
    repetition_penalty: engine_options.RepetitionPenalty = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Makes sampling repeatable. By default a fresh one.")
    ] = None,
    kv_memory: engine_options.EngineMemory = answering.DEFAULT_KV_MEMORY,
    dtype: engine_options.Dtype = "float32",
    kv_format: engine_options.EngineFormat = None,
    kv_rotation: engine_options.Rotation = None,
    max_length: options.MaxLength = None,
    block_size: options.BlockSize = 16,
    fast_path: engine_options.FastPath = True,
) -> None:
    """Talk to a model in the terminal, on this machine's CPU.

    The conversation so far stays in the KV pool, so only what is new is computed.

    Example: kvhouse chat smollm2
    """
    answering.require(model, max_new_tokens)

    from kvhouse.engine import Engine, EngineConfig, SamplingParams

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    config = answering.prepare(
        model,
        EngineConfig(
            kv_memory=parse_bytes(kv_memory),
            kv_format=answering.format_of(kv_format, dtype),
            kv_rotation=kv_rotation,
            max_length=max_length,
            block_size=block_size,
            fast_path=fast_path,
        ),
        dtype,
        share=True,
    )
    engine = Engine(answering.load(model, dtype), config)
    turns = [] if system is None else [{"role": "system", "content": system}]
    engine.chat_prompt([*turns, {"role": "user", "content": "?"}])  # a template is there
    Conversation(engine, turns, max_new_tokens, sampling).run()


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
