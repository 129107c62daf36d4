"""docs/chapter.md, in both languages: its commands print what it shows, its Python is true."""

import doctest
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

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
