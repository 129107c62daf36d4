"""A Chromium for pages. Run as a script, it says where there is one, or how to get one."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

#: Names of Chromium and of what is built from it; ``CHROMIUM`` in the environment names another.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "no Chromium is installed, and the tests of pages open them in one: install Debian's package "
    "chromium or Google Chrome, or set CHROMIUM to the executable"
)
#: Without a sandbox, since tests often run as root in a container, and without its own traffic.
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


def find_chromium() -> str | None:
    """The path of a Chromium's executable."""
    named = os.environ.get("CHROMIUM")
    found = map(shutil.which, (named,) if named else NAMES)
    return next(filter(None, found), None)


@pytest.fixture(scope="module")
def chromium():
    """A running Chromium. No longer than a module: its event loop runs on in this thread."""
    from playwright.sync_api import sync_playwright

    executable = find_chromium()
    if executable is None:
        pytest.fail(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


if __name__ == "__main__":
    path = find_chromium()
    print(path or MISSING, file=sys.stdout if path else sys.stderr)
    sys.exit(path is None)
