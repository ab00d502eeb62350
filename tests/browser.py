"""A tab of a headless Chromium, for tests of the pages that reports are.

It needs the package playwright and an installed Chromium.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PRINTED = 1030
"""Pixels between the margins of A4 in landscape."""


@dataclass
class Tab:
    """A page in the browser, with all that it asked for and complained about."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, path: Path) -> Any:
        """Show a file from the start."""
        self.said.clear()
        self.asked.clear()
        self.page.emulate_media(media="screen", color_scheme="light")
        self.page.goto(path.as_uri())
        return self.page

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that are shown."""
        return [one.inner_text() for one in self.page.locator(selector).all() if one.is_visible()]


@contextmanager
def open_tab() -> Iterator[Tab]:
    """Yield the tab, or skip the tests where no browser can be started."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = Tab(browser.new_page())
        tab.page.on("console", lambda message: tab.said.append(message.text))
        tab.page.on("pageerror", lambda fault: tab.said.append(str(fault)))
        tab.page.on("dialog", lambda dialog: tab.said.append(dialog.message))
        tab.page.on("request", lambda request: tab.asked.append(request.url))
        yield tab
        browser.close()
