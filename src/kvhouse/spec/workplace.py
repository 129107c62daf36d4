"""Folders for files on their way into the cache; what a killed process left is cleared away."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def workplace(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder of which nothing is left in the end, however the block ends.

    A process that is killed leaves its own, and the next one that comes here removes it. Whether
    the owner still lives is told by a lock on the folder, which the system drops with the process.
    Where the file system has no locks on folders, nothing is removed.

    Args:
        parent: Where the folder lies.
        prefix: What its name begins with; everything there that begins so is such a folder.

    Raises:
        OSError: It cannot be made.
    """
    with ExitStack() as stack:
        # While the parent is locked, nobody clears away a folder that is not locked yet.
        with _locked(parent, wait=True) as alone:
            if alone:
                _clear(parent, prefix)
            work = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            stack.enter_context(_locked(work, wait=True))
        yield work


def _clear(parent: Path, prefix: str) -> None:
    """Remove the folders whose owners are gone."""
    for left in parent.glob(f"{prefix}*"):
        with _locked(left, wait=False) as gone:
            if gone:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a folder's lock for the block.

    Gives whether it is held: another process may have it, where that is not waited for, or there
    is no such lock here.
    """
    if os.name != "posix":
        yield False
        return
    import fcntl

    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(opened)
