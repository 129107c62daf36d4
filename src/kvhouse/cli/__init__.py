"""The command line. Each command imports its room when it runs, so that help is instant."""

from __future__ import annotations

import os
import re
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import click
import typer

from kvhouse.cli.bench import bench_command
from kvhouse.cli.calibrate import calibrate_command
from kvhouse.cli.chat import chat_command
from kvhouse.cli.demo import demo_app
from kvhouse.cli.devices import devices_command
from kvhouse.cli.doctor import doctor_command
from kvhouse.cli.help import MOST_WIDTH, Commands
from kvhouse.cli.models import models_command
from kvhouse.cli.plan import plan_command
from kvhouse.cli.progress import INTERRUPTED
from kvhouse.cli.quality import quality_command
from kvhouse.cli.remedies import remedies_command
from kvhouse.cli.replay import replay_command
from kvhouse.cli.run import run_command
from kvhouse.cli.serve import serve_command
from kvhouse.cli.sweep import SweepCommand, sweep_command
from kvhouse.cli.top import top_command
from kvhouse.cli.trace import trace_command
from kvhouse.cli.verify import verify_command
from kvhouse.errors import KvhouseError

#: Columns that tables take even where the environment says that there are fewer.
LEAST_WIDTH = 40

#: Columns that tables take where nothing says how many there are: in a file or a pipe.
WIDTH_OF_A_FILE = 120

#: Seconds after which a SIGTERM that had no effect is raised again.
TERMINATE_AGAIN = 0.5

#: A parameter of one word, which errors begin with, before its value.
_PARAMETER = re.compile(r"([a-z]+)(?= -?(?:\d|inf|nan))")
#: What a user or a file wrote; the apostrophe of a genitive opens nothing.
_QUOTED = r"(?<!\w)(?:'[^']*'|\"[^\"]*\")"

app = typer.Typer(
    help="kvhouse, the house for an LLM's KV cache: plan it, replay it, run it, on one core.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=Commands,
    context_settings={"max_content_width": MOST_WIDTH},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"kvhouse {version('kvhouse')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None: ...


app.command("plan")(plan_command)
app.command("replay")(replay_command)
app.command("remedies")(remedies_command)
app.command("sweep", cls=SweepCommand)(sweep_command)
app.command("run")(run_command)
app.command("serve")(serve_command)
app.command("top")(top_command)
app.command("chat")(chat_command)
app.command("bench")(bench_command)
app.command("models")(models_command)
app.command("quality")(quality_command)
app.command("calibrate")(calibrate_command)
app.command("verify")(verify_command)
app.command("trace")(trace_command)
app.command("doctor")(doctor_command)
app.command("devices")(devices_command)
app.add_typer(demo_app, name="demo")


def main() -> NoReturn:
    """Run the command line; errors become one line on stderr and a non-zero exit."""
    _leave_on_sigterm()
    _prepare_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character gets "?"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, TextIOWrapper):  # what is no text is refused by who reads it
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except KvhouseError as error:
        _fail(_with_options(str(error)), 1)
    except click.ClickException as error:
        _fail(_said_once(error), error.exit_code)
    except KeyboardInterrupt:  # before click, which answers for the rest, is at work
        code = INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # kvhouse's own files are answered for where they are opened
        _fail(f"the output cannot be written: {error.strerror}", 1)
    if code == INTERRUPTED:
        _fail("interrupted", INTERRUPTED)
    sys.exit(code or 0)


def _fail(reason: str, code: int) -> NoReturn:
    if reason:
        print("kvhouse:", " ".join(reason.splitlines()), file=sys.stderr)
    sys.exit(code)


def _with_options(text: str) -> str:
    """A message with the options' names in it where it names the parameters that they set.

    Rooms below name parameters as Python does. A name of several words is one wherever it stands,
    unless it is quoted or part of something longer; one of a single word is a word, unless the
    message begins with it and its value.
    """
    known = _options_of(sys.argv[1:])
    first = _PARAMETER.match(text)
    if first and first[1] in known:
        text = known[first[1]] + text[first.end() :]
    names = "|".join(name for name in known if "_" in name)
    if not names:
        return text
    parts = rf"{_QUOTED}|(?<![\w./=-])({names})(?![\w./=(-])"
    return re.sub(parts, lambda found: known[found[1]] if found[1] else found[0], text)


def _options_of(arguments: list[str]) -> dict[str, str]:
    """The options of the command that was called, by their names in Python."""
    commands = getattr(typer.main.get_command(app), "commands", {})
    command = next((commands[name] for name in arguments if name in commands), None)
    if command is None:
        return {}
    written = (option for parameter in command.params for option in parameter.opts)
    return {name[2:].replace("-", "_"): name for name in written if name.startswith("--")}


def _said_once(error: click.ClickException) -> str:
    """What was wrong: where typer has suggested a command, click's own suggestion is left out."""
    return error.message if "Did you mean" in error.message else error.format_message()


def _prepare_streams() -> None:
    """Answer for streams that were closed before the start, and for a width that shows nothing."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stdout is None:
        _fail("the output cannot be written: stdout is closed", 1)
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and int(width) < LEAST_WIDTH:
        os.environ["COLUMNS"] = str(LEAST_WIDTH)
    elif not width and not any(map(_is_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        os.environ["COLUMNS"] = str(WIDTH_OF_A_FILE)


def _is_terminal(stream: TextIO) -> bool:
    return not stream.closed and stream.isatty()


def _leave_on_sigterm() -> None:
    if sys.platform == "win32":  # where a process is ended without a signal
        return
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _terminate)


def _terminate(_number: int, _frame: object) -> NoReturn:
    """Leave as after Ctrl-C, so that nothing half written stays.

    Python drops an exception that is raised within a weak reference's callback, and every import
    runs some: hence the second try.
    """
    signal.setitimer(signal.ITIMER_REAL, TERMINATE_AGAIN)
    raise SystemExit(128 + signal.SIGTERM)
