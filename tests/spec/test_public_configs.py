"""The configs that aiconfigurator-core ships: what each keeps, by sums worked out by hand.

The sums are those of the models' published descriptions: layers times tokens times elements. What
transformers' own cache holds for the same configs is compared in ``tests/oracle``.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhouse.formats import get_format
from kvhouse.spec.hf_config import read_config

DATA = Path(__file__).with_name("data") / "public_configs.jsonl"
CONFIGS = {
    row["name"]: row["config"]
    for row in map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
}

Sum = Callable[[int], int]


def heads(layers: int, kv_heads: int, dim: int) -> Sum:
    """Keys and values of every token, two bytes an element."""
    return lambda n: layers * n * kv_heads * dim * 2 * 2


def latents(layers: int, indexers: int = 0) -> Sum:
    """DeepSeek's latent of 512 + 64, and the 128 elements of an index key."""
    return lambda n: (layers * (512 + 64) + indexers * 128) * n * 2


def delta(full: int, kv_heads: int, linear: int, value_heads: int) -> Sum:
    """Qwen3.5: heads of 256; states of 128 x 128 float32 and three columns of a convolution."""
    state = value_heads * 128 * 128 * 4 + (2 * 16 * 128 + value_heads * 128) * 3 * 2
    return lambda n: full * n * kv_heads * 256 * 2 * 2 + linear * state


def mamba2(full: int, kv_heads: int, linear: int, inner: int, size: int) -> Sum:
    """Nemotron-H: heads of 128; a float32 state per channel and three columns of x, B and C."""
    state = inner * size * 4 + (inner + 2 * 8 * size) * 3 * 2
    return lambda n: full * n * kv_heads * 128 * 2 * 2 + linear * state


def windows(full: Sum, window: int, sliding: Sum) -> Sum:
    """Full layers, and sliding ones that keep at most a window."""
    return lambda n: full(n) + sliding(min(n, window))


