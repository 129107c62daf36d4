"""Where the command begins: ``kvhouse`` and ``python -m kvhouse``."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Import the command line and run it; Ctrl-C before it can answer ends the process as it is."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and nobody wants Ctrl-C to be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvhouse.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
