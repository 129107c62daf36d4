"""The documents agree with each other and with the repository."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KVHOUSE = Path(sys.executable).with_name("kvhouse")
READMES = ("README.md", "README.zh-CN.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: Paths and options that only make sense on the machine of whoever wrote them.
PRIVATE = re.compile(
    r"(?<![\w.:/-])/(?:work|root|home|opt|mnt|Users)/|--(?:extra-)?index-url|--find-links"
)


def repository_files() -> list[Path]:
    """Every file that git tracks or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def blocks(document: str, language: str) -> list[str]:
    return [body for lang, body in FENCE.findall((ROOT / document).read_text()) if lang == language]


def commands(document: str) -> list[str]:
    lines = "".join(blocks(document, "bash")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith("kvhouse ")]


def headings(document: Path) -> list[int]:
    """Levels of the headings, in order."""
    prose = FENCE.sub("", document.read_text())
    return [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]


def tree_paths(document: str) -> list[str]:
    """The paths in the source tree: two spaces of indentation a level, a name, a description."""
    (tree,) = (body for body in blocks(document, "text") if body.startswith("src/kvhouse/"))
    parents: list[str] = []
    paths = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [line.split()[0]]
        paths.append("".join(parents))
    return paths


@pytest.mark.parametrize(
    "translation", sorted(ROOT.glob("**/[!.]*.zh-CN.md")), ids=lambda path: path.name
)
def test_a_translation_has_the_original_s_structure(translation: Path) -> None:
    original = translation.with_name(translation.name.replace(".zh-CN", ""))
    assert headings(translation) == headings(original)
    languages = [language for language, _ in FENCE.findall(original.read_text())]
    assert [language for language, _ in FENCE.findall(translation.read_text())] == languages


@pytest.mark.parametrize("language", ["bash", "python"])
def test_both_readmes_show_the_same_code(language: str) -> None:
    originals, translated = (blocks(document, language) for document in READMES)
    assert originals
    without_comments = [
        [re.sub(r"\s+# .*", "", block) for block in group] for group in (originals, translated)
    ]
    assert without_comments[0] == without_comments[1]


def test_the_readme_s_commands_have_the_options_they_show() -> None:
    shown = commands("README.md")
    assert {line.split()[1] for line in shown} >= {"plan", "replay", "run", "demo"}
    for name in {line.split()[1] for line in shown}:
        help_text = subprocess.run(
            [KVHOUSE, name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        options = {
            word
            for line in shown
            for word in shlex.split(line)
            if line.split()[1] == name and word.startswith("--")
        }
        assert options <= set(re.findall(r"--[\w-]+", help_text)), name


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in commands("README.md")
        if line.startswith(("kvhouse plan ", "kvhouse replay "))
    ],
)
def test_the_readme_s_plans_and_replays_work(line: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [KVHOUSE, *shlex.split(line)[1:]], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("document", READMES)
@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-3-27b"])
def test_the_plan_that_a_readme_shows_is_what_the_command_prints(document: str, model: str) -> None:
    (shown,) = (body for body in blocks(document, "text") if body.startswith(f"{model} "))
    first = next(line for line in commands(document) if line.startswith(f"kvhouse plan {model} "))
    printed = subprocess.run(
        [KVHOUSE, *shlex.split(first)[1:]],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # Padding and blank lines are taken out, and […] stands for what is left out.
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    parts = [part.strip() for part in shown.split("[…]")]
    whole, at = "\n".join(lines), 0
    kept = [
        "\n".join(" ".join(line.split()) for line in part.splitlines() if line.strip())
        for part in parts
    ]
    for part in kept:  # in this order
        at = whole.index(part, at) + len(part)
    assert whole.startswith(kept[0])
    assert whole.endswith(kept[-1])  # an empty one where […] stands last
    assert len(kept) > 1 or kept[0] == whole


def test_the_readme_s_python_gives_what_it_says() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    for block in blocks("README.md", "python"):
        runner.run(parser.get_doctest(block, {}, "README.md", "README.md", 0))
    assert runner.tries > 0
    assert runner.failures == 0


def test_both_readmes_show_the_same_tree_and_all_of_it_exists() -> None:
    paths, translated = (tree_paths(document) for document in READMES)
    assert paths == translated
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_tree_has_every_room() -> None:
    package = ROOT / "src" / "kvhouse"
    rooms = {path.name for path in package.iterdir() if path.is_dir()} - {"__pycache__"}
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    children = [path.removeprefix("src/kvhouse/") for path in tree_paths("README.md")]
    assert {f"{room}/" for room in rooms} | modules <= set(children)


def test_the_tree_has_every_file_once() -> None:
    """But for an ``__init__.py``, which is shown only where it holds more than names."""
    package = ROOT / "src" / "kvhouse"
    shown = [path for path in tree_paths("README.md") if not path.endswith("/")]
    assert len(shown) == len(set(shown))
    files = {
        path.relative_to(ROOT).as_posix()
        for path in repository_files()
        if path.is_relative_to(package) and path.name != "__init__.py"
    }
    assert files <= set(shown)


def test_relative_links_lead_somewhere() -> None:
    dead = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in repository_files()
        if document.suffix == ".md"
        for target in LINK.findall(FENCE.sub("", document.read_text()))
        if "://" not in target and not target.startswith(("#", "mailto:"))
        if not (document.parent / target.split("#")[0]).exists()
    ]
    assert dead == []


def test_no_text_speaks_of_one_machine() -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if path != Path(__file__):
            found += [f"{path.relative_to(ROOT)}: {hit}" for hit in PRIVATE.findall(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("see /work/main", True),
        ("pip install --find-links wheels", True),
        ("https://example.org/opt/file and /sys/fs", False),
    ],
)
def test_a_machine_s_path_is_seen(text: str, private: bool) -> None:
    assert bool(PRIVATE.search(text)) is private
