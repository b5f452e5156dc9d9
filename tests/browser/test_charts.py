"""One queue and its charts: that they draw, move, zoom, and tell what they know."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, expect

from tests.browser.places import EMAILS, FIRST_DATA_MS, GLOBEX, INITECH

CHARTS = ["throughput", "depth", "wait", "run", "concurrency", "failures", "bytes"]
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


def open_queue(page: Page, url: str) -> None:
    page.goto(url)
    for chart in ("throughput", "depth"):
        plot = page.get_by_test_id(f"chart-{chart}")
        expect(plot).to_have_attribute("data-points", re.compile(r"[1-9]"), timeout=FIRST_DATA_MS)


def pixels(page: Page, chart: str, colour: str) -> int:
    """How many pixels of the chart have the colour of a line."""
    return int(page.get_by_test_id(f"chart-{chart}").evaluate(COUNT_PIXELS, colour))


def last_timestamp(page: Page) -> str:
    return page.get_by_test_id("chart-throughput").get_attribute("data-last-timestamp") or ""


def test_draws_what_flows_and_moves_with_it(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    for chart in CHARTS:
        expect(page.get_by_test_id(f"chart-{chart}")).to_be_attached()
    for chart, colour in (
        ("throughput", "in"),
        ("throughput", "out"),
        ("wait", "p95"),
        ("run", "p50"),
        ("bytes", "in"),
    ):
        assert pixels(page, chart, f"--series-{colour}") > 20, chart
    expect(page.get_by_test_id("figure-depth")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("figure-throughput")).to_have_text(re.compile(r"[1-9]"), timeout=FIRST_DATA_MS)
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")
    expect(page.get_by_test_id("provenance")).to_contain_text("from buckets of 5 s")
    expect(page.get_by_test_id("completeness")).to_contain_text("% complete")
    drawn = page.locator("[data-testid=chart-throughput] canvas").evaluate("(canvas) => canvas.toDataURL()")
    page.wait_for_function(
        """([before, drawn]) => {
          const plot = document.querySelector("[data-testid=chart-throughput]");
          return plot.dataset.lastTimestamp > before && plot.querySelector("canvas").toDataURL() !== drawn;
        }""",
        arg=[last_timestamp(page), drawn],
        timeout=MOVES_WITHIN_MS,
    )


def test_shows_both_tiers_and_failures(page: Page, dashboard_url: str) -> None:
    open_queue(page, f"{dashboard_url}queues/thumbnails?{GLOBEX}&range=5m")
    assert pixels(page, "depth", "--series-cold") > 20
    assert pixels(page, "depth", "--series-depth") > 20
    open_queue(page, f"{dashboard_url}queues/invoices?{INITECH}&range=5m")
    expect(page.get_by_test_id("figure-failures")).to_have_text(re.compile(r"[1-9].* %"))
    assert pixels(page, "failures", "--series-running") > 10


def test_a_drag_zooms_and_back_returns(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    box = page.locator("[data-testid=chart-throughput] .u-over").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    page.mouse.up()
    expect(page.get_by_test_id("between")).to_be_visible()
    query = parse_qs(urlsplit(page.url).query)
    assert {"start", "end"} <= set(query)
    expect(page.get_by_test_id("provenance")).to_contain_text("One point per")
    page.reload()
    expect(page.get_by_test_id("between")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("radio", name="Last 5 minutes")).to_be_checked()


def test_ranges_live_in_the_url(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_role("radio", name="Last 24 hours").check()
    assert parse_qs(urlsplit(page.url).query)["range"] == ["24h"]
    expect(page.get_by_test_id("provenance")).to_contain_text("One point per 2 min, from buckets of 1 min")
    page.get_by_role("radio", name="Last 90 days").check()
    expect(page.get_by_test_id("provenance")).to_contain_text("from buckets of 1 h")
    page.get_by_test_id("custom-range").click()
    page.get_by_role("button", name="Apply").click()
    assert {"start", "end"} <= set(parse_qs(urlsplit(page.url).query))


def test_crosshair_is_linked_and_follows_the_keyboard(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_test_id("pause").click()
    page.get_by_test_id("chart-depth").press("Home")
    first = page.locator(".moment").all_inner_texts()
    assert len(set(first)) == 1
    page.get_by_test_id("chart-depth").press("ArrowRight")
    second = page.locator(".moment").all_inner_texts()
    assert len(set(second)) == 1
    assert second != first
    page.get_by_test_id("chart-depth").press("+")
    expect(page.get_by_test_id("between")).to_be_visible()


def test_pause_holds_the_picture(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "paused")
    held = last_timestamp(page)
    expect(page.get_by_test_id("updated")).to_contain_text(re.compile(r"([4-9]|\d\d) s ago"), timeout=15_000)
    assert last_timestamp(page) == held
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")


def test_another_queue_is_chosen_by_its_name(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_test_id("queue-select").select_option("reports")
    expect(page.get_by_test_id("tags")).to_contain_text("paused")
    parts = urlsplit(page.url)
    assert (parts.path, parse_qs(parts.query)["range"]) == ("/queues/reports", ["5m"])
