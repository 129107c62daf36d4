"""docs/replay.md, in both languages: its commands and its Python work, its lines are true."""

import doctest
import json
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kvhouse.core.policy import FITS, POLICIES
from kvhouse.core.queue import ORDERS
from kvhouse.core.replacement import REPLACEMENTS
from kvhouse.core.tier import WRITES
from kvhouse.replayer.moments.warehouse import Warehouse

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = ("replay.md", "replay.zh-CN.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KVHOUSE = Path(sys.executable).with_name("kvhouse")


def blocks(document, language):
    return [body for lang, body in FENCE.findall((DOCS / document).read_text()) if lang == language]


@pytest.mark.parametrize("language", ["bash", "python", "json"])
def test_both_languages_show_the_same_code(language):
    assert blocks(DOCUMENTS[0], language) == blocks(DOCUMENTS[1], language) != []


def test_both_languages_state_the_same_shares():
    shares = [re.findall(r"[\d.]+ %", (DOCS / name).read_text()) for name in DOCUMENTS]
    assert shares[0] == shares[1] != []


def test_the_commands_work(tmp_path):
    for line in "".join(blocks("replay.md", "bash")).splitlines():
        done = subprocess.run(
            [KVHOUSE, *shlex.split(line)[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["log.jsonl", "page.html", "results.parquet", "warehouse.png"]
    # The picture that is shown was made so, and is not larger than a page should load.
    shown = DOCS / "pictures" / "warehouse.png"
    assert shown.stat().st_size < 150_000
    assert size_of(shown) == size_of(tmp_path / "warehouse.png")


@pytest.mark.parametrize("document", ["README.md", "README.zh-CN.md", *DOCUMENTS])
def test_what_is_said_of_the_picture_is_what_was_replayed(document):
    """The command's backlog; 12 requests and 24 GiB are the chapter's, and 2.9 of them are used."""
    old, new = (Warehouse().setup(policy).drive() for policy in ("contiguous-max", "paged"))
    used = old.ledger.mean_bytes["used"] / 2**30
    expected = ["12", "24", f"{used:.1f}", f"{new.running.peak}"]
    assert (old.running.peak, old.pool.bytes) == (12, 24 * 2**30)
    folder = DOCS if document in DOCUMENTS else DOCS.parent
    (shown,) = re.findall(r"!\[(.*?)\]\(\S*warehouse\.png\)", (folder / document).read_text())
    numbers = re.findall(r"\d+(?:\.\d+)?", shown)
    assert [number for number in numbers if number != "2"] == expected


def size_of(image):
    """Width and height of a PNG."""
    return struct.unpack(">II", image.read_bytes()[16:24])


def test_the_python_gives_what_it_says():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    names: dict[str, object] = {}
    for block in blocks("replay.md", "python"):
        test = parser.get_doctest(block, names, "replay.md", "replay.md", 0)
        runner.run(test, clear_globs=False)
        names = test.globs
    assert (runner.failures, runner.tries) == (0, 13)


def test_the_event_that_is_shown_has_the_keys_of_the_table():
    (shown,) = blocks("replay.md", "json")
    text = (DOCS / "json.md").read_text()
    table = text[text.index("## Events") : text.index("## kvhouse trace")]
    assert all(f"| `{key}` |" in table for key in json.loads(shown))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_remedies_that_are_shown_are_what_is_printed(document):
    """Padding and blank lines are taken out, and […] stands for what is left out."""
    shown, other = (line for line in blocks(document, "bash")[1].splitlines())
    printed = [remedies(line) for line in (shown, other)]
    (text,) = blocks(document, "text")
    parts = text.split("[…]\n")
    assert len(parts) > 2
    at = 0
    for part in parts:  # in this order
        at = printed[0].index(squeezed(part), at)
    assert printed[0].startswith(squeezed(parts[0]))
    assert printed[0].endswith(squeezed(parts[-1]))
    answer = printed[1].splitlines()[-1]
    assert answer in (DOCS / document).read_text().replace("\n", " ")


def remedies(line):
    done = subprocess.run(
        [KVHOUSE, *shlex.split(line)[1:]],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "80"},
    )
    return squeezed(done.stdout)


def squeezed(text):
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_choice_is_named(document):
    text = (DOCS / document).read_text()
    assert all(f"`{name}`" in text for name in (*POLICIES, *FITS, *ORDERS, *REPLACEMENTS, *WRITES))
