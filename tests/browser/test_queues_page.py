"""The queues page: waiting jobs by flow and by queue; running tasks; a thousand rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import CDPSession, Page, Route, expect

from tests.browser.test_all_pages import find_violations
from tests.browser.urls import ACME, BY_QUEUE, COUNT, FIRST_DATA_TIMEOUT_MS, GLOBEX, QUEUES

DETAILS = {"timestamp": "2026-01-31T12:00:01Z", "truncated": False, "coldUnavailable": None}
MANY = 1000
FEW = 100
MAX_MS = 100

# Clicks, waits until the new rows are laid out, and returns the number of rows that changed.
CLICK = """
async (selector) => {
  const table = document.querySelector("[data-testid=queues]");
  const everything = { childList: true, characterData: true, attributes: true, subtree: true };
  const changes = [];
  new MutationObserver((more) => changes.push(...more)).observe(table, everything);
  document.querySelector(selector).click();
  for (let turn = 0; turn < 10; turn += 1) await null;
  document.body.getBoundingClientRect();
  const row = (node) => (node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement)?.closest("tr") ?? node;
  const nodes = changes.flatMap((each) => [each.target, ...each.addedNodes, ...each.removedNodes]);
  return new Set(nodes.map(row)).size;
}
"""
SCROLL = """
async (to) => {
  scrollTo(0, to);
  dispatchEvent(new Event("scroll"));
  for (let turn = 0; turn < 10; turn += 1) await null;
  document.body.getBoundingClientRect();
}
"""
SHOWN = "() => [...document.querySelectorAll('[data-testid=queues] td.flow')].map((cell) => cell.innerText)"


def expect_order(page: Page, *names: str) -> None:
    cells = page.locator("[data-testid=queues] td.name")
    expect(cells).to_have_text([re.compile(rf"^\s*{name}") for name in names])


def worked_ms(devtools: CDPSession) -> float:
    """Return the CPU time of the page's thread so far, in ms, which does not depend on other load of the machine."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration") * 1000


def many_rows(count: int) -> dict[str, Any]:
    tenant = {"org": "acme", "project": "shop", "env": "prod"}
    rows = [
        {
            **tenant,
            "actionClass": f"class-{number % 250}",
            "flowName": f"flow-{number}",
            "flowType": "TRANSFORM",
            "actionName": f"task-{number % 20}",
            "count": (number * 7919) % 5000 + 1,
            "oldestQueuedAt": "2026-01-31T12:00:00Z",
        }
        for number in range(count)
    ]
    return {"warmQueues": rows, "coldQueues": rows[::2], **DETAILS}


def show_many(page: Page, url: str) -> None:
    body = json.dumps(many_rows(MANY))

    def answer(route: Route) -> None:
        route.fulfill(content_type="application/json", body=body)

    page.route("**/api/v2/metrics/queues/detailed*", answer)
    page.goto(url + QUEUES)
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", str(MANY))


def test_lists_waiting_jobs_by_flow_type_task_and_queue(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + QUEUES)
    row = page.locator("[data-testid=queues] tbody tr", has_text="build_report")
    expect(row).to_contain_text("weekly")
    expect(row).to_contain_text("DATA_SOURCE")
    expect(row.get_by_role("link", name="reports")).to_be_visible()
    expect(row).to_contain_text("paused")
    expect(row.locator("td.total")).to_have_text(re.compile(r"[1-9]"))
    expect(row.locator("td.oldest time")).to_have_attribute("title", re.compile(r"since .* UTC"))


def test_shows_the_plugin_that_provides_a_queue(page: Page, dashboard_url: str) -> None:
    """Mock the response: after a restart of the demo, no worker has run a job of the paused queue yet."""
    answer = {"reports": "headrace-demo"}
    page.route("**/api/v2/metrics/queues/action-plugins*", lambda route: route.fulfill(json=answer))
    page.goto(dashboard_url + QUEUES)
    row = page.locator("[data-testid=queues] tbody tr", has_text="build_report")
    expect(row.get_by_role("link")).to_have_attribute("title", "reports\nprovided by headrace-demo")


def test_groups_by_queue_and_includes_idle_queues(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + QUEUES)
    page.get_by_test_id("group").check()
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", "3")
    expect(page).to_have_url(re.compile(r"[?&]group=class(&|$)"))
    for name in ("emails", "reports", "search-index"):
        expect(page.get_by_test_id("queues").get_by_role("link", name=name, exact=True)).to_be_visible()


def test_numbers_update_live(page: Page, dashboard_url: str) -> None:
    """The demo keeps enqueuing to the paused queue, so its total grows."""
    page.goto(dashboard_url + BY_QUEUE)
    total = page.locator("[data-testid=queues] tbody tr", has_text="reports").locator("td.total span")
    expect(total).to_have_text(COUNT)
    exact = total.get_attribute("title") or ""  # the text is rounded from 1,000 jobs on
    expect(total).not_to_have_attribute("title", exact, timeout=FIRST_DATA_TIMEOUT_MS)
    expect(page.get_by_test_id("updated")).to_have_attribute("data-condition", "live")


def test_order_and_filters_are_stored_in_the_url(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + BY_QUEUE)
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", "3")
    page.get_by_test_id("sort-queue").click()
    expect(page.locator("th", has=page.get_by_test_id("sort-queue"))).to_have_attribute("aria-sort", "ascending")
    expect_order(page, "emails", "reports", "search-index")
    page.get_by_test_id("sort-queue").click()
    expect(page.locator("th", has=page.get_by_test_id("sort-queue"))).to_have_attribute("aria-sort", "descending")
    expect_order(page, "search-index", "reports", "emails")
    page.get_by_test_id("search").fill("search")
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", "1")
    page.reload()
    expect(page.get_by_test_id("search")).to_have_value("search")
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", "1")
    page.get_by_test_id("search").fill("no such thing")
    expect(page.get_by_test_id("empty")).to_contain_text("No matches")


