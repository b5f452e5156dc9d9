"""Fixtures for tests in Chromium, driven by Playwright.

All tests share one stack and one browser, because they take long to start. Each test has its own browser context, with
only the cookies of its sign-in. A page that logs an error, throws, or sends a request to another host fails its test.
Without Chromium these tests are skipped on a laptop and fail in CI.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from tests.browser.urls import TIMEOUT_MS
from tests.programs import find_tool
from tests.stack import Demo, RunningStack

LAUNCH_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


expect.set_options(timeout=TIMEOUT_MS)

VIEWPORT: Any = {"width": 1280, "height": 1000}


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the browser's executable."""
    debian = Path("/usr/bin/chromium")
    return str(debian) if debian.exists() else find_tool("chromium", "chromium")


@pytest.fixture(scope="package")
def stack(chromium: str, demo: Demo) -> RunningStack:
    """Return the running demo. Its counts are compared when it ends."""
    return demo.stack


@pytest.fixture(scope="package")
def dashboard_url(stack: RunningStack) -> str:
    return stack.dashboard


@pytest.fixture(scope="package")  # not session: it occupies the thread with an event loop, which other tests need
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=LAUNCH_FLAGS, timeout=TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def signed_in(browser: Browser, stack: RunningStack) -> Any:
    """Return the cookies of a browser that signed in by a link."""
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto(stack.link())
    page.wait_for_selector("[data-testid=tenant]")
    state = context.storage_state()
    context.close()
    return state


@dataclass
class PageMonitor:
    """Errors and foreign requests of a page so far.

    The browser logs every error response. A 503 is removed again when the same URL succeeds later."""

    host: str
    errors: list[str] = field(default_factory=list[str])
    foreign_requests: list[str] = field(default_factory=list[str])

    def on_console(self, message: ConsoleMessage) -> None:
        url = message.location["url"]
        own = url.endswith("/favicon.ico")  # requested by the browser itself, for pages without an icon
        if message.type == "error" and not own:
            self.errors.append(f"console: {message.text} {url}")

    def on_exception(self, error: Error) -> None:
        self.errors.append(f"uncaught: {error.message}")

    def on_response(self, response: Response) -> None:
        if response.ok:
            self.errors[:] = [each for each in self.errors if not is_retried_later(each, response.url)]

    def on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self.host:
            self.foreign_requests.append(request.url)


def is_retried_later(error: str, url: str) -> bool:
    logged = "console: Failed to load resource: the server responded with a status of 503"
    return error.startswith(logged) and error.endswith(f" {url}")


@pytest.fixture
def monitor(dashboard_url: str) -> Iterator[PageMonitor]:
    monitor = PageMonitor(host=urlsplit(dashboard_url).netloc)
    yield monitor
    assert monitor.errors == []
    assert monitor.foreign_requests == []


@pytest.fixture
def page_errors(monitor: PageMonitor) -> list[str]:
    """Return the errors so far; a test that provokes errors removes them itself."""
    return monitor.errors


@pytest.fixture
def page(browser: Browser, signed_in: Any, monitor: PageMonitor) -> Iterator[Page]:
    context = browser.new_context(viewport=VIEWPORT, storage_state=signed_in)
    yield open_monitored_page(context, monitor)
    context.close()


@pytest.fixture
def signed_out_page(browser: Browser, monitor: PageMonitor) -> Iterator[Page]:
    """Open a page in a browser that is not signed in."""
    context = browser.new_context(viewport=VIEWPORT)
    yield open_monitored_page(context, monitor)
    context.close()


def open_monitored_page(context: BrowserContext, monitor: PageMonitor) -> Page:
    context.set_default_timeout(TIMEOUT_MS)
    context.on("request", monitor.on_request)
    context.on("response", monitor.on_response)
    page = context.new_page()
    page.on("console", monitor.on_console)
    page.on("pageerror", monitor.on_exception)
    return page
