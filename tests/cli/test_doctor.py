"""``kvhouse doctor`` as a command."""

import json
import subprocess
import sys
from pathlib import Path

KVHOUSE = Path(sys.executable).with_name("kvhouse")
LOG = (
    "Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-14B', "
    "dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1\n"
    "Available KV cache memory: 6.51 GiB\nGPU KV cache size: 42,656 tokens\n"
    "Maximum concurrency for 32,768 tokens per request: 1.30x\n"
)


def doctor(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVHOUSE, "doctor", *arguments], input=text, capture_output=True, text=True, check=False
    )


def test_standard_input_and_a_file_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOG)
    piped, read = doctor("-", text=LOG), doctor(str(path))
    assert piped.returncode == read.returncode == 0
    assert piped.stdout == read.stdout
    assert "Nothing is wrong here" in read.stdout
    assert "agrees" in read.stdout


def test_json_and_chinese() -> None:
    found = json.loads(doctor("-", "--json", "--lang", "zh", text=LOG).stdout)
    assert found["engine"] == "vllm"
    assert found["derived"]["agrees"]
    assert found["diagnoses"][0]["title"] == "没有发现问题"
    assert "日志中的事实" in doctor("-", "--lang", "zh", text=LOG).stdout


def test_a_log_that_says_nothing_has_its_own_exit_code() -> None:
    result = doctor("-", text="hello\n")
    assert result.returncode == 3
    assert "KV cache size" in result.stdout


def test_what_is_wrong_is_one_line() -> None:
    for arguments in (
        ("nowhere.log",),
        ("-", "--lang", "fr"),
        ("-", "--engine-option", "colour=red"),
        ("-", "--engine-option", "tp"),
        ("-", "--model", "no-such-model"),
    ):
        result = doctor(*arguments, text=LOG)
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("kvhouse: ")