def test_running_tasks_are_collapsed_by_default(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}queue-metrics?{GLOBEX}")
    expect(page.get_by_test_id("running-count")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("running")).to_have_count(0)
    page.get_by_test_id("running-toggle").click()
    expect(page.get_by_test_id("running-toggle")).to_have_attribute("aria-expanded", "true")


def task(job_id: str, minutes: float) -> dict[str, Any]:
    return {
        **{"org": "acme", "project": "shop", "env": "prod", "actionClass": "search-index"},
        **{"actionName": "index_product", "did": job_id, "startTime": "2026-01-31T12:00:00Z"},
        **{"runningForMs": minutes * 60_000, "appName": "worker-1"},
    }


def answer_running(page: Page, answer: Callable[[dict[str, list[str]]], dict[str, Any]]) -> None:
    """Mock running tasks by the parameters of the request."""

    def fulfill(route: Route) -> None:
        route.fulfill(json=answer(parse_qs(urlsplit(route.request.url).query)))

    page.route("**/api/v2/metrics/queues/running*", fulfill)


def test_more_running_tasks_than_a_page_are_counted_and_loaded(page: Page, dashboard_url: str) -> None:
    total = 450

    def answer(parameters: dict[str, list[str]]) -> dict[str, Any]:
        limit, begin = int(parameters["limit"][0]), int(parameters.get("cursor", ["0"])[0])
        end = min(begin + limit, total)
        tasks = [task(f"job-{number}", total - number) for number in range(begin, end)]
        more = str(end) if end < total else None
        return {
            "tasks": tasks, "heartbeatThresholdMs": 30000, "truncated": end < total, "total": total, "next": more
        }  # fmt: skip

    answer_running(page, answer)
    page.goto(f"{dashboard_url}queue-metrics?{ACME}&running=open")
    rows = page.locator("[data-testid=running] tbody tr")
    expect(rows).to_have_count(200)
    expect(page.get_by_test_id("running-count")).to_contain_text("450")
    expect(page.get_by_test_id("running-shown")).to_contain_text("Showing 200 of 450")
    page.get_by_test_id("more").click()
    expect(rows).to_have_count(400)
    expect(page.get_by_test_id("running-shown")).to_contain_text("Showing 400 of 450")
    page.get_by_test_id("more").click()
    expect(rows).to_have_count(450)
    expect(page.get_by_test_id("running-shown")).to_have_count(0)
    expect(page.get_by_test_id("more")).to_have_count(0)


def test_shows_warm_jobs_while_postgresql_is_unavailable(page: Page, dashboard_url: str) -> None:
    body = {**many_rows(3), "coldQueues": None, "coldUnavailable": "PostgreSQL is not responding or timed out."}
    page.route("**/api/v2/metrics/queues/detailed*", lambda route: route.fulfill(json=body))
    page.goto(dashboard_url + QUEUES)
    expect(page.get_by_test_id("queues")).to_have_attribute("data-rows", "3")
    expect(page.get_by_test_id("unknown")).to_contain_text("PostgreSQL is unavailable")
    expect(page.get_by_test_id("unknown")).to_contain_text("Rows show only jobs in Valkey")
    row = page.locator("[data-testid=queues] tbody tr:not(.spacer)").first
    expect(row.locator("td.warm")).to_have_text(re.compile(r"\d"))
    expect(row.locator("td.cold")).to_have_text("–")
    expect(row.locator("td.total")).to_have_text("–")
    assert find_violations(page) == []


def test_long_running_tasks_are_highlighted_longest_first(page: Page, dashboard_url: str) -> None:
    body = {"tasks": [task("long", 6), task("short", 4)], "heartbeatThresholdMs": 30000, "truncated": False}
    answer_running(page, lambda _: {**body, "total": 2, "next": None})
    page.goto(f"{dashboard_url}queue-metrics?{ACME}&running=open")
    rows = page.locator("[data-testid=running] tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_have_class("long")
    expect(rows.nth(0)).to_contain_text("6 min")
    expect(rows.nth(1)).not_to_have_class("long")
    expect(rows.nth(0).get_by_role("link", name="long")).to_have_attribute("href", re.compile(r"^/jobs/long\?"))


def test_a_thousand_rows_sort_and_scroll_fast(page: Page, dashboard_url: str) -> None:
    show_many(page, dashboard_url)
    assert page.locator("[data-testid=queues] tbody tr:not(.spacer)").count() < FEW
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    sorts: list[float] = []
    for column in ("task", "flow", "cold", "oldest", "total", "queue", "warm", "task"):
        before, worked = page.evaluate(SHOWN), worked_ms(devtools)
        touched = page.evaluate(CLICK, f"[data-testid=sort-{column}]")
        sorts.append(worked_ms(devtools) - worked)
        assert 0 < touched < 2 * FEW, column  # removed and added rows
        assert page.evaluate(SHOWN) != before or column == "oldest", column  # all have the same age
    scrolls: list[float] = []
    for to in range(3_000, 40_000, 3_000):
        worked = worked_ms(devtools)
        page.evaluate(SCROLL, to)
        scrolls.append(worked_ms(devtools) - worked)
        assert page.locator("[data-testid=queues] tbody tr:not(.spacer)").count() < FEW
    # The cheapest of several runs is the cost of the page.
    assert (min(sorts) < MAX_MS, min(scrolls) < MAX_MS) == (True, True), (sorts, scrolls)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(page.locator(f"[data-testid=queues] tr[aria-rowindex='{MANY + 1}']")).to_be_visible()
