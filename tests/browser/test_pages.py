"""The overview, dead letters, job and pipeline pages, against a running demo."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Page, Route, expect

from headrace.cli.demo import FAILING
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from tests.browser.test_all_pages import SCHEMES, expect_to_fit, find_violations
from tests.browser.urls import ACME, DEAD, DURATION, EMAILS, FIRST_DATA_TIMEOUT_MS, GLOBEX, OVERVIEW, PIPELINE, job
from tests.conftest import wait_until
from tests.stack import RunningStack


def test_the_overview_shows_the_state_of_the_environment(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + OVERVIEW)
    for name in ("depth", "oldest", "wait", "throughput", "failures", "utilization"):
        expect(page.get_by_test_id(f"figure-{name}")).to_have_text(re.compile(r"\d"), timeout=FIRST_DATA_TIMEOUT_MS)
    expect(page.locator(".sparkline path").first).to_have_attribute("d", re.compile("^M"))
    expect(page.get_by_test_id("top-depth").get_by_role("link", name="reports")).to_be_visible()
    expect(page.get_by_test_id("top-depth")).to_contain_text("paused")
    expect(page.get_by_test_id("provenance")).to_contain_text("Final up to")
    expect(page.get_by_test_id("completeness")).to_contain_text("%")


def test_each_problem_is_two_clicks_from_the_overview(page: Page, dashboard_url: str) -> None:
    """Find a stuck queue, a failing task and a noisy tenant."""
    page.goto(dashboard_url + OVERVIEW)
    page.get_by_test_id("top-depth").get_by_role("link", name="reports").click()
    expect(page.get_by_test_id("tags")).to_contain_text("paused")

    page.goto(dashboard_url + OVERVIEW)
    environments = page.get_by_test_id("environments")
    failing = environments.locator("tr", has_text="initech")
    expect(failing.locator("td").nth(4)).to_have_text(re.compile(r"[1-9]"), timeout=FIRST_DATA_TIMEOUT_MS)
    failing.get_by_role("link", name=re.compile(r"^\d")).click()
    page.get_by_test_id("letter").first.click()
    expect(page.get_by_test_id("traceback")).to_contain_text("Traceback (most recent call last)")

    page.goto(dashboard_url + OVERVIEW)
    environments.get_by_role("link", name=re.compile("globex")).click()
    expect(page.get_by_test_id("figure-utilization")).to_have_text(re.compile("%"), timeout=FIRST_DATA_TIMEOUT_MS)
    page.get_by_test_id("top-wait_p95").get_by_role("link", name="thumbnails").click()
    expect(page).to_have_url(re.compile(r"/queues/thumbnails\?(.*&)?org=globex(&|$)"))


def test_links_do_not_reload_the_page(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + OVERVIEW)
    expect(page.get_by_test_id("tenant")).to_be_visible()
    page.evaluate("globalThis.here = true")
    for label in ("Queues", "Alerts", "Dead letters", "Autoscaler", "Pipeline", "Overview"):
        page.get_by_role("navigation").get_by_role("link", name=label).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(label)
    assert page.evaluate("globalThis.here") is True


@contextmanager
def invoices_paused(stack: RunningStack) -> Generator[None]:
    """Pause the failing queue, so that redriven jobs do not become dead letters again during the test."""
    with SyncClient(stack.urls["redis"]) as client:
        client.pause(FAILING)
        try:
            wait_until(lambda: not running(client.redis, FAILING), "running jobs have ended")
            yield
        finally:
            client.resume(FAILING)


def running(redis: Valkey, ref: QueueRef) -> int:
    return sum(state.running for state in read_states(redis, 2) if state.ref == ref)


def dead_invoices(stack: RunningStack, error: str = "") -> list[str]:
    answer = stack.get(f"api/v1/queues/invoices/dead?org=initech&project=billing&env=prod&error={quote(error)}")
    return [job["id"] for job in answer["jobs"]] if answer else []


def test_dead_letters_are_found_read_and_redriven(page: Page, dashboard_url: str, stack: RunningStack) -> None:
    wait_until(
        lambda: len(dead_invoices(stack, "no tax id")) > 1, "two without a tax id", FIRST_DATA_TIMEOUT_MS / 1000, 0.5
    )
    page.goto(dashboard_url + DEAD)
    letters = page.get_by_test_id("letter")
    expect(letters.first).to_be_visible()
    page.get_by_test_id("dead-error").fill("no tax id")
    page.keyboard.press("Enter")
    expect(letters.filter(has_not_text="no tax id")).to_have_count(0)
    expect(letters.first).to_contain_text("ValueError: cannot post invoice")
    page.get_by_test_id("pause").click()
    letters.first.click()
    expect(page.get_by_test_id("traceback")).to_contain_text("KeyError: 'tax_id'")
    expect(page.get_by_test_id("payload")).to_contain_text('"invoice"')

    with invoices_paused(stack):
        first = page.locator(".letter .facts a").first.inner_text()
        page.get_by_role("button", name=f"Redrive {first}").click()
        page.get_by_test_id("confirm").click()
        expect(page.get_by_test_id("dialog")).to_have_count(0)
        expect(page.get_by_role("link", name=first)).to_have_count(0)
        page.get_by_test_id("redrive-all").click()
        page.get_by_test_id("confirm").click()
        expect(page.get_by_test_id("dialog")).to_have_count(0)
        expect(page.get_by_test_id("empty")).to_contain_text(re.compile("No matches|No dead letters"))


def test_a_job_page_shows_the_job_and_redrives_it(page: Page, dashboard_url: str, stack: RunningStack) -> None:
    found = wait_until(lambda: dead_invoices(stack), "an invoice died", FIRST_DATA_TIMEOUT_MS / 1000, 0.5)[0]
    page.goto(dashboard_url + job("org=initech&project=billing&env=prod", found))
    expect(page.get_by_test_id("job-state")).to_have_text("dead")
    expect(page.get_by_test_id("job")).to_contain_text("post_invoice")
    expect(page.get_by_test_id("job")).to_contain_text("3 of 3")
    expect(page.get_by_test_id("traceback")).to_contain_text("_post_to_ledger")
    with invoices_paused(stack):
        page.get_by_test_id("redrive-job").click()
        page.get_by_test_id("confirm").click()
        expect(page.get_by_test_id("job-state")).not_to_have_text("dead")


def test_an_unknown_job_is_reported(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    page.goto(dashboard_url + job(ACME, "no/such job?"))
    expect(page.get_by_test_id("empty")).to_contain_text("No job 'no/such job?' in acme / shop / prod")
    page_errors[:] = [error for error in page_errors if "404" not in error]  # logged by the browser itself


def test_the_pipeline_page_shows_lag_and_batches(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + PIPELINE)
    expect(page.get_by_test_id("batches")).to_have_attribute("data-rows", re.compile(r"[1-9]"))
    for name in ("lag", "freshness", "batch"):
        expect(page.get_by_test_id(f"figure-{name}")).to_have_text(DURATION)
    for name in ("lost", "set-aside", "rewinds"):
        expect(page.get_by_test_id(f"figure-{name}")).to_have_text("0")


NO_LIVE_PARTS: dict[str, Any] = {"process": None, "streams": None, "valkey": None, "unavailable": {}}


def test_the_pipeline_page_shows_its_process_and_valkeys_memory(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + PIPELINE)
    expect(page.get_by_test_id("figure-process")).to_have_text("running", timeout=FIRST_DATA_TIMEOUT_MS)
    expect(page.get_by_test_id("figure-exporter")).to_have_text("sending")
    expect(page.get_by_test_id("figure-spool")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("figure-streams")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("figure-inserts")).to_have_text(re.compile(r"\d"))
    memory = page.get_by_test_id("memory")
    expect(memory).to_have_attribute("data-rows", "1")
    expect(memory.locator("tbody td").nth(1)).to_have_text(re.compile(r"\d.* [KMG]iB"))
    expect(page.get_by_test_id("unknown")).to_have_count(0)


def test_the_pipeline_page_shows_the_spool_while_clickhouse_is_away(page: Page, dashboard_url: str) -> None:
    """The page of a real pipeline, with the answer of an API whose ClickHouse is stopped, and a pipeline that ended."""
    shown: dict[str, Any] = {}

    def answer(route: Route) -> None:
        shown.update(route.fetch().json())
        for part in ("watermark", "lag_ms", "last_hour", "gaps", "batches"):
            shown[part] = None
        shown["unavailable"] = {"clickhouse": "A required server does not respond."}
        shown["process"] |= {"condition": "stale"}
        shown["process"]["spool"] |= {"records": 12, "bytes": 950 * 2**20, "max_records": 1000, "max_bytes": 2**30}
        shown["process"]["export"] |= {"breaker": "open", "healthy": False, "rows_per_s": None}
        shown["valkey"][0] |= {"limit": "maxmemory", "full_in_s": 600, "unknown": None}
        route.fulfill(json=shown)

    page.route("**/api/v1/pipeline?*", answer)
    page.goto(dashboard_url + PIPELINE)
    expect(page.get_by_test_id("figure-exporter")).to_have_text("waiting")
    expect(page.get_by_test_id("figure-spool")).to_have_text("950 MiB")
    expect(page.get_by_test_id("figure-inserts")).to_have_text("–")
    expect(page.get_by_test_id("figure-lag")).to_have_text("–")
    expect(page.get_by_test_id("full")).to_have_text("in 10 min")
    notices = page.get_by_test_id("unknown")
    expect(notices).to_have_count(2)
    expect(notices.first).to_contain_text("ClickHouse is unavailable")
    expect(notices.last).to_contain_text("These are its last values")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    expect_to_fit(page)


def event(number: int, **values: Any) -> dict[str, Any]:
    plain = {"id": number, "noticed_at": "2026-01-31T11:58:04Z", "server": "valkey", "shard": 1, "kind": "went back"}
    return {**plain, "description": None, "missing": 0, "queues": 0, "losses": [], **values}


def test_the_pipeline_page_shows_server_events_and_gaps(page: Page, dashboard_url: str) -> None:
    losses = [{"org": "acme", "project": "shop", "env": "prod", "queue": "emails", "missing": 12}]
    lost = event(2, missing=15, queues=3, losses=losses, description="Its replication id changed.")
    batch = {"finished_at": "2026-01-31T12:00:02Z", "batch_id": 812, "duration_ms": 640, "fresh_after_ms": 2100}
    counts = {"events": 1200, "rows": 14, "lost_events": 0, "set_aside": 0, "rewinds": 0}
    shares = dict.fromkeys(["duration_p50_ms", "duration_p99_ms", "freshness_p50_ms", "freshness_p99_ms"], 640)
    answer: dict[str, Any] = {
        **NO_LIVE_PARTS,
        **{"watermark": "2026-01-31T12:00:02Z", "lag_ms": 1485, "timestamp": "2026-01-31T12:00:03Z"},
        **{"last_hour": {"batches": 1, **counts, **shares}, "batches": [{**batch, **counts}]},
        "server_events": [lost, event(1, server="postgres", kind="promoted")],
        "gaps": [
            {"shard": 0, "start": "2026-01-31T11:20:00Z", "end": "2026-01-31T11:20:05Z", "events": 420},
            {"shard": 1, "start": "2026-01-31T11:21:00Z", "end": "2026-01-31T11:21:05Z", "events": None},
        ],
    }
    page.route("**/api/v1/pipeline?*", lambda route: route.fulfill(json=answer))
    page.goto(dashboard_url + PIPELINE)
    events = page.get_by_test_id("server-event")
    expect(events).to_have_count(2)
    expect(events.first).to_contain_text("Valkey: went back")
    expect(events.first).to_contain_text("15 accepted jobs missing in 3 queues")
    expect(events.first).to_contain_text("and 2 more queues")
    expect(events.first.get_by_test_id("server-event-loss")).to_have_text("acme / shop / prod / emails 12")
    expect(events.first.get_by_role("link")).to_have_attribute("href", re.compile(r"^/queues/emails\?"))
    expect(events.last).to_contain_text("no accepted jobs missing according to the counters")
    expect(page.get_by_test_id("gaps").locator("tbody td:last-child")).to_have_text(["unknown", "420"])
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    expect_to_fit(page)
    answer["server_events"] = None
    expect(page.get_by_test_id("empty")).to_contain_text("PostgreSQL, which stores them, did not respond")


def test_unknown_addresses_and_queues_are_reported(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    answer = page.goto(f"{dashboard_url}nothing")
    assert answer is not None
    assert answer.status == 404
    page.goto(f"{dashboard_url}queues/a%2Fb%20%F0%9F%90%9F?{GLOBEX}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("a/b 🐟")
    expect(page.get_by_test_id("empty").first).to_contain_text("No live state for this queue")
    page_errors[:] = [error for error in page_errors if "404" not in error]


def test_times_are_local_with_utc_on_hover(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + EMAILS)
    expect(page.locator("[data-testid=provenance] time").first).to_have_attribute("title", re.compile(r" UTC$"))
