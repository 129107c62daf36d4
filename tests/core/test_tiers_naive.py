"""Pool, index and tiers against one list each, for requests that are served one after the other.

The naive house knows neither block ids, keys nor references: a content is the text up to the end
of its block, the free list is a list of contents, and a tier is a list with the content that was
used last at its end.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.keys import TokenKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.step import Sampled, StepResult
from kvhouse.core.tier import TierConfig
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import FullAttention
from kvhouse.spec.model import ModelSpec

SPEC = ModelSpec("m", "M", (FullAttention(2, 1, 4, 4),), 8, 10, 4096, 1, 1, "float16")


class NaiveHouse:
    def __init__(self, size, blocks, capacities, through):
        self.size, self.through = size, through
        self.free, self.held = [None] * blocks, []
        self.capacities = capacities
        self.tiers = [[] for _ in capacities]
        self.loaded = [0 for _ in capacities]
        self.unstored = []
        self.end_step()

    def end_step(self):
        self.pinned = [set() for _ in self.tiers]
        self.arriving = [set() for _ in self.tiers]

    def known(self, content):
        return content in self.free or content in self.held

    def store(self, level, content):
        if level == len(self.tiers):
            return
        tier = self.tiers[level]
        if content in tier:
            tier.remove(content)
            tier.append(content)
            return
        if len(tier) == self.capacities[level]:
            loose = [resident for resident in tier if resident not in self.pinned[level]]
            if not loose:
                return
            tier.remove(loose[0])
            self.store(level + 1, loose[0])
        tier.append(content)
        self.pinned[level].add(content)
        self.arriving[level].add(content)

    def flush(self):
        for content in self.unstored:
            if self.known(content):
                self.store(0, content)
        self.unstored = []

    def take(self):
        content = self.free.pop(0)
        if content is not None and not self.through:
            self.store(0, content)
        self.held.append(None)

    def where(self, content):
        """``"pool"``, the number of a tier, or None."""
        if self.known(content):
            return "pool"
        for level, tier in enumerate(self.tiers):
            if content in tier and content not in self.arriving[level]:
                return level
        return None

    def seal(self, index, content):
        if not self.known(content):
            self.held[index] = content
            if self.through:
                self.unstored.append(content)

    def let_go(self):
        for content in reversed(self.held):
            self.free.insert(0, None) if content is None else self.free.append(content)
        self.held = []

    def admit(self, text):
        """The contents found in the pool, and those to be loaded with their tiers."""
        size = self.size
        contents = [text[: end * size] for end in range(1, (len(text) - 1) // size + 1)]
        places = [self.where(content) for content in contents]
        while None in places:
            places.pop()
        found = [content for content, place in zip(contents, places, strict=False)]
        loads = [(c, place) for c, place in zip(found, places, strict=True) if place != "pool"]
        for content, place in zip(found, places, strict=True):
            if place == "pool":
                self.free.remove(content)
            else:
                self.pinned[place].add(content)
        blocks = -(-len(text) // size)
        for _ in range(blocks - len(found) + len(loads)):
            self.take()
        for content, place in loads:
            self.tiers[place].remove(content)
            self.tiers[place].append(content)
        self.held = [*found, *[None] * (blocks - len(found))]
        return len(places), places.index(loads[0][1]) if loads else len(places), loads

    def serve(self, prompt, new, fails):
        """Tokens that were reused and loaded."""
        text = tuple(prompt)
        while True:
            self.flush()
            found, alone, loads = self.admit(text)
            if not (fails and loads):
                break
            fails = False
            self.let_go()
            lost, place = loads.pop(0)
            self.free.remove(lost)
            self.free.insert(0, None)
            self.settle(loads)
            self.tiers[place].remove(lost)
        computed = found * self.size
        for step in range(new):
            if step:
                self.flush()
                if len(text) > len(self.held) * self.size:
                    self.take()
            for index in range(computed // self.size, len(text) // self.size):
                self.seal(index, text[: (index + 1) * self.size])
            computed = len(text)
            text += (len(text) % 2,)
            if step == new - 1:
                self.let_go()
            self.settle(loads if not step else [])
        return alone * self.size, (found - alone) * self.size

    def settle(self, loads):
        for content, place in loads:
            self.loaded[place] += 1
            if place and self.through:
                self.unstored.append(content)
        self.end_step()


def served(scheduler, prompt, new, size, fails):
    text = list(prompt)
    request = scheduler.submit(len(text), new, TokenKeys(text, size))
    while scheduler.has_work:
        plan = scheduler.schedule()
        failed = tuple(load.block for load in plan.loads[: 1 if fails else 0])
        fails = fails and not plan.loads
        void = plan.void(failed)
        sampled = [Sampled(r.request) for r in plan.rows if r.samples and r.request not in void]
        text += [len(text) % 2 for _ in sampled]
        scheduler.apply(plan, StepResult(1.0, tuple(sampled), failed))
    return request


@settings(max_examples=300)
@given(
    asked=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(1, 6), st.booleans()
        ),
        max_size=25,
    ),
    size=st.integers(1, 3),
    spare=st.integers(0, 12),
    capacities=st.lists(st.integers(1, 15), min_size=1, max_size=3),
    through=st.booleans(),
    failing=st.booleans(),
)
def test_as_plain_lists_would(asked, size, spare, capacities, through, failing):
    blocks = -(-17 // size) + spare
    layout = KVLayout.of(SPEC, "fp16", size)
    tiers = [
        TierConfig(str(level), capacity * layout.block_bytes, write="back")
        for level, capacity in enumerate(capacities)
    ]
    if through:
        tiers[0] = TierConfig("0", tiers[0].bytes, write="through")
    memory = make_memory("paged", layout, blocks, 18, 0.0, share=True, tiers=tiers)
    scheduler = Scheduler(memory, SchedulerConfig(18, max_running=1, checked=True))
    naive = NaiveHouse(size, blocks, capacities, through)
    for prompt, new, fails in asked:
        fails = fails and failing
        request = served(scheduler, prompt, new, size, fails)
        assert (request.reused, request.loaded) == naive.serve(prompt, new, fails)
        assert contents(memory) == [key(content, size) for content in naive.free]
        for tier, plain in zip(memory.tiers, naive.tiers, strict=True):
            assert [content.key for content in tier.ranked] == [key(text, size) for text in plain]
        assert [tier.counters.loaded for tier in memory.tiers] == naive.loaded


def contents(memory):
    there = [memory.pool.content(block) for block in memory.pool.free_ids()]
    return [content and content.key for content in there]


def key(text, size):
    """The key of the block that a text ends with."""
    return text and TokenKeys(list(text), size).key(len(text) // size - 1)
