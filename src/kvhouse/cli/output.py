"""How commands write: JSON, progress, and files that are there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.core.step import StepPlan


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object, alone on stdout."""
    print(json.dumps(data, indent=2, allow_nan=False))


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[object], None]]:
    """A progress bar on stderr while the block runs; call what it yields once for each item.

    There is none where stderr is not a terminal.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda _: bar.advance(task)


@contextmanager
def plan_log(path: str | None) -> Iterator[Callable[[StepPlan], None] | None]:
    """A sink for step plans that becomes ``path`` when the block ends well.

    Raises:
        KvhouseError: The file cannot be written.
    """
    if path is None:
        yield None
        return
    target = Path(path)
    if not target.name or (target.exists() and not target.is_file()):
        raise KvhouseError(f"plan log {path!r}: is no name for a file")
    partial = target.with_name(f".{target.name[:200]}.partial")
    try:
        file = partial.open("wb")
    except OSError as error:
        raise KvhouseError(f"plan log {path}: cannot be written: {error.strerror}") from None
    try:
        with file:

            def write(plan: StepPlan) -> None:
                try:
                    file.write(plan.encode())
                except OSError as error:
                    reason = f"plan log {path}: cannot be written: {error.strerror}"
                    raise KvhouseError(reason) from None

            yield write
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
