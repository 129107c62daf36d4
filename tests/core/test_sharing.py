"""Prefix sharing, held against what was really written into each place of each block.

The naive side knows no keys and no references: it notes, for every place of every block, the whole
text up to the token that was written there, and who holds the block.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.keys import TokenKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.errors import KvhouseError, RequestRejected, UnsupportedModel
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import ChunkedAttention, FullAttention, SlidingAttention, State
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.tensors import Tensor

SHAPE = (2, 1, 4, 4)
KINDS = {
    "full": FullAttention(*SHAPE),
    "window": SlidingAttention(*SHAPE, window=5),
    "chunk": ChunkedAttention(*SHAPE, chunk=6),
}


def spec(*layers):
    return ModelSpec("m", "M", layers, 8, 10, 4096, 1, 1, "float16")


@dataclass(frozen=True)
class Text:
    """A tenant's tokens; equal tokens of two tenants are not the same text."""

    salt: str
    tokens: list[int]

    def until(self, position):
        return self.salt, tuple(self.tokens[: position + 1])


class Written:
    """What lies where: for each group, block and offset the text that its token ends."""

    def __init__(self, layout):
        self.layout = layout
        self.texts = {}

    def write(self, row, text):
        for position in range(row.first, row.first + row.count):
            for number in range(len(self.layout.groups)):
                place = self.place(row, number, position)
                self.texts[number, *place] = text.until(position)

    def read(self, row, text):
        """Every earlier token that a layer of the row needs lies where its table says."""
        for number, group in enumerate(self.layout.groups):
            for position in range(group.reach.first(row.first), row.first):
                place = self.place(row, number, position)
                assert self.texts[number, *place] == text.until(position)

    def place(self, row, number, position):
        size = self.layout.groups[number].block_size
        index = position // size - row.starts[number]
        assert 0 <= index < len(row.tables[number])
        return row.tables[number][index], position % size


prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=8)


@settings(max_examples=150)
@given(
    prompts=prompts,
    news=st.lists(st.integers(1, 8), min_size=8, max_size=8),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    block_size=st.integers(1, 4),
    blocks=st.integers(4, 60),
    token_budget=st.integers(1, 20),
    salted=st.booleans(),
)
def test_what_is_taken_up_is_what_was_written(
    prompts, news, kinds, block_size, blocks, token_budget, salted
):
    layout = KVLayout.of(spec(*(KINDS[kind] for kind in kinds)), "fp16", block_size)
    memory = make_memory("paged", layout, blocks, 32, 0.0, in_flight=token_budget, share=True)
    scheduler = Scheduler(memory, SchedulerConfig(32, token_budget, 4, checked=True))
    written, texts, requests, salts = Written(layout), {}, {}, {}
    for number, (prompt, new) in enumerate(zip(prompts, news, strict=False)):
        text = list(prompt)
        salt = str(number % 2) if salted else ""
        try:
            request = scheduler.submit(
                len(text), new, TokenKeys(text, block_size, [("tenant", salt)])
            )
        except RequestRejected:
            continue
        texts[request.id], requests[request.id], salts[request.id] = text, request, salt
    while scheduler.has_work:
        plan = scheduler.schedule()
        holders = Counter(b for h in memory.holders for b in memory.holding(h).blocks())
        sampled = []
        for row in plan.rows:
            said = Text(salts[row.request], texts[row.request])
            written.read(row, said)
            for number in range(len(layout.groups)):
                for position in range(row.first, row.first + row.count):
                    assert holders[written.place(row, number, position)[0]] == 1
            written.write(row, said)
            if row.samples:
                texts[row.request].append(len(texts[row.request]) % 2)
                sampled.append(Sampled(row.request))
        scheduler.apply(plan, StepResult(1.0, tuple(sampled)))
    for number, request in requests.items():
        assert request.generated == request.max_new_tokens
        assert len(texts[number]) == request.prompt_tokens + request.max_new_tokens


def run(scheduler, text, new=1, tags=()):
    """Serve one request alone and return it."""
    request = scheduler.submit(len(text), new, TokenKeys(text, 4, tags))
    while scheduler.has_work:
        plan = scheduler.schedule()
        sampled = [Sampled(row.request) for row in plan.rows if row.samples]
        scheduler.apply(plan, StepResult(1.0, tuple(sampled)))
    return request


@pytest.fixture
def scheduler():
    layout = KVLayout.of(spec(KINDS["full"]), "fp16", 4)
    memory = make_memory("paged", layout, 16, 64, 0.0, share=True)
    return Scheduler(memory, SchedulerConfig(64, checked=True))


def test_full_blocks_are_found_again_but_never_the_whole_prompt(scheduler):
    text = list(range(12))
    assert run(scheduler, text).reused == 0
    assert run(scheduler, text).reused == 8  # the third block is full, but a token must be left
    assert run(scheduler, [*text, 99]).reused == 12
    assert run(scheduler, [*text[:7], 99, 8, 9]).reused == 4
    assert run(scheduler, [99, *text[1:]]).reused == 0


def test_tenants_share_nothing(scheduler):
    text = list(range(12))
    run(scheduler, text, tags=[("tenant", "a")])
    assert run(scheduler, text, tags=[("tenant", "b")]).reused == 0
    assert run(scheduler, text, tags=[("tenant", "a")]).reused == 8


def test_shared_blocks_count_once_in_the_ledger(scheduler):
    text = list(range(8))
    run(scheduler, text)
    for last in (50, 60):
        scheduler.submit(9, 2, TokenKeys([*text, last], 4))
    plan = scheduler.schedule()
    ledger = scheduler.ledger()
    block = scheduler.memory.layout.block_bytes
    assert plan.tokens == 2  # one of each: the rest was found
    assert (ledger.shared, ledger.saved) == (2 * block, 2 * block)
    assert ledger.used == 2 * block // 4
    assert ledger.cached == 0


def test_the_least_recently_freed_content_goes_first(scheduler):
    old, young = list(range(100, 128)), list(range(200, 228))
    run(scheduler, old)
    run(scheduler, young)
    assert scheduler.ledger().cached == 14 * scheduler.memory.layout.block_bytes
    run(scheduler, list(range(300, 320)))  # two blocks were free of content, so three are forgotten
    assert run(scheduler, [*young, 0]).reused == 28
    assert run(scheduler, [*old, 0]).reused < 28


@pytest.mark.parametrize("policy", ["contiguous-max", "contiguous-oracle"])
def test_contiguous_memory_shares_nothing(policy):
    layout = KVLayout.of(spec(KINDS["full"]), "fp16", 4)
    with pytest.raises(KvhouseError, match="only paged memory can share prefixes"):
        make_memory(policy, layout, 16, 64, share=True)


def test_states_are_not_shared():
    layout = KVLayout.of(spec(KINDS["full"], State((Tensor(8),))), "fp16", 4)
    with pytest.raises(UnsupportedModel, match="its state is one sum over all tokens"):
        make_memory("paged", layout, layout.pool_in(10**5, 10), 64, share=True)
