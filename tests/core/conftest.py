"""A tiny model's layout and an executor that only says yes."""

from collections.abc import Callable

import pytest

from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepPlan, StepResult
from kvhouse.layout import KVLayout
from kvhouse.spec.model import FullAttention, ModelSpec

TINY = ModelSpec(
    name="tiny",
    architecture="TinyForCausalLM",
    layers=(FullAttention(query_heads=4, kv_heads=2, key_dim=8, value_dim=8),) * 3,
    hidden_size=32,
    vocab_size=100,
    max_length=4096,
    parameters=1000,
    matmul_parameters=900,
    dtype="float32",
)


@pytest.fixture
def make_scheduler() -> Callable[..., Scheduler]:
    def make(
        policy: str = "paged",
        blocks: int = 16,
        block_size: int = 4,
        watermark: float = 0.0,
        **limits: int,
    ) -> Scheduler:
        config = SchedulerConfig(**{"max_length": 64, "checked": True, **limits})
        layout = KVLayout.of(TINY, "fp16", block_size)
        memory = make_memory(policy, layout, blocks, config.max_length, watermark)
        return Scheduler(memory, config)

    return make


@pytest.fixture(scope="session")
def answer() -> Callable[..., StepResult]:
    """The result of a step in which the requests in ``stops`` sampled a stop token."""

    def result(plan: StepPlan, stops: frozenset[int] = frozenset()) -> StepResult:
        rows = [row for row in plan.rows if row.samples]
        return StepResult(1.0, tuple(Sampled(row.request, row.request in stops) for row in rows))

    return result
