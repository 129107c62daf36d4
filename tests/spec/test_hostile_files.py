"""Files as large and as odd as they come, read in a process whose memory and time are bounded."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse.spec.json_file import MOST_BYTES

START = (
    '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 3,'
    '"num_key_value_heads": 8, "intermediate_size": 4, "vocab_size": 9,'
    '"max_position_embeddings": 9, '
)
#: What the file holds, and what is said of it; of a field that nobody reads, nothing.
FILES: dict[str, tuple[str, str]] = {
    "millions of numbers": (START + '"x": [' + "1," * 2_000_000 + "1]}", "read"),
    "a million lists": (START + '"x": [' + "[]," * 1_300_000 + "[]]}", "read"),
    "a million objects": (START + '"x": [' + "{}," * 1_300_000 + "{}]}", "read"),
    "many keys": (START + '"x": {' + ",".join(f'"{i}":0' for i in range(330_000)) + "}}", "read"),
    "one long string": (START + '"x": "' + "\\u001b" * 600_000 + '"}', "read"),
    "a million layers": (START + '"layer_types": [' + '"a",' * 10**6 + '"a"]}', "type 'a' is not"),
    "the same key": (START + '"x": {' + '"a":0,' * 600_000 + '"a":0}}', "'a' is stated twice"),
    "open lists": (START + '"x": ' + "[" * 3_900_000, "nested too deeply"),
    "closed lists": (START + '"x": ' + "[" * 10**5 + "]" * 10**5 + "}", "nested too deeply"),
    "decoders in decoders": ('{"text_config": ' * 10**5 + "1" + "}" * 10**5, "nested too deeply"),
    "millions of digits": (
        START + '"x": ' + "9" * 4_000_000 + "}",
        "number of thousands of digits",
    ),
    "a name that is none": (
        '{"architectures": ["\\u001b[31mForCausalLM"],'
        + START[1:].replace("llama", "olmo")
        + '"x":1}',
        "architecture '\\x1b[31mForCausalLM' is not supported",
    ),
}
# 512 MiB of address space and 20 s of processor time are for Python itself, for the most part.
READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from kvhouse.errors import SpecError
from kvhouse.spec import load
for path in sys.argv[1:]:
    try:
        assert load(path).max_length == 9
        print("read")
    except SpecError as error:
        print(error)
"""


def read_bounded(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_largest_size(name: str, tmp_path: Path) -> None:
    content, said = FILES[name]
    path = tmp_path / "config.json"
    path.write_text(content)
    assert path.stat().st_size <= MOST_BYTES
    line = read_bounded(path)
    assert said in line
    assert line.count("\n") == 1
    assert len(line) < len(str(path)) + 300


def test_a_file_of_100_mb_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 10**6)
    assert f"100000000 bytes; a config has at most {MOST_BYTES}" in read_bounded(path)


def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(START + '"x": 1}', encoding="utf-16")
    assert "not UTF-8 text at byte 0" in read_bounded(path)
