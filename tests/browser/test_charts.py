"""The queue page and its charts: drawing, updating, zooming, crosshair."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.urls import EMAILS, FIRST_DATA_TIMEOUT_MS, GLOBEX, INITECH

CHARTS = ["throughput", "depth", "oldest", "wait", "run", "concurrency", "failures", "bytes"]
CHOSEN = re.compile(r"\?(?=.*\bstart=)(?=.*\bend=)")

COUNT_PIXELS = """
([chart, property, least]) => {
  const plot = document.querySelector(`[data-testid=chart-${chart}]`);
  const hex = getComputedStyle(plot).getPropertyValue(property).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const canvas = plot.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 128 && wanted.every((value, channel) => Math.abs(value - data[at + channel]) < 24)) found += 1;
  }
  return found > least;
}
"""


def open_queue(page: Page, url: str) -> None:
    page.goto(url)
    for chart in ("throughput", "depth"):
        plot = page.get_by_test_id(f"chart-{chart}")
        expect(plot).to_have_attribute("data-points", re.compile(r"[1-9]"), timeout=FIRST_DATA_TIMEOUT_MS)


def expect_pixels(page: Page, chart: str, colour: str, least: int = 20) -> None:
    """Wait until more than `least` pixels of the chart have the colour of a line."""
    page.wait_for_function(COUNT_PIXELS, arg=[chart, colour, least], timeout=FIRST_DATA_TIMEOUT_MS)


def last_timestamp(page: Page) -> str:
    return page.get_by_test_id("chart-throughput").get_attribute("data-last-timestamp") or ""


def test_charts_draw_live_data_and_update(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    for chart in CHARTS:
        expect(page.get_by_test_id(f"chart-{chart}")).to_be_attached()
    for chart, colour in (
        ("throughput", "in"),
        ("throughput", "out"),
        ("oldest", "p95"),
        ("wait", "p95"),
        ("run", "p50"),
        ("bytes", "in"),
    ):
        expect_pixels(page, chart, f"--series-{colour}")
    expect(page.get_by_test_id("figure-depth")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("figure-throughput")).to_have_text(re.compile(r"[1-9]"), timeout=FIRST_DATA_TIMEOUT_MS)
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")
    expect(page.get_by_test_id("provenance")).to_contain_text("from 5 s buckets")
    expect(page.get_by_test_id("completeness")).to_contain_text("% complete")
    drawn = page.locator("[data-testid=chart-throughput] canvas").evaluate("(canvas) => canvas.toDataURL()")
    page.wait_for_function(
        """([before, drawn]) => {
          const plot = document.querySelector("[data-testid=chart-throughput]");
          return plot.dataset.lastTimestamp > before && plot.querySelector("canvas").toDataURL() !== drawn;
        }""",
        arg=[last_timestamp(page), drawn],
        timeout=FIRST_DATA_TIMEOUT_MS,
    )


def test_shows_both_tiers_and_failures(page: Page, dashboard_url: str) -> None:
    open_queue(page, f"{dashboard_url}queues/thumbnails?{GLOBEX}&range=5m")
    expect_pixels(page, "depth", "--series-cold")
    expect_pixels(page, "depth", "--series-depth")
    open_queue(page, f"{dashboard_url}queues/invoices?{INITECH}&range=5m")
    expect(page.get_by_test_id("figure-failures")).to_have_text(re.compile(r"[1-9].* %"), timeout=FIRST_DATA_TIMEOUT_MS)
    expect_pixels(page, "failures", "--series-running", 10)


def test_a_drag_zooms_in_and_back_zooms_out(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    box = page.locator("[data-testid=chart-throughput] .u-over").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    page.mouse.up()
    expect(page.get_by_test_id("between")).to_be_visible()
    expect(page).to_have_url(CHOSEN)
    expect(page.get_by_test_id("provenance")).to_contain_text("One point per")
    page.reload()
    expect(page.get_by_test_id("between")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("radio", name="Last 5 minutes")).to_be_checked()


def test_ranges_are_stored_in_the_url(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_role("radio", name="Last 24 hours").check()
    expect(page).to_have_url(re.compile(r"[?&]range=24h(&|$)"))
    expect(page.get_by_test_id("provenance")).to_contain_text("One point per 2 min, from 1 min buckets")
    page.get_by_role("radio", name="Last 90 days").check()
    expect(page.get_by_test_id("provenance")).to_contain_text("from 1 h buckets")
    page.get_by_test_id("custom-range").click()
    page.get_by_role("button", name="Apply").click()
    expect(page).to_have_url(CHOSEN)


def test_crosshair_is_linked_and_follows_the_keyboard(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "paused")
    newest = page.locator(".moment").first.inner_text()
    page.get_by_test_id("chart-depth").press("Home")
    first = wait_for_other_moment(page, newest)
    page.get_by_test_id("chart-depth").press("ArrowRight")
    wait_for_other_moment(page, first)
    page.get_by_test_id("chart-depth").press("+")
    expect(page.get_by_test_id("between")).to_be_visible()


def wait_for_other_moment(page: Page, before: str) -> str:
    """Wait until all charts show the same time, and not `before`; return it."""
    page.wait_for_function(
        """(before) => {
          const shown = new Set([...document.querySelectorAll(".moment")].map((moment) => moment.innerText));
          return shown.size === 1 && !shown.has("") && !shown.has(before);
        }""",
        arg=before,
    )
    return page.locator(".moment").first.inner_text()


def test_pause_stops_updates(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "paused")
    expect(page.get_by_test_id("updated")).to_contain_text(re.compile(r"(([2-9]|\d\d) s|\d min) ago"))
    held = last_timestamp(page)  # responses in flight have arrived
    expect(page.get_by_test_id("updated")).to_contain_text(re.compile(r"(([6-9]|\d\d) s|\d min) ago"))
    assert last_timestamp(page) == held
    page.get_by_test_id("pause").click()
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")


def test_the_heading_switches_to_another_queue(page: Page, dashboard_url: str) -> None:
    open_queue(page, dashboard_url + EMAILS)
    page.get_by_test_id("queue-select").select_option("reports")
    expect(page.get_by_test_id("tags")).to_contain_text("paused")
    expect(page).to_have_url(re.compile(r"/queues/reports\?(.*&)?range=5m(&|$)"))
