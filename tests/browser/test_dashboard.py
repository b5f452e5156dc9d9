"""The dashboard as a person sees it, with the real stack behind it: charts that move, and states that are told."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

CHARTS = ["chart-throughput", "chart-depth"]

# The demo's services are up when the test begins, but the first points still have to pass the pipeline.
FIRST_DATA_MS = 60_000
MOVES_WITHIN_MS = 30_000

COUNT_PIXELS = """
(plot, property) => {
  const hex = getComputedStyle(plot).getPropertyValue(property).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const canvas = plot.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 128 && wanted.every((value, channel) => Math.abs(value - data[at + channel]) < 24)) found += 1;
  }
  return found;
}
"""


def open_dashboard(page: Page, url: str) -> None:
    """Opens the demo's steady queue and waits until both charts show measured points."""
    page.goto(f"{url}?org=acme&project=shop&env=prod&queue=emails&range=5m")
    for chart in CHARTS:
        expect(page.get_by_test_id(chart)).to_have_attribute("data-points", re.compile(r"[1-9]"), timeout=FIRST_DATA_MS)


def picture(page: Page, chart: str) -> str:
    return str(page.get_by_test_id(chart).locator("canvas").evaluate("(canvas) => canvas.toDataURL()"))


def last_timestamp(page: Page, chart: str) -> str:
    return page.get_by_test_id(chart).get_attribute("data-last-timestamp") or ""


def pixels(page: Page, chart: str, colour: str) -> int:
    """How many pixels of the chart have the colour of a line."""
    return int(page.get_by_test_id(chart).evaluate(COUNT_PIXELS, colour))


def test_draws_what_flows(page: Page, dashboard_url: str) -> None:
    open_dashboard(page, dashboard_url)
    assert pixels(page, "chart-throughput", "--series-in") > 50
    assert pixels(page, "chart-throughput", "--series-out") > 50
    assert pixels(page, "chart-depth", "--series-depth") > 50
    expect(page.get_by_test_id("headline-depth")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("headline-throughput")).to_have_text(re.compile(r"[1-9]"), timeout=FIRST_DATA_MS)
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")
    expect(page.get_by_test_id("error")).to_have_count(0)


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_move_as_jobs_flow(page: Page, dashboard_url: str, chart: str) -> None:
    open_dashboard(page, dashboard_url)
    before, drawn_before = last_timestamp(page, chart), picture(page, chart)
    page.wait_for_function(
        "([id, before]) => document.querySelector(`[data-testid=${id}]`).dataset.lastTimestamp > before",
        arg=[chart, before],
        timeout=MOVES_WITHIN_MS,
    )
    assert picture(page, chart) != drawn_before


def test_pause_holds_the_picture(page: Page, dashboard_url: str) -> None:
    open_dashboard(page, dashboard_url)
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "paused")
    held = last_timestamp(page, "chart-throughput")
    expect(page.get_by_test_id("updated")).to_contain_text(re.compile(r"([6-9]|\d\d) s ago"), timeout=15_000)
    assert last_timestamp(page, "chart-throughput") == held
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")


def test_queue_and_range_live_in_the_url(page: Page, dashboard_url: str) -> None:
    open_dashboard(page, dashboard_url)
    page.get_by_role("radio", name="Last 5 minutes").check()
    options = page.get_by_test_id("queue-select").locator("option").evaluate_all("(all) => all.map((o) => o.value)")
    chosen = options[-1]
    page.get_by_test_id("queue-select").select_option(chosen)
    query = parse_qs(urlsplit(page.url).query)
    assert query["range"] == ["5m"]
    assert [query[name][0] for name in ("org", "project", "env", "queue")] == json.loads(chosen)
    page.reload()
    expect(page.get_by_test_id("queue-select")).to_have_value(chosen)
    expect(page.get_by_role("radio", name="Last 5 minutes")).to_be_checked()


def test_crosshair_is_linked_and_follows_the_keyboard(page: Page, dashboard_url: str) -> None:
    open_dashboard(page, dashboard_url)
    page.get_by_test_id("pause").click()
    page.get_by_test_id("chart-depth").press("Home")
    first = page.locator(".moment").all_inner_texts()
    assert len(set(first)) == 1
    page.get_by_test_id("chart-depth").press("ArrowRight")
    second = page.locator(".moment").all_inner_texts()
    assert len(set(second)) == 1
    assert second != first


def test_tells_an_error_and_keeps_the_last_answer(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    open_dashboard(page, dashboard_url)
    problem = {"type": "about:blank", "title": "Warehouse unavailable", "status": 503, "detail": "<b>Try</b> later."}

    def refuse(route: Route) -> None:
        route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/metrics?*", refuse)
    expect(page.get_by_test_id("error")).to_contain_text("Warehouse unavailable")
    expect(page.get_by_test_id("error")).to_contain_text("<b>Try</b> later.")
    expect(page.get_by_test_id("chart-depth")).to_have_attribute("data-points", re.compile(r"[1-9]"))
    page.unroute("**/metrics?*")
    expect(page.get_by_test_id("error")).to_have_count(0, timeout=20_000)
    # The browser itself logs every 503; the dashboard adds nothing to it.
    page_errors[:] = [error for error in page_errors if "503" not in error]


def test_tells_when_there_is_no_queue(page: Page, dashboard_url: str) -> None:
    nothing = json.dumps({"queues": [], "timestamp": "2026-01-01T00:00:00Z"})
    page.route("**/api/v1/queues", lambda route: route.fulfill(content_type="application/json", body=nothing))
    page.goto(dashboard_url)
    expect(page.get_by_test_id("empty")).to_contain_text("No queues yet")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone_in_light_and_dark(page: Page, dashboard_url: str, scheme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    open_dashboard(page, dashboard_url)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
    assert (red < 64) == (scheme == "dark")
    assert pixels(page, "chart-depth", "--series-depth") > 50
