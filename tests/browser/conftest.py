"""Debian's Chromium, driven by Playwright, watched for what no page of ours may do.

Each test gets a browser with an empty profile. A page that logs an error, throws, or asks another host for anything
fails its test, whatever else the test looked at. Without Chromium these tests are skipped on a laptop and fail in CI.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Error, Page, Playwright, Request, sync_playwright

from tests.stack import RunningStack, outcome

LAUNCH_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def absent(reason: str) -> NoReturn:
    """Skips on a laptop, fails in CI: there, a missing browser would hide every failure of the dashboard."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's executable."""
    debian = Path("/usr/bin/chromium")
    found = str(debian) if debian.exists() else shutil.which("chromium")
    if found is None:
        absent("no chromium found: `apt-get install -y chromium`")
    return found


@pytest.fixture(scope="module")
def dashboard_url(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo, with jobs flowing behind it; its counts must agree when it ends."""
    stack = RunningStack(tmp_path_factory.mktemp("demo") / "data", "--demo", "--json")
    stack.wait_for_chart()
    yield stack.dashboard
    code, out, err = stack.stop()
    assert (code, outcome(out)["difference"]) == (0, 0), err


@pytest.fixture(scope="module")  # it occupies the thread with an event loop, which other tests want for theirs
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@dataclass
class Watch:
    """What the page did wrong so far."""

    host: str
    errors: list[str] = field(default_factory=list[str])
    foreign_requests: list[str] = field(default_factory=list[str])

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"console: {message.text}")

    def on_exception(self, error: Error) -> None:
        self.errors.append(f"uncaught: {error.message}")

    def on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self.host:
            self.foreign_requests.append(request.url)


@pytest.fixture
def context(playwright: Playwright, chromium: str, tmp_path: Path) -> Iterator[BrowserContext]:
    context = playwright.chromium.launch_persistent_context(
        tmp_path / "profile",
        executable_path=chromium,
        headless=True,
        args=LAUNCH_FLAGS,
        viewport={"width": 1280, "height": 1000},
    )
    yield context
    context.close()


@pytest.fixture
def watch(dashboard_url: str, context: BrowserContext) -> Iterator[Watch]:
    watch = Watch(host=urlsplit(dashboard_url).netloc)
    context.on("request", watch.on_request)
    yield watch
    assert watch.errors == []
    assert watch.foreign_requests == []


@pytest.fixture
def page_errors(watch: Watch) -> list[str]:
    """The errors seen so far; a test that provokes some takes them out itself."""
    return watch.errors


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Page:
    page = context.new_page()
    page.on("console", watch.on_console)
    page.on("pageerror", watch.on_exception)
    return page
