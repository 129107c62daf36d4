"""The comparison with other calculators, with two stand-ins whose mistakes are known."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "against_calculators.py"

HF_MEM = """
def compute_safetensors_kv_cache_size(config, dtype, tokens):
    assert dtype == "BF16"
    layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
    return 2 * layers * heads * config["head_dim"] * tokens * 2
"""
KVFIT = """
class Estimate:
    def __init__(self, total): self.total_bytes = total
def estimate_cache(config, context_tokens, kv_bytes):
    if config["model_type"] == "gemma2":
        return Estimate(2 * 6 * 2 * 16 * min(context_tokens, 100) * kv_bytes)
    if config["model_type"] == "llama":
        return Estimate(12345.0)
    if config["model_type"] == "qwen3_next":  # without the states
        return Estimate(2 * 1 * 2 * 16 * context_tokens * kv_bytes)
    raise ValueError("never seen")
"""
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 9,
    "intermediate_size": 8,
    "max_position_embeddings": 2**20,
}
CONFIGS = {
    "plain": {"model_type": "llama", "num_hidden_layers": 3, **SIZES},
    "sliding": {"model_type": "gemma2", "num_hidden_layers": 6, "sliding_window": 100, **SIZES},
    "hybrid": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        **SIZES,
        "linear_num_key_heads": 2,
    },
    "unknown": {"model_type": "new", "num_hidden_layers": 3, **SIZES},
}


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    for package, module, code in (
        ("hf_mem", "safetensors/kv_cache.py", HF_MEM),
        ("kvfit", "architectures.py", KVFIT),
    ):
        file = tmp_path / "site" / package / module
        file.parent.mkdir(parents=True)
        file.write_text(code)
        about = tmp_path / "site" / f"{package}-9.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 9\n")
    file = tmp_path / "configs.jsonl"
    rows = [json.dumps({"name": name, "config": config}) for name, config in CONFIGS.items()]
    file.write_text("\n".join(rows))
    done = subprocess.run(
        [sys.executable, SCRIPT, "--configs", file, "--python", sys.executable],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def rows_of(lines: list[str], name: str) -> list[list[str]]:
    return [line.split() for line in lines if line.startswith(name)]


def test_rows_reasons_and_summary(lines: list[str]) -> None:
    assert lines[0].endswith("hf-mem 9, kvfit 9")
    short, _ = rows_of(lines, "plain")
    gib = f"{3 * 2 * 2 * 16 * 4096 * 2 / 2**30:.3f}"
    assert short[1:5] == ["4,096", gib, gib, "1.000x"]
    text = "\n".join(lines)
    assert text.count("kvfit differs for a reason that no simple count explains") == 2
    both = "in 6 layers, but of these 3 are sliding window that keeps 100, 3 are full attention of"
    assert text.count(f"hf-mem counts keys and values of 2 heads of 16 for all tokens {both}") == 2
    assert (
        text.count(f"kvfit counts keys and values of 2 heads of 16 for the last 100 tokens {both}")
        == 2
    )
    assert "kvfit leaves out what is needed as: state" in text
    assert (
        "hf-mem counts keys and values of 2 heads of 16 for all tokens in 4 layers, but of" in text
    )
    assert text.count("kvhouse refuses: unknown: model type 'new' is not supported") == 2
    start = next(i for i, line in enumerate(lines) if line.startswith("131,072 tokens"))
    assert lines[start] == "131,072 tokens: kvhouse reads 3 of 4 configs"
    assert lines[start + 1].startswith(
        "  hf-mem reads 3 and differs by more than 2 % on 2; at worst"
    )
    assert lines[start + 2].startswith("  kvfit reads 3 and differs by more than 2 % on")
