"""The command line. Each command imports its room when it runs, so that help is instant."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from kvhouse.cli.demo import demo_app
from kvhouse.cli.plan import plan_command
from kvhouse.cli.replay import replay_command
from kvhouse.cli.run import run_command
from kvhouse.errors import KvhouseError

INTERRUPTED = 130

app = typer.Typer(
    help="kvhouse, the house for an LLM's KV cache: plan it, replay it, run it, on one core.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("plan")(plan_command)
app.command("replay")(replay_command)
app.command("run")(run_command)
app.add_typer(demo_app, name="demo")


def main() -> NoReturn:
    """Run the command line; errors become one line on stderr and a non-zero exit."""
    try:
        code = app(standalone_mode=False)
    except KvhouseError as error:
        _fail(str(error), 1)
    except typer.TyperException as error:
        _fail(error.format_message(), error.exit_code)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(1)
    if code == INTERRUPTED:
        _fail("interrupted", INTERRUPTED)
    sys.exit(code or 0)


def _fail(reason: str, code: int) -> NoReturn:
    if reason:
        print(f"kvhouse: {reason}", file=sys.stderr)
    sys.exit(code)
