"""What ``kvhouse run`` does once it knows what is asked: a prompt, or a trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kvhouse.cli import answering
from kvhouse.cli.output import plan_log, print_json
from kvhouse.cli.progress import progress
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.engine import Completion, Engine, EngineConfig, SamplingParams, Token
    from kvhouse.engine.fast.paths import Paths
    from kvhouse.replayer.traces import Trace


@dataclass(frozen=True, slots=True)
class Run:
    """The model that runs, the engine that is asked for, and whether stdout is for JSON alone."""

    model: str
    config: EngineConfig
    dtype: str
    as_json: bool

    def answer(
        self, prompt: str, max_new_tokens: int, sampling: SamplingParams, n: int, *, raw: bool
    ) -> None:
        """Answer one prompt: token by token for a person, whole as JSON.

        Args:
            prompt: The text.
            max_new_tokens: Longest answer.
            sampling: How tokens are chosen.
            n: How many answers to give.
            raw: Whether the prompt goes without the chat template.

        Raises:
            KvhouseError: It cannot be answered.
        """
        from kvhouse.engine import Engine

        engine = Engine(answering.load(self.model, self.dtype), self.config)
        ids = _prompt_ids(engine, prompt, raw=raw)
        streamed = n == 1 and not self.as_json

        def show(token: Token) -> None:
            if streamed:
                print(token.text, end="", flush=True)

        usage = answering.Usage(len(ids))
        completions = answering.answer(engine, ids, max_new_tokens, sampling, usage, show, n)
        if self.as_json:
            print_json(answers_to_dict(self.model, completions, usage, engine.paths))
            return
        if streamed:
            print()
        else:
            print("\n\n".join(f"[{c.sample + 1}/{n}] {c.text}" for c in completions))
        for completion in completions:
            if completion.error is not None:
                raise KvhouseError(completion.error)
        answering.say(f"{usage.line()}\n{engine.paths.line()}")

    def serve(
        self, traffic: Trace, name: str, seed: int, *, as_backlog: bool, plan_log_file: str | None
    ) -> None:
        """Serve a trace and show its figures.

        Args:
            traffic: The trace.
            name: What it was called.
            seed: Decides the prompts.
            as_backlog: All requests come at once.
            plan_log_file: Where the steps' plans are written.

        Raises:
            KvhouseError: It cannot be served.
        """
        from kvhouse.engine.traced import run_trace, scenario_for

        loaded = answering.load(self.model, self.dtype)
        scenario = scenario_for(
            self.config, loaded.spec, traffic, as_backlog=as_backlog, dtype=loaded.dtype
        )
        with (
            plan_log(plan_log_file) as on_plan,
            progress("run", len(traffic.requests), as_json=self.as_json) as on_ended,
        ):
            run = run_trace(
                loaded, scenario, self.config, seed=seed, on_ended=on_ended, on_plan=on_plan
            )
        if self.as_json:
            print_json({"model": self.model, "device": "this machine", **run.to_dict()})
            return
        from rich.console import Console

        from kvhouse.views.replay import show_results

        title = f"{len(traffic.requests):,} requests of {name} on this machine"
        show_results(Console(), title, [run.result])


def _prompt_ids(engine: Engine, prompt: str, *, raw: bool) -> list[int]:
    """The prompt as a user's turn in the model's own chat template, if it has one."""
    if raw or engine.tokenizer is None or not engine.tokenizer.chat_template:
        return engine.prompt_ids(prompt)
    return engine.chat_prompt([{"role": "user", "content": prompt}])


def answers_to_dict(
    model: str, completions: list[Completion], usage: answering.Usage, paths: Paths
) -> dict[str, object]:
    """What ``--json`` prints of a prompt's answers."""
    return {
        "model": model,
        "completions": [asdict(completion) for completion in completions],
        "usage": usage.to_dict(),
        "paths": paths.to_dict(),
    }
