"""Fixtures of the browser tests: Chromium without a window, and pages that refuse outside requests and console errors.

``make test-browser`` and ``make test-slow`` run them; ``make test`` does not, because they need a browser.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

LOCAL = ("http", "https", "ws", "wss")
"""Schemes that reach a host; data: and blob: do not."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window, with an empty profile."""
    path = shutil.which("chromium")
    assert path is not None, "chromium is not installed: run make test-browser."
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def watched(browser) -> Callable[..., AbstractContextManager[Page]]:
    """``with watched(width=1280) as page``: a page of its own that asked no host but this machine, without errors."""

    @contextmanager
    def watched(width: int = 1280, height: int = 900) -> Iterator[Page]:
        context = browser.new_context(viewport={"width": width, "height": height})
        page, outside, errors = context.new_page(), [], []
        page.on("request", lambda request: outside.append(request.url) if _outside(request.url) else None)
        page.on("websocket", lambda socket: outside.append(socket.url) if _outside(socket.url) else None)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        context.close()
        assert outside == []
        assert errors == []

    return watched


def _outside(url: str) -> bool:
    parts = urlparse(url)
    return parts.scheme in LOCAL and parts.hostname != "127.0.0.1"
