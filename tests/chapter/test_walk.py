"""docs/chapter.md, in both languages: its commands print what it shows, its Python is true."""

import doctest
import os
import re
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from kvhouse.planner import plan

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = ("chapter.md", "chapter.zh-CN.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "[…]"
SHOWING = ("bash", "text")


def fences(document):
    return FENCE.findall((DOCS / document).read_text())


def shown(document):
    """Each command with the output below it."""
    pairs = pairwise(fences(document))
    return [(body, text) for (lang, body), (below, text) in pairs if (lang, below) == SHOWING]


COMMANDS = shown(DOCUMENTS[0])


def squeezed(text):
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def test_both_languages_show_the_same_commands_outputs_and_python():
    assert fences(DOCUMENTS[0]) == fences(DOCUMENTS[1])


def test_every_command_has_its_output():
    languages = [language for language, _ in fences(DOCUMENTS[0])]
    assert languages.count("bash") == languages.count("text") == len(COMMANDS) > 0


@pytest.mark.parametrize(("command", "text"), COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_prints_what_is_shown(command, text, tmp_path):
    """Padding and blank lines are taken out, and […] stands for what is left out."""
    here = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "80", "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    printed = f"\n{squeezed(done.stdout)}\n"
    first, *others = (f"\n{squeezed(part)}\n" for part in text.split(LEFT_OUT))
    assert printed.startswith(first.rstrip("\n"))
    at = len(first) - 1
    for part in others:  # whole lines, in this order
        at = printed.index(part, at) + len(part) - 1 if part.strip() else len(printed) - 1
    assert at == len(printed) - 1


def test_the_python_gives_what_it_says():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    names: dict[str, object] = {}
    for language, body in fences(DOCUMENTS[0]):
        if language == "python":
            test = parser.get_doctest(body, names, "chapter.md", "chapter.md", 0)
            runner.run(test, clear_globs=False)
            names = test.globs
    assert (runner.failures, runner.tries) == (0, 19)


def test_what_the_prose_says_beside_the_outputs():
    """In both languages, so that it is looked at where a figure changes."""
    seven = partial(plan, "llama-2-7b", kv_format="fp16", context=500, new_tokens=100)
    card = fits(seven("rtx-3090"))
    decimal = fits(seven("a100-80g", kv_memory=24 * 10**9))
    longer = fits(seven("rtx-3090", context=1457))
    assert (card["paged"], decimal["contiguous-max"], longer["paged"]) == (34, 11, 11)
    alone = plan("qwen3-8b", "h100-80g", context=8192).speeds[0]
    read = (alone.kv_bytes + alone.weight_bytes) / 2**30
    for document in DOCUMENTS:
        text = (DOCS / document).read_text()
        assert all(number in text for number in ("34", "`--kv-memory 24GB`", "1,456"))
        assert f"{read:.1f} GiB" in text


def fits(answer):
    return {fit.policy: fit.requests for fit in answer.fits}


def test_the_walk_s_demos_are_those_of_the_list_which_leads_to_it():
    listed = subprocess.run(
        [Path(sys.executable).with_name("kvhouse"), "demo"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    walk = (DOCS / DOCUMENTS[0]).read_text()
    assert "docs/chapter.md" in listed
    names = set(re.findall(r"kvhouse demo (\w+)", walk))
    assert {"growth", "cache", "warehouse", "oom"} <= names
    assert names <= {line.split()[0] for line in listed.splitlines() if line.strip()}
