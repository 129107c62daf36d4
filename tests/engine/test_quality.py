"""What a format costs: the figures against transformers' own, and the order of the formats."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from kvhouse.engine.kernels.cpu.layer import CompiledLayer
from kvhouse.engine.load import load_model
from kvhouse.engine.quality import (
    VARIANTS,
    Variant,
    bundled_text,
    measure_quality,
    variants_of,
)
from kvhouse.errors import KvhouseError

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))


def text_of(count: int) -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(97, (count,), generator=generator).tolist()


def test_float32_is_transformers_own(tiny_directory):
    """Two windows with an empty cache each; 13 tokens at the end fill none."""
    loaded = load_model(tiny_directory("llama-gqa"))
    ids = text_of(2 * 40 + 13)
    losses = []
    with torch.inference_mode():
        for window in (ids[:40], ids[40:80]):
            logits = loaded.model(torch.tensor([window])).logits[0, :-1].double()
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:])))
    passes = []
    report = measure_quality(loaded, ids, (), window=40, on_pass=lambda: passes.append(1))
    (base,) = report.results
    assert math.isclose(base.perplexity, math.exp(sum(losses) / 2), rel_tol=1e-5)
    assert (base.perplexity_change, base.kl_mean, base.kl_p99, base.top1_agreement) == (0, 0, 0, 1)
    assert (report.tokens, report.window, len(passes)) == (78, 40, 2)
    assert base.bytes_per_token == 2 * 3 * 2 * 8 * 4  # K and V, layers, KV heads, head_dim, fp32


def test_nothing_is_compiled_for_a_dtype_that_is_not_computed_in(smollm2_model, monkeypatch):
    """SmolLM2 is published in bfloat16, whose prompts have code of their own."""
    compiled, seen = CompiledLayer.of, set()

    def watched(kept, dtype, *, latent):
        seen.add(dtype)
        return compiled(kept, dtype, latent=latent)

    monkeypatch.setattr(CompiledLayer, "of", watched)
    measure_quality(smollm2_model, text_of(16), [Variant("int8")], window=16)
    assert (smollm2_model.spec.dtype, smollm2_model.dtype) == ("bfloat16", "float32")
    assert seen == {"float32"}


class Rounded(DynamicCache):
    """Transformers' own cache, which keeps what was rounded to bfloat16."""

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = (each.bfloat16().float() for each in (key_states, value_states))
        return super().update(keys, values, *args, **kwargs)


def test_a_narrow_format_against_a_rounding_cache_of_transformers(tiny_directory):
    loaded = load_model(tiny_directory("llama-gqa"))
    ids = text_of(120)
    with torch.inference_mode():
        wanted, got = (
            loaded.model(torch.tensor([ids]), cache=cache, use_cache=True)
            .logits[0, :-1]
            .double()
            .log_softmax(-1)
            for cache in (DynamicCache(), Rounded())
        )
    divergence = (wanted.exp() * (wanted - got)).sum(-1).sort().values
    narrow = measure_quality(loaded, ids, (Variant("bf16"),), window=120).results[1]
    assert narrow.kl_mean == pytest.approx(float(divergence.mean()), rel=0.05)
    assert divergence[-3] <= narrow.kl_p99 * 1.05
    assert narrow.kl_p99 <= divergence[-1] * 1.05
    same = (wanted.argmax(-1) == got.argmax(-1)).double().mean()
    assert narrow.top1_agreement == pytest.approx(float(same), abs=1.5 / 119)
    losses = -got.gather(1, torch.tensor(ids[1:])[:, None])
    assert narrow.perplexity == pytest.approx(float(losses.mean().exp()), rel=1e-4)


def test_smollm2_loses_what_is_promised(smollm2_model):
    """On part of the bundled text; ``data/quality`` has the whole of it."""
    ids = smollm2_model.tokenizer(bundled_text())["input_ids"][:1024]
    variants = (Variant("fp8"), Variant("int8"), Variant("int4"), Variant("int4", rotated=True))
    report = measure_quality(smollm2_model, ids, variants, window=512)
    _, fp8, int8, int4, rotated = report.results
    assert int8.perplexity_change < 0.001
    assert 2 * rotated.kl_mean < int4.kl_mean
    assert int8.kl_mean < fp8.kl_mean < rotated.kl_mean
    assert int8.top1_agreement > fp8.top1_agreement > rotated.top1_agreement


def test_formats_by_name():
    assert variants_of(["int8"]) == (Variant("int8"), Variant("int8", rotated=True))
    assert variants_of(["int4", "fp8"], rotation=False) == (Variant("int4"), Variant("fp8"))
    assert [variant.name for variant in VARIANTS if variant.rotated] == [
        "int8, rotated",
        "int4, rotated",
    ]
    with pytest.raises(KvhouseError, match="KV format fp8 cannot be rotated"):
        variants_of(["fp8"], rotation=True)
    with pytest.raises(KvhouseError, match="unknown KV format 'int2'"):
        variants_of(["int2"])


@pytest.mark.parametrize(
    ("window", "reason"),
    [(1, "give 2 to 256"), (257, "give 2 to 256"), (60, "the text has 50 tokens")],
)
def test_windows_that_cannot_be_are_refused(tiny_directory, window, reason):
    loaded = load_model(tiny_directory("llama-gqa"))
    with pytest.raises(KvhouseError, match=reason):
        measure_quality(loaded, text_of(50), (), window=window)


def test_the_command(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("One two three four five six seven eight nine ten eleven twelve.")
    command = [KVHOUSE, "quality", "smollm2", "--text", str(text)]
    options = ["--window", "8", "--kv-format", "int8", "--no-kv-rotation", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["text"] == "a.txt"
    assert report["tokens"] == 7
    assert [each["variant"]["kv_format"] for each in report["results"]] == ["fp32", "int8"]