def deepseek_v4(window_only: int, csa: int, hca: int) -> Sum:
    """One vector of 512 is key and value; entries stand for 4 tokens, with an index key, or 128.

    The tokens that wait to become the next entry keep a value and its weight each, twice as wide
    where an entry overlaps with the group before; that group is kept too, its weights in float32.
    """
    entry = 512 + 128

    def total(n: int) -> int:
        near = (window_only + csa + hca) * min(n, 128) * 512
        fours = csa * (n // 4 + min(n, 3) * 2 * 2 + (4 * 3 if n >= 4 else 0)) * entry
        return 2 * (near + fours + hca * (n // 128 + min(n, 127) * 2) * 512)

    return total


# 57 of 60 layers have an indexer, all of whose heads share one key of 128 elements.
_MINIMAX_M3: Sum = lambda n: heads(60, 4, 128)(n) + 57 * n * 128 * 2  # noqa: E731
# 69 states of 96 heads of 128 x 128 float32, with three convolutions; 24 layers attend.
_KIMI_STATE = 96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2
# Keys of 192 and values of 128; a query and the 128 tokens before it.
_MIMO_V2: Sum = lambda n: (9 * n * 4 + 39 * min(n, 129) * 8) * (192 + 128) * 2  # noqa: E731

_QWEN3_4B, _QWEN3_32B, _QWEN3_2B = heads(36, 8, 128), heads(64, 8, 128), heads(28, 8, 128)
_QWEN3_30B, _QWEN3_235B = heads(48, 4, 128), heads(94, 4, 128)
_QWEN35_27B, _QWEN35_35B = delta(16, 4, 48, 48), delta(10, 2, 30, 32)
_QWEN35_122B, _QWEN35_397B = delta(12, 2, 36, 64), delta(15, 2, 45, 64)
_GEMMA_4_26B = windows(heads(5, 2, 512), 1024, heads(25, 8, 256))
_NEMOTRON_NANO = mamba2(6, 2, 23, 64 * 64, 128)
_NEMOTRON_SUPER = mamba2(8, 2, 40, 128 * 64, 128)
_NEMOTRON_ULTRA = mamba2(12, 2, 48, 256 * 64, 128)
_STEP = windows(heads(12, 8, 128), 512, heads(33, 8, 128))
_LLAMA_4 = windows(heads(12, 8, 128), 8192, heads(36, 8, 128))

#: For each set of layers: the sum, the bytes at 4,096 and at 131,072 tokens, and who has it.
MODELS: list[tuple[Sum, int, int, str]] = [
    (
        heads(62, 8, 128),
        1_040_187_392,
        33_285_996_544,
        "MiniMaxAI/MiniMax-M2.5 MiniMaxAI/MiniMax-M2.7 nvidia/MiniMax-M2.5-NVFP4 "
        "nvidia/MiniMax-M2.7-NVFP4 Qwen/Qwen3-Coder-480B-A35B-Instruct",
    ),
    (
        _MINIMAX_M3,
        563_085_312,
        18_018_729_984,
        "MiniMaxAI/MiniMax-M3 nvidia/MiniMax-M3-NVFP4",
    ),
    (
        _QWEN3_2B,
        469_762_048,
        15_032_385_536,
        "Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B Qwen/Qwen3-VL-2B-Instruct",
    ),
    (
        _QWEN3_4B,
        603_979_776,
        19_327_352_832,
        "Qwen/Qwen3-8B Qwen/Qwen3-VL-4B-Instruct Qwen/Qwen3-VL-8B-Instruct XiaomiMiMo/MiMo-7B-Base",
    ),
    (
        _QWEN3_32B,
        1_073_741_824,
        34_359_738_368,
        "Qwen/Qwen3-32B Qwen/Qwen3-32B-FP8 Qwen/Qwen3-32B-FP8-Static-PerTensor "
        "Qwen/Qwen3-VL-32B-Instruct Qwen/Qwen3-VL-32B-Thinking",
    ),
    (
        _QWEN3_30B,
        402_653_184,
        12_884_901_888,
        "Qwen/Qwen3-30B-A3B Qwen/Qwen3-30B-A3B-FP8 Qwen/Qwen3-VL-30B-A3B-Instruct",
    ),
    (
        _QWEN3_235B,
        788_529_152,
        25_232_932_864,
        "Qwen/Qwen3-235B-A22B Qwen/Qwen3-235B-A22B-FP8 Qwen/Qwen3-VL-235B-A22B-Instruct "
        "nvidia/Qwen3-235B-A22B-NVFP4",
    ),
    (
        _QWEN35_27B,
        422_379_520,
        8_743_878_656,
        "Qwen/Qwen3.5-27B nvidia/Qwen3.6-27B-NVFP4",
    ),
    (
        _QWEN35_35B,
        148_275_200,
        2_748_743_680,
        "Qwen/Qwen3.5-35B-A3B nvidia/Qwen3.6-35B-A3B-NVFP4",
    ),
    (
        _QWEN35_122B,
        254_312_448,
        3_374_874_624,
        "Qwen/Qwen3.5-122B-A10B nvidia/Qwen3.5-122B-A10B-NVFP4",
    ),
    (
        _QWEN35_397B,
        317_890_560,
        4_218_593_280,
        "Qwen/Qwen3.5-397B-A17B nvidia/Qwen3.5-397B-A17B-NVFP4",
    ),
    (
        _MIMO_V2,
        120_130_560,
        3_045_657_600,
        "XiaomiMiMo/MiMo-V2-Flash",
    ),
    (
        latents(61),
        287_834_112,
        9_210_691_584,
        "deepseek-ai/DeepSeek-R1 deepseek-ai/DeepSeek-V3 nvidia/DeepSeek-V3.1-NVFP4 "
        "moonshotai/Kimi-K2-Instruct moonshotai/Kimi-K2.5 nvidia/Kimi-K2.5-NVFP4 "
        "nvidia/Kimi-K2.6-NVFP4 nvidia/Kimi-K2.7-Code-NVFP4",
    ),
    (
        latents(61, 61),
        351_797_248,
        11_257_511_936,
        "deepseek-ai/DeepSeek-V3.2 nvidia/DeepSeek-V3.2-NVFP4",
    ),
    (
        deepseek_v4(2, 21, 20),
        39_663_616,
        913_258_496,
        "deepseek-ai/DeepSeek-V4-Flash nvidia/DeepSeek-V4-Flash-NVFP4 "
        "sgl-project/DeepSeek-V4-Flash-FP8",
    ),
    (
        deepseek_v4(0, 30, 31),
        57_317_376,
        1_307_777_024,
        "deepseek-ai/DeepSeek-V4-Pro nvidia/DeepSeek-V4-Pro-NVFP4 sgl-project/DeepSeek-V4-Pro-FP8",
    ),
    (
        latents(78, 78),
        449_839_104,
        14_394_851_328,
        "zai-org/GLM-5 zai-org/GLM-5-FP8 nvidia/GLM-5-NVFP4 zai-org/GLM-5.1 "
        "zai-org/GLM-5.1-FP8 nvidia/GLM-5.1-NVFP4",
    ),
    (
        latents(78, 21),
        390_070_272,
        12_482_248_704,
        "zai-org/GLM-5.2 zai-org/GLM-5.2-FP8 nvidia/GLM-5.2-NVFP4 zai-org/GLM-5.3 "
        "zai-org/GLM-5.3-FP8 nvidia/GLM-5.3-NVFP4",
    ),
    (
        _GEMMA_4_26B,
        293_601_280,
        2_894_069_760,
        "google/gemma-4-26B-A4B nvidia/Gemma-4-26B-A4B-NVFP4",
    ),
    (
        windows(heads(10, 4, 512), 1024, heads(50, 16, 256)),
        1_174_405_120,
        11_576_279_040,
        "nvidia/Gemma-4-31B-IT-NVFP4",
    ),
    (
        _LLAMA_4,
        805_306_368,
        7_650_410_496,
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct meta-llama/Llama-4-Scout-17B-16E-Instruct",
    ),
    (
        heads(126, 8, 128),
        2_113_929_216,
        67_645_734_912,
        "meta-llama/Meta-Llama-3.1-405B",
    ),
    (
        heads(80, 8, 128),
        1_342_177_280,
        42_949_672_960,
        "meta-llama/Meta-Llama-3.1-70B nvidia/Llama-3.1-70B-Instruct-FP8",
    ),
    (
        heads(32, 8, 128),
        536_870_912,
        17_179_869_184,
        "meta-llama/Meta-Llama-3.1-8B mistralai/Mixtral-8x7B-v0.1",
    ),
    (
        heads(56, 8, 128),
        939_524_096,
        30_064_771_072,
        "mistralai/Mixtral-8x22B-v0.1",
    ),
    (
        heads(49, 8, 128),
        822_083_584,
        26_306_674_688,
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    ),
    (
        lambda n: latents(24)(n) + 69 * _KIMI_STATE,
        562_618_368,
        4_073_250_816,
        "moonshotai/Kimi-K3",
    ),
    (
        _NEMOTRON_NANO,
        74_248_192,
        854_388_736,
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 "
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 "
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
    ),
    (
        _NEMOTRON_SUPER,
        203_784_192,
        1_243_971_584,
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8 "
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    ),
    (
        _NEMOTRON_ULTRA,
        458_293_248,
        2_018_574_336,
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16 "
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8 "
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
    ),
    (
        mamba2(10, 8, 54, 256 * 64, 256),
        1_080_377_344,
        6_281_314_304,
        "nvidia/Nemotron-H-56B-Base-8K",
    ),
    (
        windows(heads(18, 8, 64), 128, heads(18, 8, 64)),
        155_713_536,
        4_836_556_800,
        "openai/gpt-oss-120b",
    ),
    (
        windows(heads(12, 8, 64), 128, heads(12, 8, 64)),
        103_809_024,
        3_224_371_200,
        "openai/gpt-oss-20b",
    ),
    (
        _STEP,
        270_532_608,
        6_511_656_960,
        "stepfun-ai/Step-3.7-Flash stepfun-ai/Step-3.7-Flash-FP8",
    ),
]


def test_every_config_is_in_the_table() -> None:
    named = [name for *_, names in MODELS for name in names.split()]
    assert sorted(named) == sorted(CONFIGS)
    assert len(named) == 89


@pytest.mark.parametrize(
    ("name", "by_hand", "at_4k", "at_128k"),
    [(name, *rest) for *rest, names in MODELS for name in names.split()],
)
def test_bytes(name: str, by_hand: Sum, at_4k: int, at_128k: int) -> None:
    spec = read_config(CONFIGS[name], name, "here")
    lengths = [0, 1, 3, 4, 127, 128, 129, 511, 512, 1023, 1024, 8192, 8193, 100_001]
    ours = {n: spec.kv_bytes(n, get_format("bf16"), dtype="bfloat16") for n in lengths}
    assert ours == {n: by_hand(n) for n in lengths}
    assert spec.kv_bytes(4096, get_format("bf16"), dtype="bfloat16") == at_4k
    assert spec.kv_bytes(131_072, get_format("bf16"), dtype="bfloat16") == at_128k
