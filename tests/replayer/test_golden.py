"""Plan logs, events, records and results are what they were before there were leaps.

``golden.json`` was recorded by stepping, from the code as it was then. Running this file as a
script records anew: only where a rule changes on purpose.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvhouse import devices, spec
from kvhouse.core.keys import BlockKeys
from kvhouse.core.memory import make_memory
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.core.tier import TierConfig
from kvhouse.costs import Roofline
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.links import Link
from kvhouse.replayer import read_trace
from kvhouse.replayer.arrivals import TimedArrivals, backlog
from kvhouse.replayer.drive import drive
from kvhouse.replayer.events import Event
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.guard import StepGuard
from kvhouse.replayer.logged import PlanFingerprint
from kvhouse.replayer.prefixes import keys_of
from kvhouse.replayer.summary import summarise
from kvhouse.replayer.traces import TraceRequest

RECORDED = Path(__file__).with_name("golden.json")
AZURE, MOONCAKE = "azure-conv-2023", "mooncake-conv"
BURST = "gamma:rate=40,cv=3,prompt=uniform(1,90),output=uniform(1,70),requests=60,seed=5"
SAME = "backlog:prompt=30,output=64,requests=40"
TALK = (
    "conversations:rate=3,turns=4,pause=1,system=64,systems=2,block=16,prompt=uniform(5,60),"
    "output=uniform(2,40),requests=60,seed=3"
)


@dataclass(frozen=True)
class Golden:
    """One scenario, small enough to be stepped through."""

    trace: str = BURST
    model: str = "llama-3-8b"
    device: str = "a100-80g"
    policy: str = "paged"
    fit: str = "first"
    kv_format: str = "bf16"
    block_size: int = 16
    blocks: int = 4000
    watermark: float = 0.05
    prefix: bool = False
    tiers: tuple[TierConfig, ...] = ()
    queued: bool = False
    limits: dict[str, Any] = field(default_factory=dict)


def tier(name: str, blocks: int, write: str = "back") -> TierConfig:
    """A tier of so many blocks of Llama-3-8B in bf16, 16 tokens each."""
    return TierConfig(name, blocks * 2**21, write=write)


SHORT = {"token_budget": 64, "max_running": 12}
SCENARIOS = {
    "azure paged": Golden(AZURE, limits={"max_length": 8192}),
    "azure paged tight": Golden(AZURE, blocks=900, limits={"max_length": 8192}),
    "azure fp8": Golden(AZURE, kv_format="fp8", blocks=2000),
    "azure contiguous": Golden(AZURE, policy="contiguous", blocks=9000),
    "azure buddy": Golden(AZURE, policy="contiguous-pow2", fit="buddy", blocks=4000),
    "burst paged": Golden(limits=SHORT),
    "burst int8": Golden(kv_format="int8", blocks=60),
    "burst int4": Golden(kv_format="int4", blocks=40, limits=SHORT),
    "burst preempting": Golden(blocks=14, watermark=0.0),
    "burst preempting, watermark": Golden(blocks=20, watermark=0.2, limits=SHORT),
    "burst priority": Golden(blocks=30, limits={**SHORT, "order": "priority"}),
    "burst shortest": Golden(blocks=30, limits={**SHORT, "order": "shortest"}),
    "burst prefill first": Golden(blocks=25, limits={**SHORT, "prefill_first": True}),
    "burst budget 5": Golden(blocks=25, limits={"token_budget": 5, "max_running": 9}),
    "burst one at a time": Golden(blocks=25, limits={"max_running": 1}),
    "burst block 1": Golden(block_size=1, blocks=300, watermark=0.0),
    "burst oracle": Golden(policy="contiguous-oracle", blocks=30),
    "burst oracle best fit": Golden(policy="contiguous-oracle", fit="best", blocks=30),
    "burst max": Golden(policy="contiguous-max", blocks=50, limits={"max_length": 200}),
    "burst pow2": Golden(policy="contiguous-pow2", blocks=40, limits=SHORT),
    "backlog": Golden(SAME, queued=True, blocks=70),
    "backlog preempting": Golden(SAME, queued=True, blocks=33, watermark=0.0),
    "backlog 70b on h100": Golden(SAME, "llama-3-70b", "h100-80g", blocks=300),
    "mooncake": Golden(MOONCAKE, "llama-3.1-8b", blocks=20000, block_size=64),
    "mooncake prefix": Golden(MOONCAKE, "llama-3.1-8b", blocks=6000, prefix=True),
    "mooncake prefix, blocks of 512": Golden(
        MOONCAKE, "llama-3.1-8b", blocks=400, block_size=512, prefix=True
    ),
    "talk prefix": Golden(TALK, prefix=True, blocks=80),
    "talk prefix tight": Golden(TALK, prefix=True, blocks=24, watermark=0.0, limits=SHORT),
    "talk prefix queued": Golden(TALK, prefix=True, queued=True, blocks=60, limits=SHORT),
    "tiers back": Golden(TALK, prefix=True, blocks=24, tiers=(tier("host", 90),)),
    "tiers through": Golden(
        TALK, prefix=True, blocks=24, tiers=(tier("host", 20, "through"), tier("nvme", 200))
    ),
    "tiers own": Golden(blocks=16, watermark=0.0, tiers=(tier("host", 50),)),
    "window": Golden(model="gemma-3-27b", blocks=300, device="h100-80g"),
    "window tight": Golden(model="mimo-v2-flash", blocks=40, watermark=0.0),
    "window contiguous": Golden(model="gpt-oss-20b", policy="contiguous-oracle", blocks=300),
    "window prefix": Golden(TALK, model="gemma-3-27b", prefix=True, blocks=160),
    "chunk": Golden(MOONCAKE, "llama-4-scout", blocks=20000, block_size=256, limits=SHORT),
    "state": Golden(model="mamba-2.8b", blocks=7, limits=SHORT),
    "state and attention": Golden(model="jamba-v0.1", blocks=16, watermark=0.0),
    "state, attention, slots": Golden(model="qwen3-next-80b-a3b", blocks=60, limits=SHORT),
    "latent": Golden(model="deepseek-v2-lite", blocks=20, watermark=0.0),
    "sparse": Golden(model="deepseek-v3.2", blocks=40, watermark=0.0),
    "compressed": Golden(model="deepseek-v4-flash", blocks=400, block_size=256),
    "experts": Golden(model="mixtral-8x7b", blocks=30, watermark=0.1),
}


@dataclass
class Outcome:
    """What a drive gave, as hashes."""

    plans: str
    events: str
    records: str
    result: str


def play(golden: Golden, *, plans: bool) -> Outcome:
    """Drive a scenario; with ``plans`` it is stepped and their hash is taken too."""
    log = PlanFingerprint()
    told = hashlib.sha256()
    model, device = spec.load(golden.model), devices.get(golden.device)
    layout = KVLayout.of(model, golden.kv_format, golden.block_size)
    config = SchedulerConfig(**{"max_length": model.max_length, **golden.limits})
    memory = make_memory(
        golden.policy,
        layout,
        PoolSize(golden.blocks, config.max_running * bool(layout.slot_bytes)),
        config.max_length,
        golden.watermark,
        in_flight=config.token_budget,
        share=golden.prefix,
        tiers=golden.tiers,
        fit=golden.fit,
    )
    roofline = Roofline(model, layout, device)
    links = [Link(2e10, 1e-5)] * len(golden.tiers)
    executor = ModelledExecutor(roofline, links)
    requests = read_trace(golden.trace).requests[:60]

    def keys(request: TraceRequest) -> BlockKeys | None:
        return keys_of(request, layout.block_size)

    def tell(event: Event) -> None:
        told.update(event.encode())

    driven = drive(
        Scheduler(memory, config),
        StepGuard(executor, roofline, links=links),
        backlog(requests) if golden.queued else TimedArrivals(requests),
        keys=keys if golden.prefix else None,
        on_plan=log.add if plans else None,
        on_event=tell,
    )
    result = summarise(driven, memory, timeline=13).to_dict()
    return Outcome(
        log.digest,
        told.hexdigest(),
        _hash([asdict(record) for record in driven.requests]),
        _hash(result),
    )


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def record() -> dict[str, dict[str, str]]:
    """Step through every scenario."""
    return {name: asdict(play(golden, plans=True)) for name, golden in SCENARIOS.items()}


def recorded() -> dict[str, dict[str, str]]:
    """What was recorded."""
    found: dict[str, dict[str, str]] = json.loads(RECORDED.read_text())
    return found


def test_every_scenario_is_recorded():
    assert recorded().keys() == SCENARIOS.keys()
    assert len(SCENARIOS) >= 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_stepping_gives_what_was_recorded(name):
    assert asdict(play(SCENARIOS[name], plans=True)) == recorded()[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_leaping_gives_what_was_recorded(name):
    outcome = asdict(play(SCENARIOS[name], plans=False))
    for what in ("events", "records", "result"):
        assert outcome[what] == recorded()[name][what], what


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(), indent=1) + "\n")
