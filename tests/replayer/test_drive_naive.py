"""drive + core against a simulator that shares nothing with them but the rules in words.

The naive one keeps requests as dictionaries, the contiguous pool as a list with the owner of each
block, the paged pool as a mere count, and walks token by token.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.layout import KVLayout
from kvhouse.replayer.arrivals import SteppedArrivals, TimedArrivals
from kvhouse.replayer.drive import drive
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.summary import summarise
from kvhouse.replayer.traces import TraceRequest
from kvhouse.spec.model import FullAttention, ModelSpec

BODY, HIDDEN, VOCAB, LAYERS, HEADS, DIM = 1000, 8, 30, 2, 2, 4
SPEC = ModelSpec(
    name="toy",
    architecture="Toy",
    layers=(FullAttention(HEADS, HEADS, DIM, DIM),) * LAYERS,
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    max_length=100,
    parameters=BODY + VOCAB * HIDDEN,
    matmul_parameters=BODY + VOCAB * HIDDEN,
    dtype="float32",
)
# A step takes a few milliseconds, bound by bandwidth when small and by arithmetic when large.
DEVICE = Device("toy", "toy", 2**20, 1e6, {"float32": 4e6}, "datasheet", "test")


class Naive:
    """One run of the naive simulator."""

    def __init__(self, setup, arrivals, by_time):
        self.setup, self.by_time = setup, by_time
        self.coming = list(arrivals)
        self.owner = [None] * setup["blocks"]
        self.held = {}
        self.queue, self.live, self.finished, self.rejected = [], [], [], []
        self.now, self.step, self.number, self.lost = 0.0, 0, 0, 0
        self.steps = []

    def blocks(self, tokens):
        size = self.setup["block_size"]
        return tokens // size + (tokens % size > 0)

    def first_blocks(self, tokens):
        contiguous = self.setup["policy"] == "contiguous"
        return self.blocks(self.setup["max_length"] if contiguous else tokens)

    def free(self):
        return self.setup["blocks"] - sum(self.held.values())

    def arrive(self):
        while self.coming:
            moment, prompt, out = self.coming[0]
            if moment > (self.now if self.by_time else self.step):
                return
            self.coming.pop(0)
            too_long = prompt + out > self.setup["max_length"]
            if too_long or self.first_blocks(prompt + out - 1) > self.setup["blocks"]:
                self.rejected.append((prompt, out))
                continue
            arrival = moment if self.by_time else self.now
            request = {"id": self.number, "prompt": prompt, "want": out, "out": 0, "done": 0}
            self.queue.append({**request, "arrival": arrival, "first": None, "admitted": None})
            self.number += 1

    def place(self, request, count):
        if self.setup["policy"] == "contiguous":
            size = len(self.owner)
            starts = [
                start
                for start in range(size - count + 1)
                if all(owner is None for owner in self.owner[start : start + count])
            ]
            if not starts:
                return False
            for block in range(starts[0], starts[0] + count):
                self.owner[block] = request["id"]
        elif count > self.free():
            return False
        self.held[request["id"]] = self.held.get(request["id"], 0) + count
        return True

    def drop(self, request):
        self.owner = [None if owner == request["id"] else owner for owner in self.owner]
        del self.held[request["id"]]

    def plan(self):
        budget, rows, admitted, evicted = self.setup["token_budget"], [], [], []
        for request in list(self.live):
            if request not in self.live or not budget:
                break
            count = min(request["prompt"] + request["out"] - request["done"], budget)
            extra = self.blocks(request["done"] + count) - self.held[request["id"]]
            while extra > 0 and request in self.live and not self.place(request, extra):
                victim = self.live.pop()
                self.drop(victim)
                self.lost += victim["done"]
                victim["done"] = 0
                self.queue.insert(0, victim)
                evicted.append(victim["id"])
            if request not in self.live:
                break
            rows.append((request, count))
            budget -= count
        while not evicted and self.queue and budget and len(self.live) < self.setup["max_running"]:
            head = self.queue[0]
            known = head["prompt"] + head["out"]
            spare = int(self.setup["blocks"] * self.setup["watermark"])
            if not self.live or self.setup["policy"] == "contiguous":
                spare = 0
            need = self.first_blocks(known)
            if need + spare > self.free() or not self.place(head, need):
                break
            self.live.append(self.queue.pop(0))
            if head["admitted"] is None:
                head["admitted"] = self.now
            count = min(known, budget)
            rows.append((head, count))
            budget -= count
            admitted.append(head["id"])
        return rows, admitted, evicted

    def seconds(self, rows):
        token_bytes = LAYERS * 2 * HEADS * DIM * 4
        samples = [request for request, count in rows if self.samples(request, count)]
        read = 4 * (BODY + (VOCAB * HIDDEN if samples else 0))
        flops = 2 * VOCAB * HIDDEN * len(samples)
        for request, count in rows:
            for position in range(request["done"], request["done"] + count):
                read += token_bytes
                flops += 2 * BODY + LAYERS * HEADS * 4 * DIM * (position + 1)
            read += token_bytes * request["done"]
        return max(read / 1e6, flops / 4e6)

    def samples(self, request, count):
        return request["done"] + count == request["prompt"] + request["out"]

    def take_step(self):
        rows, admitted, evicted = self.plan()
        seconds = self.seconds(rows)
        view = [
            (request["id"], request["done"], count, self.samples(request, count))
            for request, count in rows
        ]
        # A paged request may lie anywhere, so only contiguous ones have a place to compare.
        contiguous = self.setup["policy"] == "contiguous"
        starts = [self.owner.index(request["id"]) for request, _ in rows if contiguous]
        used = sum(request["done"] for request in self.live) + sum(count for _, count in rows)
        waiting = len(self.queue)
        self.steps.append((view, starts, admitted, evicted, seconds, waiting, self.free(), used))
        self.now += seconds
        self.step += 1
        for request, count in rows:
            sampled = self.samples(request, count)
            request["done"] += count
            if sampled:
                request["out"] += 1
                request["first"] = self.now if request["first"] is None else request["first"]
            if request["out"] == request["want"]:
                self.live.remove(request)
                self.drop(request)
                self.finished.append({**request, "end": self.now})

    def run(self):
        while True:
            self.arrive()
            if self.queue or self.live:
                self.take_step()
            elif not self.coming:
                return self
            elif self.by_time:
                self.now = self.coming[0][0]
            else:
                self.step = self.coming[0][0]


setups = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["paged", "contiguous"]),
        "blocks": st.integers(1, 24),
        "block_size": st.integers(1, 4),
        "max_length": st.integers(2, 24),
        "watermark": st.sampled_from([0.0, 0.05, 0.25]),
        "token_budget": st.integers(1, 24),
        "max_running": st.integers(1, 6),
    }
)
lengths = st.tuples(st.integers(1, 14), st.integers(1, 12))
gaps = st.sampled_from([0, 0, 1, 3, 40])
traffic = st.lists(st.tuples(gaps, lengths), min_size=1, max_size=10)


def real(setup, arrivals):
    layout = KVLayout.of(SPEC, "fp32", setup["block_size"])
    limits = {name: setup[name] for name in ("max_length", "token_budget", "max_running")}
    memory = make_memory(
        setup["policy"], layout, setup["blocks"], setup["max_length"], setup["watermark"]
    )
    executor = ModelledExecutor(Roofline(SPEC, layout, DEVICE))
    plans, ended = [], []
    log = drive(
        Scheduler(memory, SchedulerConfig(**limits, checked=True)),
        executor,
        arrivals,
        on_ended=ended.append,
        on_plan=plans.append,
    )
    return log, plans, ended, memory


@settings(max_examples=300)
@given(setups, traffic, st.booleans())
def test_drive_does_what_the_naive_simulator_does(setup, requests, by_time):
    moment, arrivals, naive_arrivals = 0, [], []
    for gap, (prompt, out) in requests:
        moment += gap
        at = moment * 0.002 if by_time else moment
        arrivals.append((at, TraceRequest(at, prompt, out)))
        naive_arrivals.append((at, prompt, out))
    naive = Naive(setup, naive_arrivals, by_time).run()
    given_arrivals = TimedArrivals(r for _, r in arrivals) if by_time else SteppedArrivals(arrivals)
    log, plans, ended, memory = real(setup, given_arrivals)

    intervals = [interval for interval in log.intervals if interval.step is not None]
    token_bytes = LAYERS * 2 * HEADS * DIM * 4
    assert len(plans) == len(intervals) == len(naive.steps)
    for plan, interval, expected in zip(plans, intervals, naive.steps, strict=True):
        rows, starts, admitted, evicted, seconds, waiting, free, used = expected
        assert [(r.request, r.first, r.count, r.samples) for r in plan.rows] == rows
        for start, row in zip(starts, plan.rows, strict=False):
            needed = -(-(row.first + row.count) // setup["block_size"])
            assert row.tables == (tuple(range(start, start + needed)),)
        assert list(plan.admitted) == admitted
        assert list(plan.preempted) == evicted
        assert interval.seconds == pytest.approx(seconds)
        assert interval.waiting == waiting
        ledger = interval.ledger
        assert ledger.free + ledger.external == free * setup["block_size"] * token_bytes
        assert ledger.used == used * token_bytes
    assert [
        (r.arrival, r.admitted, r.first_token, r.finished, r.generated)
        for r in ended
        if r.rejection is None
    ] == [
        pytest.approx((r["arrival"], r["admitted"], r["first"], r["end"], r["want"]))
        for r in naive.finished
    ]
    assert [
        (r.prompt_tokens, r.max_new_tokens) for r in log.requests if r.rejection is not None
    ] == naive.rejected

    result = summarise(log, memory)
    assert result.recomputed_tokens == naive.lost
    assert result.preemptions == sum(len(evicted) for _, _, _, evicted, *_ in naive.steps)
    assert result.submitted == len(requests)
    assert result.output_tokens == sum(r["want"] for r in naive.finished)
    assert result.makespan_seconds == pytest.approx(naive.now)
    assert sum(result.ledger.mean_bytes.values()) == pytest.approx(memory.total_bytes)
    assert sum(result.ledger.mean_share.values()) == pytest.approx(1)
    assert memory.free_blocks == memory.total_blocks


def test_the_traffic_of_the_property_reaches_every_case():
    """Preemption, refusal and an idle gap really occur with setups like those above."""
    setup = {
        "policy": "paged",
        "blocks": 6,
        "block_size": 2,
        "max_length": 12,
        "watermark": 0.0,
        "token_budget": 8,
        "max_running": 4,
    }
    arrivals = [TraceRequest(0.0, 3, 8)] * 3 + [TraceRequest(9.0, 11, 2), TraceRequest(9.0, 1, 1)]
    log, _, _, memory = real(setup, TimedArrivals(arrivals))
    result = summarise(log, memory)
    assert result.preemptions > 0
    assert result.recomputed_tokens > 0
    assert len(result.rejections) == 1
    assert any(interval.step is None for interval in log.intervals)
