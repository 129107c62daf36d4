"""A short soak: bursts, wrong requests and clients that go away, and in the end nothing is held."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from pathlib import Path

import httpx2

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"
REQUESTS = 80
RATE = 60  # a second, more than it can do, so that requests wait and are preempted


def benchmark():
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # where its dataclass looks for its types
    spec.loader.exec_module(module)
    return module


def test_rough_traffic_leaves_nothing_and_every_answer_is_right(tiny, serving):
    chance = random.Random(3)
    engine = tiny(400, worded=True)
    answers = {}
    for number in range(24):
        own = " ".join(f"w{chance.randrange(90)}" for _ in range(chance.randint(1, 40)))
        prompt = f"{'w1 w2 w3 w4 ' * 5}{own}" if number % 2 else own
        most = chance.randint(1, 40)
        answers[prompt] = most, engine.generate([prompt], most)[0].text
    assert len({text for _, text in answers.values()}) > 18
    # Room for about six requests at a time, and for more only until they grow.
    server = serving(tiny(70, worded=True, prefix_cache=True, watermark=0.0), max_queue=1000)

    async def send():
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=server.url, timeout=100, limits=limits) as client:
            soak = benchmark().Soak(client, "tiny", answers, seed=5)
            await soak.open(RATE, REQUESTS)
            return soak.outcome

    outcome = asyncio.run(send())
    assert outcome.wrong == []
    counts = outcome.counts
    assert set(counts) <= {"right", "refused", "left", "done before it was left"}
    assert counts["right"] > REQUESTS / 2
    assert counts["left"] > 0
    assert counts["refused"] > 0
    state = server.until_free()
    assert state["totals"]["preemptions"] > 0
    assert state["totals"]["found_tokens"] > 0
