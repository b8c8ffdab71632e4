"""Headless Chromium for the tests of pages."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

CHROMIUM = shutil.which("chromium")
# As root it must do without its own sandbox; these tests show it only pages of ours.
ARGUMENTS = ["--no-sandbox", "--disable-gpu"]


@contextlib.contextmanager
def chromium() -> Iterator:
    """A browser of playwright's. Skips, by name, where there is none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; type: make browser")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; type: make install-test"
    )
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
