"""Help that reads on a screen of 80 columns."""

import os
import re
import subprocess
import sys

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from kvhouse.cli import app


def leaves(group, path=()):
    """The names of every command, below groups too."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


def shown(command, columns):
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", [*leaves(typer.main.get_command(app))], ids=" ".join)
def test_a_command_s_options_have_half_of_80_columns_for_what_they_do(command):
    lines = shown(command, 80)
    assert max(map(len, lines)) <= 80
    options = lines[lines.index("Options:") + 1 :]
    starts = [len(line) - len(line.lstrip()) for line in options if not line.startswith("  -")]
    starts += [re.search(r"\S  +(?=\S)", line).end() for line in options if "   " in line.strip()]
    assert max(starts, default=0) <= 40
    assert any(line.startswith("  --help") for line in options)


def test_a_wide_screen_is_used():
    """In a process of its own, since typer's runner holds click to 80 columns."""
    code = "from kvhouse.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "replay", "--help"],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 80 < max(map(len, done.stdout.splitlines())) <= 100


def test_what_commands_do_is_told_whole_on_80_columns():
    text = " ".join(" ".join(shown((), 80)).replace("│", " ").split())
    for command in typer.main.get_command(app).commands.values():
        assert " ".join(command.help.split("\n\n")[0].split()) in text
