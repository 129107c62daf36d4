"""Let transformers read files without printing, and with errors that fit a line."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvhouse.errors import KvhouseError


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence log lines, warnings and progress bars; errors are raised as ever."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The bar of the GGUF reader does not heed the switch; it writes to standard error.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def reading(place: Path) -> Iterator[None]:
    """Read silently; whatever a reader of damaged files raises becomes one line about ``place``."""
    try:
        with quiet():
            yield
    except KvhouseError:
        raise
    except Exception as error:
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise KvhouseError(f"{place}: cannot be loaded: {line}") from error
