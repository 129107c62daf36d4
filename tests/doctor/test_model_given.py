"""A model that was given and that the log contradicts is said, in a sentence, in both languages."""

from pathlib import Path

import pytest

from kvhouse.doctor.texts import texts_of

DATA = Path(__file__).with_name("data")
#: Its sizes are those of vLLM's issue threads: 64 layers of 8 KV heads of 128.
NAMES = (
    "Initializing a V1 LLM engine (v0.9.0) with config: model='Qwen/Qwen3-32B', "
    "dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=1, kv_cache_dtype=auto\n"
)


def codes(report):
    return [one.code for one in report.diagnoses]


def test_a_log_that_names_another_model(examined):
    report = examined(NAMES, "smollm2")
    (found,) = (one for one in report.diagnoses if one.code == "another_model_named")
    values = dict(found.values)
    assert (values["given"], values["given_layers"]) == ("smollm2", "30")
    assert values["given_bytes"] == f"{2 * 30 * 3 * 64 * 2:,}"  # 3 KV heads of 64
    assert (values["named"], values["named_layers"]) == ("qwen3-32b", "64")
    assert values["named_bytes"] == f"{2 * 64 * 8 * 128 * 2:,}"
    assert [fact.name for fact in found.evidence] == ["model"]
    assert "The log names qwen3-32b (64 layers" in texts_of("en").reason(found)
    assert "日志里写的是 qwen3-32b（64 层" in texts_of("zh").reason(found)


@pytest.mark.parametrize("model", [None, "qwen3-32b"])
def test_a_model_that_the_log_names_itself_is_no_contradiction(examined, model):
    assert not any(code.startswith("another_model") for code in codes(examined(NAMES, model)))


def test_figures_that_do_not_follow_from_the_model(examined):
    """llama.cpp prints 45 MiB of keys: 30 layers, 192 elements of two bytes, 4,096 cells."""
    log = (DATA / "llama-cpp-smollm2-f16.log").read_bytes()
    (found,) = (
        one for one in examined(log, "qwen3-32b").diagnoses if one.code == "another_model_seen"
    )
    values = dict(found.values)
    assert (values["figure"], values["printed"], values["ours"]) == ("k_mib", "45.0", "512")
    assert (values["count"], values["total"]) == ("3", "3")
    assert "k_mib would be 512, and the log says 45.0" in texts_of("en").reason(found)
    assert "k_mib 应为 512，而日志写的是 45.0" in texts_of("zh").reason(found)
    assert found.evidence
    assert codes(examined(log, "smollm2")) == ["fine"]


def test_one_figure_of_several_is_no_other_model(examined):
    """A layer's row may differ by what the log leaves open; its row in the table says so."""
    log = (DATA / "llama-cpp-smollm2-f16.log").read_text()
    report = examined(log.replace("K (f16):   45.00 MiB", "K (f16):   46.00 MiB"), "smollm2")
    assert [check.agrees for check in report.derived.checks].count(False) == 1
    assert codes(report) == ["fine"]
