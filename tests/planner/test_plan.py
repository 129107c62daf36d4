"""``plan`` against figures worked out by hand for Llama-2-7B: 32 layers, 4096 wide, MHA."""

import pytest

from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.planner import plan
from kvhouse.planner.cases import case_for
from kvhouse.planner.report import Questions, report
from kvhouse.replayer import replay
from kvhouse.spec import find_gguf

GIB = 2**30
CARD = Device("card", "A card", 24 * GIB, 1e12, {"float16": 1e14, "float32": 1e13}, "datasheet", "")
TOKEN = 2 * 32 * 4096 * 2  # 524,288 bytes
PARAMETERS = 6_738_415_616  # the published size of Llama-2-7B
WEIGHTS = PARAMETERS * 2
# A step looks rows of the embedding table up and multiplies with all but it and the 65 norms.
READ_WEIGHTS = (PARAMETERS - 32_000 * 4096 - 65 * 4096) * 2


def test_bytes_are_exact():
    result = plan("llama-2-7b", CARD, kv_format="fp16", context=1000, max_length=4096)
    assert result.bytes_per_token == TOKEN
    assert result.bytes_per_block == 16 * TOKEN
    assert result.numbers.logical == 1000 * TOKEN
    assert result.budget.weights == WEIGHTS
    assert result.budget.kv == int(24 * GIB * 0.9) - WEIGHTS
    assert result.blocks == result.budget.kv // (16 * TOKEN)
    assert result.pool_bytes == result.blocks * 16 * TOKEN


def test_policies_side_by_side():
    contiguous, pow2, oracle, paged = plan(
        "llama-2-7b",
        CARD,
        kv_memory=8 * GIB,
        context=500,
        new_tokens=200,
        max_length=4096,
        watermark=0.0,
    ).fits
    # 8 GiB are 1024 blocks; a reservation takes 256 of them and 500 tokens take 32.
    assert (contiguous.policy, contiguous.requests, contiguous.held_bytes) == (
        "contiguous-max",
        4,
        2 * GIB,
    )
    # 300 tokens of prompt and 256 for the output take 35 blocks.
    assert (pow2.policy, pow2.requests, pow2.held_bytes) == ("contiguous-pow2", 29, 560 * TOKEN)
    assert (oracle.policy, oracle.requests, oracle.held_bytes) == (
        "contiguous-oracle",
        32,
        512 * TOKEN,
    )
    assert (paged.policy, paged.requests, paged.held_bytes) == ("paged", 32, 512 * TOKEN)
    assert contiguous.idle_bytes == 8 * GIB - 4 * 500 * TOKEN
    assert paged.idle_bytes == 8 * GIB - 32 * 500 * TOKEN


def test_decode_floor_counts_keys_values_and_weights():
    result = plan("llama-2-7b", CARD, kv_memory=8 * GIB, context=500, weight_dtype="float16")
    one = result.speeds[0]
    assert one.batch == 1
    assert one.kv_bytes == 500 * TOKEN
    assert one.weight_bytes == READ_WEIGHTS
    assert one.kv_seconds == pytest.approx(500 * TOKEN / 1e12)
    assert one.seconds == pytest.approx((501 * TOKEN + READ_WEIGHTS) / 1e12)
    assert one.bound == "bandwidth"


def test_weights_that_do_not_fit_leave_no_pool_and_say_what_is_missing():
    budget = plan("llama-2-13b", CARD).budget
    assert budget.kv == 0
    assert budget.missing == 13_015_864_320 * 2 - int(24 * GIB * 0.9)


def test_the_crossover_is_the_first_batch_whose_kv_outweighs_the_weights():
    batch = plan("llama-2-7b", CARD, context=4096).crossover_batch
    assert (batch - 1) * 4096 * TOKEN <= WEIGHTS < batch * 4096 * TOKEN


def test_a_given_pool_that_the_device_lacks_is_said():
    budget = plan("llama-2-7b", CARD, kv_memory=64 * GIB).budget
    assert budget.missing == WEIGHTS + 64 * GIB - int(24 * GIB * 0.9)


def test_plan_and_replay_size_the_pool_alike_from_mixed_weights():
    model, device = find_gguf("smollm2"), CARD
    planned = plan(model, device)
    replayed = replay("mooncake-conv", model, device).pool
    assert planned.budget.weights == 96_576_768  # the file's tensors, as the file lists them
    assert planned.weight_dtype == "as stored"
    assert planned.pool_bytes == replayed.bytes
    assert planned.speeds[0].weight_bytes <= 96_576_768


def test_a_device_without_a_figure_for_the_dtype_says_whose_it_takes():
    assert plan("llama-2-7b", CARD, weight_dtype="float16").compute_dtype == "float16"
    assert plan("llama-2-7b", CARD, weight_dtype="bfloat16").compute_dtype == "float32"


def test_prefill_is_bound_by_compute():
    result = plan("llama-2-7b", CARD, context=4096)
    matrices = 2 * (PARAMETERS - 2 * 32_000 * 4096 - 65 * 4096) * 4096 + 2 * 32_000 * 4096
    attention = 32 * 4 * 4096 * 4096 * 4097 // 2
    assert result.prefill_bound == "compute"
    assert result.prefill_seconds == pytest.approx((matrices + attention) / 1e14)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"context": 0}, "context 0: must lie between 1 and max_length 4096"),
        ({"context": 5000}, "context 5000: must lie between 1 and max_length 4096"),
        ({"max_length": 0}, "max_length 0: llama-2-7b takes 1 to 4,096 tokens"),
        ({"max_length": 4097}, "max_length 4,097: llama-2-7b takes 1 to 4,096 tokens"),
        ({"kv_memory": 1000}, "smaller than one block: a block of 16 tokens takes 8,388,608 bytes"),
        ({"kv_format": "int3"}, "unknown KV format 'int3'"),
        ({"weight_dtype": "int3"}, "unknown weight dtype 'int3'"),
        ({"block_size": 0}, "block size 0"),
        ({"kv_memory": 0}, "KV memory of 0 bytes"),
        ({"utilization": 1.5}, "utilization 1.5"),
        ({"watermark": 1.0}, "watermark 1.0"),
    ],
)
def test_impossible_input_is_named(options, reason):
    with pytest.raises(KvhouseError, match=reason):
        plan("llama-2-7b", CARD, **options)


@pytest.mark.parametrize(
    "name",
    ["kv_memory", "context", "new_tokens", "max_length", "block_size", "token_budget", "tp"],
)
@pytest.mark.parametrize("value", [1.5, 16.0, float("inf"), float("nan"), "16", [16]])
def test_bytes_and_tokens_are_whole(name, value):
    with pytest.raises(KvhouseError, match=f"{name} .*: give a whole number"):
        plan("llama-2-7b", CARD, **{name: value})


@pytest.mark.parametrize("value", [None, 5, b"x", [], {}])
def test_what_is_no_name_is_refused(value):
    with pytest.raises(KvhouseError, match=r"model .*: give a name or a path"):
        plan(value, CARD)
    with pytest.raises(KvhouseError, match=r"device .*: give a name or a Device"):
        plan("llama-2-7b", value)


def test_a_short_name_of_a_policy_is_written_out():
    """So that what is told of it is found under the name that every plan uses."""
    case = case_for("llama-2-7b", CARD, policy="contiguous")
    told = report(case, Questions(grid=True))
    assert told.remedies.policy == told.grid.policy == "contiguous-max"
    assert told.remedies.requests == told.plan.fits[0].requests
