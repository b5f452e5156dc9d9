"""Requirements for every page: error messages, colour schemes, phones, accessibility, layout stability, size."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, Route, expect

from headrace.api.app import DASHBOARD
from tests.browser.urls import ALERTS, BY_QUEUE, DEAD, EMAILS, FIRST_DATA_TIMEOUT_MS, OVERVIEW, PIPELINE, QUEUES, RULES
from tests.programs import absent

AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
MAX_BYTES = 85_000
MAX_LAYOUT_SHIFT = 0.02
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

PAGES = {
    "overview": (OVERVIEW, "figure-throughput"),
    "queues": (QUEUES + "&running=open", "queues"),
    "queue": (EMAILS, "figure-throughput"),
    "dead": (DEAD, "letters"),
    "alerts": (ALERTS, "open-incidents"),
    "rules": (RULES, "rules"),
    "pipeline": (PIPELINE, "figure-lag"),
}

COUNT_SHIFTS = """
globalThis.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (!entry.hadRecentInput) {
      const nodes = entry.sources.map((source) => source.node?.className ?? source.node?.nodeName);
      globalThis.shifts.push([entry.value, nodes]);
    }
  }
}).observe({ type: "layout-shift", buffered: true });
"""


def open_page(page: Page, url: str, name: str) -> None:
    path, ready = PAGES[name]
    page.goto(url + path)
    expect(page.get_by_test_id(ready)).to_have_text(re.compile(r"\d"), timeout=FIRST_DATA_TIMEOUT_MS)


def answer_with(page: Page, pattern: str, status: int, body: dict[str, Any]) -> None:
    def answer(route: Route) -> None:
        route.fulfill(status=status, content_type="application/json", body=json.dumps(body))

    page.route(pattern, answer)


def test_shows_an_error_and_keeps_the_last_data(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    open_page(page, dashboard_url, "queue")
    problem = {"type": "about:blank", "title": "Warehouse unavailable", "status": 503, "detail": "<b>Try</b> later."}
    answer_with(page, "**/metrics?*", 503, problem)
    expect(page.get_by_test_id("error")).to_contain_text("Warehouse unavailable")
    expect(page.get_by_test_id("error")).to_contain_text("<b>Try</b> later.")
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "failing")
    expect(page.get_by_test_id("chart-depth")).to_have_attribute("data-points", re.compile(r"[1-9]"))
    # Before the server answers again: otherwise the page may retry by itself first, and the button disappears.
    with page.expect_request("**/metrics?*"):
        page.get_by_role("button", name="Retry now").click()
    page.unroute("**/metrics?*")
    expect(page.get_by_test_id("error")).to_have_count(0)
    # The browser itself logs every 503; the dashboard logs nothing.
    page_errors[:] = [error for error in page_errors if "503" not in error]


def test_polls_if_the_stream_is_refused(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    answer_with(page, "**/api/v1/stream?*", 429, {"title": "Too Many Requests", "status": 429, "detail": "No."})
    page.goto(dashboard_url + BY_QUEUE)
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", "3")
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")
    page_errors[:] = [error for error in page_errors if "429" not in error]


def test_reports_that_there_are_no_queues(page: Page, dashboard_url: str) -> None:
    answer_with(
        page, "**/api/v1/environments", 200, {"environments": [], "total": 0, "timestamp": "2026-01-01T00:00:00Z"}
    )
    page.goto(dashboard_url)
    expect(page.get_by_test_id("empty")).to_contain_text("No queues yet")


def test_shows_the_sign_in_when_the_session_ends(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    open_page(page, dashboard_url, "pipeline")
    page.context.clear_cookies()
    expect(page.get_by_test_id("key")).to_be_visible()
    page_errors[:] = [error for error in page_errors if "401" not in error]


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_accessible_in_both_schemes_and_fits_a_phone(page: Page, dashboard_url: str, name: str) -> None:
    """Check light and dark schemes, accessibility rules, and the width of a phone."""
    open_page(page, dashboard_url, name)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red < 64) == (scheme == "dark")
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    expect_to_fit(page)
    expect(page.get_by_test_id(PAGES[name][1])).to_be_visible()


def test_the_sign_in_page_is_accessible(signed_out_page: Page, dashboard_url: str) -> None:
    signed_out_page.goto(dashboard_url)
    expect(signed_out_page.get_by_test_id("key")).to_be_visible()
    assert find_violations(signed_out_page) == []


def expect_to_fit(page: Page) -> None:
    """Wait until the page fits the width of the screen; charts need a moment to resize."""
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")


def find_violations(page: Page) -> list[Any]:
    """Return the serious violations that axe-core finds; it is a development dependency of the dashboard."""
    if not AXE.is_file():
        absent("no axe-core found: `npm ci` in ui/")
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        (each["id"], [node["target"] for node in each["nodes"]][:5])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", ["overview", "queue", "pipeline"])
def test_the_layout_is_stable_while_data_loads(page: Page, dashboard_url: str, name: str) -> None:
    page.add_init_script(COUNT_SHIFTS)
    open_page(page, dashboard_url, name)
    shifts = page.evaluate("globalThis.shifts")
    assert sum(value for value, _ in shifts) < MAX_LAYOUT_SHIFT, shifts


def test_every_control_is_reachable_by_keyboard(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + QUEUES)
    expect(page.get_by_test_id("queues").get_by_role("link", name="reports")).to_be_visible()
    page.get_by_test_id("search").focus()
    reached: list[str] = []
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.testid ?? document.activeElement.innerText ?? ''"))
    for wanted in ("type", "group", "sort-total", "reports"):
        assert wanted in reached, reached


def test_the_dashboard_is_small() -> None:
    files = [path for path in DASHBOARD.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert any(path.suffix == ".js" for path in files)
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) <= MAX_BYTES
