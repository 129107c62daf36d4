"""Pools from public log lines: the numbers of blocks stand in the threads that they are from."""

import pytest

from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.from_log import blocks_from_log
from kvhouse.spec import load

SMOLLM2 = load("smollm2")

# vllm-project/vllm 13596 (V1), 6746 (V0), and a vLLM on CPU with SmolLM2-135M in 4 GiB, whose
# 186,368 tokens are 1,456 blocks of 128.
V1 = "INFO 02-20 10:11:12 kv_cache_utils.py:522] GPU KV cache size: 2,042,016 tokens\n"
V0 = "INFO 07-24 gpu_executor.py:102] # GPU blocks: 4962, # CPU blocks: 4161\n"
CPU = "INFO CPU KV cache size: 186,368 tokens\n"


@pytest.mark.parametrize(
    ("text", "block_size", "blocks"),
    [
        (V1, 16, 127_626),
        (V0, 16, 4_962),
        (CPU, 128, 1_456),
        ("cache_config num_gpu_blocks=77,\n", 16, 77),
        (V0 + "restarted\n" + V1, 16, 127_626),
        ("\x1b[31m" + V0, 16, 4_962),
    ],
)
def test_blocks_are_those_of_the_log(tmp_path, text, block_size, blocks):
    path = tmp_path / "engine.log"
    path.write_text("starting\n" + text + "serving\n")
    assert blocks_from_log(str(path), KVLayout.of(SMOLLM2, block_size=block_size)) == blocks


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing of use\n", "names no pool: looked for '# GPU blocks: N'"),
        ("# GPU blocks: , # CPU blocks: ,\nGPU KV cache size: , tokens\n", "names no pool"),
        (f"# GPU blocks: {'9' * 6000}\nKV cache size: {'9' * 6000} tokens\n", "names no pool"),
        ("GPU KV cache size: 155,842 tokens\n", "155,842 tokens are no whole blocks of 16"),
    ],
)
def test_what_gives_no_number_is_refused(tmp_path, text, reason):
    path = tmp_path / "engine.log"
    path.write_text(text)
    with pytest.raises(KvhouseError, match=reason):
        blocks_from_log(str(path), KVLayout.of(SMOLLM2))


def test_a_log_that_is_not_there(tmp_path):
    with pytest.raises(KvhouseError, match="cannot be read: No such file"):
        blocks_from_log(str(tmp_path / "none.log"), KVLayout.of(SMOLLM2))


def test_tokens_of_a_hybrid_give_no_number(tmp_path):
    path = tmp_path / "engine.log"
    path.write_text("GPU KV cache size: 260,000 tokens\n")
    with pytest.raises(KvhouseError, match="several kinds of layers is a rounded capacity"):
        blocks_from_log(str(path), KVLayout.of(load("gemma-3-27b")))
