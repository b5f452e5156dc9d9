"""The streams page: navigation, unknown numbers, and charts of watched streams."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from headrace.cli.demo_stream import DEAD_CONSUMER, STREAM
from tests.browser.test_all_pages import SCHEMES, find_violations
from tests.browser.urls import COUNT, FIRST_DATA_TIMEOUT_MS
from tests.conftest import wait_until
from tests.stack import RunningStack

CHARTS = "queues/browser%3Ajobs%2Fworkers?org=default&project=default&env=streams&range=5m"
HISTORY = "api/v1/queues/browser%3Ajobs%2Fworkers/metrics?org=default&project=default&env=streams&period=5m"

REASON = "The server does not know the lag (entries were deleted or the group was moved)."
CALM: dict[str, Any] = {
    **{"org": "default", "project": "default", "env": "streams", "group": "workers"},
    **{"undelivered": 0, "pending": 0, "load": 0, "retrying": 0, "in_backoff": 0, "dead": 0, "total_messages": 0},
    **{"oldest_undelivered_age_ms": None, "oldest_pending_age_ms": None, "longest_idle_ms": None},
    **{"consumers": [], "consumers_total": 0, "stuck": 0, "deliveries": {}, "counted": True, "hard_maxlen": 1000},
    **{"reason": None, "unknown_since": None, "measured_at": "2026-01-31T12:00:01Z", "age_ms": 2000, "stale": False},
}


def stream(name: str, **values: Any) -> dict[str, Any]:
    return {**CALM, "stream": name, "queue": f"{name}/workers", **values}


def unknown(name: str) -> dict[str, Any]:
    numbers = dict.fromkeys([key for key, value in CALM.items() if value == 0 and key != "stale"])
    since = {"reason": REASON, "unknown_since": "2026-01-31T11:00:00Z"}
    return stream(name, **numbers, consumers=None, deliveries=None, **since)


def answer_with(page: Page, *streams: dict[str, Any]) -> None:
    body = json.dumps(
        {"streams": streams, "total": len(streams), "next": None, "timestamp": "2026-01-31T12:00:03Z"},
    )

    def answer(route: Route) -> None:
        route.fulfill(content_type="application/json", body=body)

    page.route(re.compile(r"/api/v1/streams(\?.*)?$"), answer)


def fits(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_stream_is_found_and_opened_by_keyboard(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Streams").click()
    row = page.get_by_test_id("stream").filter(has_text=STREAM)
    expect(row).to_contain_text("default / default / streams", timeout=FIRST_DATA_TIMEOUT_MS)
    expect(row.locator("td.total")).to_have_text(COUNT, timeout=FIRST_DATA_TIMEOUT_MS)
    toggle = row.get_by_test_id("stream-toggle")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_test_id("consumers")).to_contain_text(DEAD_CONSUMER)
    page.reload()  # the expanded row is stored in the URL
    expect(page.get_by_test_id("consumers")).to_contain_text(DEAD_CONSUMER)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_test_id("stream-toggle")).to_be_visible()
    assert fits(page)


def test_a_stream_has_charts_like_a_queue(page: Page, stack: RunningStack, dashboard_url: str) -> None:
    wait_until(lambda: stack.get(HISTORY), "history has the stream", FIRST_DATA_TIMEOUT_MS / 1000, 0.5)
    page.goto(f"{dashboard_url}streams")
    page.get_by_role("link", name=f"Charts for {STREAM}/workers").click()
    expect(page.get_by_test_id("stream-tags")).to_contain_text("stream")
    expect(page.get_by_test_id("figure-depth")).to_have_text(COUNT)
    expect(page.get_by_test_id("chart-depth")).to_have_attribute(
        "data-points", re.compile("[1-9]"), timeout=FIRST_DATA_TIMEOUT_MS
    )
    expect(page.get_by_test_id("empty")).to_have_count(0)  # not reported as a queue without live state
    expect(page.get_by_test_id("figure-failures")).to_have_text("–")  # other workers report no failures
    expect(page.get_by_test_id("figure-bytes")).to_have_count(0)
    assert find_violations(page) == []
    page.get_by_role("link", name="View consumers").click()
    expect(page.get_by_test_id("consumers")).to_contain_text(DEAD_CONSUMER)


def test_unknown_numbers_are_shown_as_unknown_not_0(page: Page, dashboard_url: str) -> None:
    stuck = [{"name": "w1", "pending": 12, "idle_ms": 431_000, "stuck": True}]
    answer_with(
        page,
        stream("calm"),
        stream("held", pending=12, load=12, stuck=1, consumers=stuck, consumers_total=51, total_messages=950),
        unknown("odd"),
        stream("old", stale=True, age_ms=720_000, undelivered=3, load=3),
    )
    page.goto(f"{dashboard_url}streams")
    rows = page.get_by_test_id("stream")
    expect(rows).to_have_count(4)
    expect(rows.last).to_contain_text("calm")  # groups with problems come first
    odd = rows.filter(has_text="odd")
    expect(odd.get_by_test_id("unknown")).to_have_count(6)
    expect(odd.get_by_test_id("unknown").first).to_have_attribute("title", REASON)
    assert "0" not in odd.inner_text()
    expect(page.get_by_test_id("why").filter(has_text=REASON)).to_be_visible()
    expect(page.get_by_test_id("why").filter(has_text="12 min ago")).to_contain_text("headrace streams watch")
    rows.filter(has_text="held").get_by_test_id("stream-toggle").click()
    expect(page.get_by_test_id("consumers")).to_contain_text("stuck")
    expect(page.get_by_test_id("stream-detail")).to_contain_text("50 more with fewer pending entries")
    expect(page.get_by_test_id("stream-facts")).to_contain_text("950 of 1,000")
    expect(rows.filter(has_text="held")).to_contain_text("nearly full")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    assert fits(page)


def test_the_page_of_a_stream_explains_unknown_numbers(page: Page, stack: RunningStack, dashboard_url: str) -> None:
    wait_until(lambda: stack.get(HISTORY), "history has the stream", FIRST_DATA_TIMEOUT_MS / 1000, 0.5)
    answer_with(page, unknown(STREAM))
    page.goto(dashboard_url + CHARTS)
    expect(page.get_by_test_id("figure-depth")).to_have_text("unknown")
    expect(page.get_by_test_id("empty")).to_contain_text(REASON)


def test_without_streams_the_page_explains_how_to_watch_one(page: Page, dashboard_url: str) -> None:
    answer_with(page)
    page.goto(f"{dashboard_url}streams")
    expect(page.get_by_test_id("empty")).to_contain_text("headrace streams watch --stream browser:jobs --group workers")
    expect(page.get_by_test_id("empty")).to_contain_text("streams.watch")
    assert find_violations(page) == []
