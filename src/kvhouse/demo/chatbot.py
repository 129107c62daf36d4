"""A chatbot of long limits and short conversations: what paging holds at once, run for real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from kvhouse import spec
from kvhouse.core.policy import CONTIGUOUS_MAX, PAGED
from kvhouse.core.step import Executor, StepPlan, StepResult
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer import Scenario, read_trace
from kvhouse.replayer.recorder import Recorder
from kvhouse.replayer.stop import Stop
from kvhouse.views.chatbot import Watched

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.load import LoadedModel

#: The policies that are compared, the older way first.
POLICIES = (CONTIGUOUS_MAX, PAGED)


@dataclass(frozen=True, slots=True)
class ChatbotSetting:
    """Conversations of 1,500 tokens on average where 8,192 are allowed, as in the chapter.

    Attributes:
        model: A small model whose weights come as a package.
        traffic: More conversations than the pool can reserve for, at random times.
        seconds: How long each policy is watched; a CPU would take several minutes to finish all.
        calm_traffic: One question at a time, to see what the first token takes without a queue.
        max_length: Longest conversation allowed, in tokens.
        reservations: Conversations for which the pool can reserve ``max_length``.
        token_budget: Most tokens computed in a step.
        dtype: Weights and arithmetic.
        kv_format: Keys and values.
    """

    model: str = "smollm2"
    traffic: str = (
        "poisson:rate=4,prompt=lognormal(60,0.6,max=1000),output=lognormal(1440,0.6,max=6000),"
        "requests=300,seed=1"
    )
    seconds: float = 75.0
    calm_traffic: str = (
        "constant:rate=0.5,prompt=lognormal(60,0.6,max=1000),output=8,requests=12,seed=2"
    )
    max_length: int = 8192
    reservations: int = 8
    token_budget: int = 256
    dtype: str = "bfloat16"
    kv_format: str = "int8"


class Watch:
    """An executor that ends the drive after some time, and counts.

    Args:
        executor: Who carries the steps out.
        seconds: How long.
        stop: Is asked then.
        on_second: Called for each second that has gone by.
    """

    def __init__(
        self, executor: Executor, seconds: float, stop: Stop, on_second: Callable[[object], None]
    ) -> None:
        self.timing = executor.timing
        self._executor, self._stop, self._on_second = executor, stop, on_second
        self._until = seconds
        self.spent: list[float] = []
        self.rows: list[int] = []
        self.tokens = 0
        self._now = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """Have a step carried out."""
        result = self._executor.execute(plan)
        before, self._now = self._now, self._now + result.seconds
        for _ in range(int(min(self._now, self._until)) - int(before)):
            self._on_second(None)
        self.spent.append(result.seconds)
        self.rows.append(len(plan.rows))
        self.tokens += len(result.sampled)
        if self._now >= self._until:
            self._stop.asked = True
        return result


class ChatbotDemo:
    """The demo, part by part."""

    def __init__(self, setting: ChatbotSetting) -> None:
        self.setting = setting
        self.spec = spec.load(setting.model)
        self.layout = KVLayout.of(self.spec, setting.kv_format, dtype=setting.dtype)
        reserved = self.layout.blocks_for(setting.max_length) * self.layout.block_bytes
        self.kv_memory = setting.reservations * reserved
        self.mean_tokens = read_trace(setting.traffic).mean_tokens

    def watch(
        self,
        policy: str,
        loaded: LoadedModel,
        on_second: Callable[[object], None],
        recorder: Recorder | None = None,
    ) -> Watched:
        """Serve the traffic with a policy for as long as it is watched, and before it in calm."""
        from kvhouse.engine.traced import run_trace

        calm = self._calm_first_token(policy, loaded)
        stop, made = Stop(), []

        def watching(executor: Executor) -> Watch:
            made.append(Watch(executor, self.setting.seconds, stop, on_second))
            return made[0]

        config, scenario = self._engine(policy, self.setting.traffic)
        run = run_trace(loaded, scenario, config, watch=watching, recorder=recorder, stop=stop)
        (watch,) = made
        return Watched(
            run.result,
            watch.tokens,
            watch.tokens / run.result.makespan_seconds,
            fmean(watch.spent),
            fmean(watch.rows),
            calm,
        )

    def _calm_first_token(self, policy: str, loaded: LoadedModel) -> float:
        """Median time to first token of one question at a time."""
        from kvhouse.engine.traced import run_trace

        config, scenario = self._engine(policy, self.setting.calm_traffic)
        result = run_trace(loaded, scenario, config).result
        if result.first_token_seconds is None:
            raise KvhouseError(f"{policy}: no question was answered")
        return result.first_token_seconds.p50

    def _engine(self, policy: str, traffic: str) -> tuple[EngineConfig, Scenario]:
        """The pool and the limits, and traffic that meets them."""
        from kvhouse.engine import EngineConfig
        from kvhouse.engine.traced import scenario_for

        setting = self.setting
        config = EngineConfig(
            self.kv_memory,
            setting.kv_format,
            policy=policy,
            block_size=self.layout.block_size,
            max_length=setting.max_length,
            token_budget=setting.token_budget,
        )
        trace = read_trace(traffic)
        return config, scenario_for(config, self.spec, trace, dtype=setting.dtype)


@dataclass(frozen=True, slots=True)
class ChatbotOutcome:
    """Everything the demo found, by policy.

    Attributes:
        setting: What was asked.
        mean_tokens: Mean length of the conversations, were they all to end.
        watched: What each policy did.
    """

    setting: ChatbotSetting
    mean_tokens: int
    watched: dict[str, Watched]

    def ratio(self, of: Callable[[Watched], float]) -> float:
        """A figure, paged over contiguous."""
        old, new = (of(self.watched[policy]) for policy in POLICIES)
        return new / old

    def to_dict(self) -> dict[str, Any]:
        """Plain values; docs/json.md describes the keys."""
        return {
            **asdict(self),
            "ratios": {
                "running": self.ratio(lambda watched: watched.result.running.mean),
                "tokens_per_second": self.ratio(lambda watched: watched.tokens_per_second),
                "step_seconds": self.ratio(lambda watched: watched.step_seconds),
                "first_token_seconds": self.ratio(lambda watched: watched.calm_first_token_seconds),
            },
        }
