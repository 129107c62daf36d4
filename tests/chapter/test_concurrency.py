"""The reference text on what reservation costs: 24 GB cards, batch 4 and batch 12."""

from kvhouse.core.ledger import account
from kvhouse.core.memory import make_memory
from kvhouse.core.policy import Placement
from kvhouse.core.request import Request
from kvhouse.devices import Device
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.planner import plan, requests_that_fit
from kvhouse.spec import load

GIB = 2**30
SEVEN_B = KVLayout.of(load("llama-2-7b"), "fp16")


def fit(policy: str, blocks: int) -> int:
    """Requests of 500 tokens, 100 of them output, where 4096 are allowed."""
    placement = Placement(policy, SEVEN_B, 4096, 4096)
    return requests_that_fit(placement, PoolSize(blocks), 500, 100)


def test_24_gib_hold_12_reservations_of_2_gib_and_stand_idle():
    """All 24 GiB as the pool, which is what the text assumes; 4096 tokens reserve 2 GiB."""
    blocks = SEVEN_B.blocks_in(24 * GIB)
    assert fit("contiguous-max", blocks) == 12
    memory = make_memory("contiguous", SEVEN_B, blocks, 4096)
    running = [Request(i, 400, 101, generated=100) for i in range(12)]
    for request in running:
        assert memory.admit(request, alone=False) is None
        request.computed = 500
    assert memory.admit(Request(12, 500, 1), alone=False) is not None  # "out of memory"
    ledger = account(memory, running, head=None)
    assert ledger.total - ledger.used == 24 * GIB - 12 * 500 * 524_288
    assert 2.9 < ledger.used / GIB < 3.1  # "only about 3 GB is used"
    assert 20.9 < (ledger.total - ledger.used) / GIB < 21.2  # "21 GB idle"


def test_contiguous_batch_4_becomes_12_or_more_when_paged():
    blocks = SEVEN_B.blocks_in(8 * GIB)
    assert fit("contiguous-max", blocks) == 4
    assert fit("paged", blocks) >= 12


def test_kv_of_the_7b_passes_its_weights_at_batch_7():
    card = Device("card", "A card", 80 * GIB, 2e12, {"float32": 1e13}, "datasheet", "")
    result = plan("llama-2-7b", card, kv_format="fp16", context=4096)
    assert 13.4e9 < result.budget.weights < 14e9  # "about 14 GB"
    assert result.numbers.logical * 32 == 64 * GIB
    assert result.crossover_batch == 7


def test_13b_weights_do_not_fit_24_gb():
    card = Device("card", "A card", 24 * GIB, 1e12, {"float32": 1e13}, "datasheet", "")
    budget = plan("llama-2-13b", card, weight_dtype="float16", utilization=1.0).budget
    assert budget.missing > 0
    assert budget.kv == 0
