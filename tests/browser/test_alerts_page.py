"""Alerts: incidents from firing to resolved; creating and removing rules, channels and silences."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Route, expect

from headrace.api.access import AccessLevel, KeyScope
from tests.access import make_key
from tests.browser.conftest import PageMonitor, open_monitored_page
from tests.browser.test_all_pages import SCHEMES, expect_to_fit, find_violations
from tests.browser.urls import ACME, ALERTS, FIRST_DATA_TIMEOUT_MS, GLOBEX, OVERVIEW
from tests.stack import RunningStack

FIRING_TIMEOUT_MS = 480_000
"""From a met condition to the page: pipeline, evaluation round, refresh; at worst a cooldown of five minutes too."""

LISTS = {"incidents": "open-incidents", "rules": "rules", "channels": "channels", "silences": "silences"}


def confirm(page: Page) -> None:
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("dialog")).to_have_count(0)


def fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        field = page.get_by_test_id(f"field-{name}")
        if field.evaluate("(field) => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def set_paused(page: Page, url: str, paused: bool) -> None:
    """Pause or resume the queue that the demo leaves paused; other tests use it too."""
    page.goto(f"{url}queues/reports?{ACME}")
    button = page.get_by_test_id("pause-queue")
    expect(button).to_be_visible()
    if (button.inner_text() == "Pause queue") == paused:
        button.click()
        confirm(page)
    expect(button).to_have_text("Resume queue" if paused else "Pause queue")


def incidents(page: Page, state: str, rule: str) -> Locator:
    return page.get_by_test_id(f"{state}-incidents").get_by_test_id("incident").filter(has_text=rule)


def test_an_incident_fires_is_acknowledged_and_resolves_when_the_queue_resumes(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}alerts?{ACME}&show=rules")
    expect(page.get_by_test_id("rule").filter(has_text="jobs wait too long")).to_contain_text("Oldest job above 30 s")
    page.get_by_test_id("new-rule").click()
    fill(page, name="reports stand still", metric="OLDEST_AGE", threshold="30 s", queue="reports")
    fill(page, window="5 s", cooldown="0 s", severity="critical")
    confirm(page)

    page.goto(dashboard_url + OVERVIEW)
    alert = page.get_by_test_id("open-alerts").get_by_role("link", name="reports stand still: reports")
    expect(alert).to_be_visible(timeout=FIRING_TIMEOUT_MS)
    expect(page.get_by_test_id("open-alerts")).to_contain_text(re.compile(r"[1-9] *critical"))
    expect(page.get_by_test_id("badge-alerts")).to_contain_text(re.compile("[1-9]"))
    alert.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("reports stand still")
    expect(page).to_have_url(re.compile(r"\?(?=.*\bincident=)(?=.*\borg=)"))
    page.reload()
    expect(page.get_by_test_id("story")).to_contain_text("Fired")
    expect(page.get_by_test_id("incident-facts")).to_contain_text("Oldest job above 30 s over 5 s")
    expect(page.get_by_test_id("current-value")).to_contain_text("now ")
    page.get_by_test_id("resolve").click()
    confirm(page)
    expect(page.get_by_test_id("story")).to_contain_text("Resolved resolved by")

    page.get_by_role("link", name="All alerts").click()
    row = incidents(page, "open", "reports stand still")  # fires again, because the condition still holds
    expect(row).to_be_visible(timeout=FIRING_TIMEOUT_MS)
    expect(row.get_by_role("link", name="reports", exact=True)).to_have_attribute("href", re.compile("/queues/reports"))
    row.get_by_test_id("acknowledge").click()
    confirm(page)
    expect(row.get_by_test_id("incident-state")).to_have_attribute("data-state", "acknowledged")
    row.get_by_role("link", name="reports stand still").click()
    expect(page.get_by_test_id("story")).to_contain_text("Acknowledged")
    address = page.url

    try:
        set_paused(page, dashboard_url, False)
        page.goto(f"{dashboard_url}alerts?{ACME}")
        expect(incidents(page, "resolved", "reports stand still")).to_have_count(2, timeout=FIRING_TIMEOUT_MS)
        expect(incidents(page, "open", "reports stand still")).to_have_count(0)
        page.goto(address)
        expect(page.get_by_test_id("story").locator("li")).to_have_text(
            [re.compile("Fired"), re.compile("Acknowledged by"), re.compile("Resolved")]
        )
    finally:
        set_paused(page, dashboard_url, True)
    page.goto(dashboard_url + OVERVIEW)  # restore the state that other tests expect
    stuck = page.get_by_test_id("top-depth").get_by_role("link", name="reports")
    expect(stuck).to_be_visible(timeout=FIRST_DATA_TIMEOUT_MS)
    page.goto(f"{dashboard_url}alerts?{ACME}&show=rules")
    page.get_by_role("button", name="Remove reports stand still").click()
    confirm(page)
    expect(page.get_by_test_id("rule").filter(has_text="reports stand still")).to_have_count(0)


def test_a_second_acknowledgement_is_already_handled(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    page.goto(dashboard_url + ALERTS)
    row = incidents(page, "open", "invoices fail")
    expect(row).to_be_visible(timeout=FIRING_TIMEOUT_MS)
    row.get_by_test_id("acknowledge").click()
    other = page.context.new_page()
    other.goto(dashboard_url + ALERTS)
    incidents(other, "open", "invoices fail").get_by_test_id("acknowledge").click()
    confirm(other)
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("failure")).to_contain_text("Already handled. The incident is already acknowledged")
    page.keyboard.press("Escape")
    expect(row.get_by_test_id("incident-state")).to_have_attribute("data-state", "acknowledged")
    page_errors[:] = [error for error in page_errors if "409" not in error]  # logged by the browser itself


def test_a_rule_is_checked_against_history_before_it_is_saved(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}alerts?{ACME}&show=rules")
    page.get_by_test_id("new-rule").click()
    fill(page, metric="OLDEST_AGE", threshold="30 s", queue="reports", window="5 s")
    result = page.get_by_test_id("backtest-result")
    check = page.get_by_test_id("backtest")
    check.click()
    expect(result).to_contain_text("in the last 24 hours (1 queue)", timeout=FIRST_DATA_TIMEOUT_MS)
    expect(result).to_contain_text("History was unknown for")  # the stack is younger than a day
    fill(page, name="any name")
    expect(result).to_contain_text("in the last 24 hours")
    fill(page, metric="SLO", objective="90 %", within="1 ms", threshold="1")
    expect(result).to_be_empty()  # of another rule
    check.click()
    expect(result).to_contain_text("in the last 24 hours", timeout=FIRST_DATA_TIMEOUT_MS)
    fill(page, name="mail in time", queue="emails", window="1 min")
    confirm(page)
    rule = page.get_by_test_id("rule").filter(has_text="mail in time")
    expect(rule).to_contain_text("Burn rate above 1 over 60 s (90 % start within 1 ms)")
    rule.get_by_test_id("remove-rule").click()
    confirm(page)
    expect(rule).to_have_count(0)


def test_rules_are_created_edited_disabled_and_removed(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}alerts?{GLOBEX}")
    expect(page.get_by_test_id("open-incidents").locator("xpath=..")).to_contain_text("No rules enabled")
    page.get_by_test_id("show-rules").click()
    expect(page.get_by_test_id("empty")).to_contain_text("No rules yet")

    page.get_by_test_id("new-rule").click()
    expect(page.get_by_test_id("confirm")).to_be_disabled()
    fill(page, name="slow", metric="LATENCY", percentile="p99", threshold="90", window="7 s")
    expect(page.get_by_test_id("wrong")).to_contain_text("a duration with a unit")
    expect(page.get_by_test_id("backtest")).to_have_count(0)
    fill(page, threshold="1 h")
    page.get_by_test_id("backtest").click()
    expect(page.get_by_test_id("backtest-result")).to_contain_text("window_s must be a multiple of 5")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("failure")).to_contain_text("window_s must be a multiple of 5")
    fill(page, window="10 s")
    confirm(page)
    rule = page.get_by_test_id("rule")
    expect(rule).to_contain_text("Wait time p99 above 1 h over 10 s")
    expect(rule).to_contain_text("no notifications")
    expect(rule).to_contain_text("never fired")
    expect(rule).to_contain_text("created")

    rule.get_by_test_id("change-rule").click()
    fill(page, name="very slow", severity="info", queue="thumbnails")
    confirm(page)
    expect(rule).to_contain_text("very slow")
    expect(rule.get_by_role("link", name="thumbnails")).to_be_visible()
    rule.get_by_role("switch").click()
    confirm(page)
    expect(rule.get_by_role("switch")).to_have_attribute("aria-checked", "false")
    expect(rule).to_contain_text("disabled")
    rule.get_by_test_id("remove-rule").click()
    confirm(page)
    expect(page.get_by_test_id("empty")).to_contain_text("No rules yet")
    page_errors[:] = [error for error in page_errors if "400" not in error]  # logged by the browser itself


@contextmanager
def receiver() -> Generator[str]:
    """Run a server that accepts every POST; yields its URL."""

    class AcceptingHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), AcceptingHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-path"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_channel_shows_its_secret_once_and_test_outcomes(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}alerts?{GLOBEX}&show=channels")
    expect(page.get_by_test_id("empty")).to_contain_text("No channels yet")
    with receiver() as address:
        page.get_by_test_id("new-channel").click()
        fill(page, name="ops", type="webhook", url=address)
        page.get_by_test_id("confirm").click()
        expect(page.get_by_test_id("secret")).to_have_text(re.compile("^[0-9a-f]{64}$"))
        confirm(page)
        channel = page.get_by_test_id("channel")
        expect(channel).to_contain_text("http://127.0.0.1")
        expect(page.locator("body")).not_to_contain_text("secret-path")
        channel.get_by_test_id("test-channel").click()
        expect(channel.get_by_test_id("test-outcome")).to_have_text(
            "Test message delivered.", timeout=FIRST_DATA_TIMEOUT_MS
        )
        expect(channel).to_contain_text("last sent")
    channel.get_by_test_id("test-channel").click()
    expect(channel.get_by_test_id("test-outcome")).to_contain_text("Not delivered: ", timeout=FIRST_DATA_TIMEOUT_MS)
    expect(channel.get_by_test_id("channel-failures")).to_contain_text("consecutive failure")
    channel.get_by_test_id("remove-channel").click()
    confirm(page)
    expect(page.get_by_test_id("empty")).to_contain_text("No channels yet")


def test_a_silence_is_created_and_ended(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}alerts?{GLOBEX}&show=silences")
    page.get_by_test_id("new-silence").click()
    fill(page, queue="thumbnails", length="4 h", reason="the new release")
    confirm(page)
    silence = page.get_by_test_id("silence")
    expect(silence).to_contain_text("All rules, thumbnails")
    expect(silence).to_contain_text("the new release")
    silence.get_by_test_id("end-silence").click()
    confirm(page)
    expect(page.get_by_test_id("empty")).to_contain_text("No silences")


def test_older_incidents_come_in_pages(page: Page, dashboard_url: str) -> None:
    def incident(number: int) -> dict[str, Any]:
        return {
            **{"org": "acme", "project": "shop", "env": "prod", "queue": "emails", "id": f"i-{number}"},
            **{"rule_id": "rule_1", "rule": f"rule {number}", "condition": "BACKLOG > 10 jobs over 5 min", "value": 12},
            **{"severity": "info", "state": "resolved", "reason": None, "acknowledged_at": None},
            **{"acknowledged_by": None, "fired_at": "2026-01-31T12:00:00Z", "resolved_at": "2026-01-31T12:05:00Z"},
            **{"current_value": None, "current_at": None},
        }

    def answer(route: Route) -> None:
        older = "cursor=older" in route.request.url
        body = {"incidents": [incident(2 if older else 1)], "next": None if older else "older"}
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route("**/api/v1/alerts/incidents?*state=resolved*", answer)
    page.goto(f"{dashboard_url}alerts?{ACME}")
    resolved = page.get_by_test_id("resolved-incidents")
    expect(resolved).to_have_attribute("data-count", "1")
    page.get_by_test_id("more").click()
    expect(resolved).to_have_attribute("data-count", "2")
    expect(resolved).to_contain_text("12 jobs · Depth above 10 jobs over 5 min")
    expect(resolved).to_contain_text("lasted 5 min")
    expect(page.get_by_test_id("more")).to_have_count(0)


def test_an_incident_shows_the_outcome_of_its_messages(page: Page, dashboard_url: str) -> None:
    def delivery(channel: str, **values: Any) -> dict[str, Any]:
        plain = {"id": channel, "channel_id": channel, "channel": channel, "kind": "firing", "attempts": 1}
        times = {"created_at": "2026-01-31T12:00:00Z", "delivered_at": None, "given_up_at": None}
        return {**plain, **times, "error": None, **values}

    incident = {
        **{"org": "acme", "project": "shop", "env": "prod", "queue": "emails", "id": "i-1", "rule_id": "rule_1"},
        **{"rule": "slow mail", "condition": "BACKLOG > 10 jobs over 5 min", "value": 12, "severity": "info"},
        **{"state": "firing", "reason": None, "acknowledged_at": None, "acknowledged_by": None},
        **{"fired_at": "2026-01-31T12:00:00Z", "resolved_at": None, "transitions": []},
        **{"current_value": 9, "current_at": "2026-01-31T12:05:00Z"},
        "deliveries": [
            delivery("chat", delivered_at="2026-01-31T12:00:01Z"),
            delivery("mail", delivered_at="2026-01-31T12:00:02Z", error="refused: bad@example.com"),
            delivery("pager", attempts=5, given_up_at="2026-01-31T12:01:00Z", error="HTTP 410"),
        ],
    }
    page.route("**/api/v1/alerts/incidents/i-1", lambda route: route.fulfill(json=incident))
    page.goto(f"{dashboard_url}alerts?{ACME}&incident=i-1")
    shown = page.get_by_test_id("delivery")
    expect(shown).to_have_count(3)
    expect(page.get_by_test_id("current-value")).to_have_text(re.compile("^9 jobs .* ago, unknown since$"))
    expect(shown.nth(0).get_by_test_id("delivery-state")).to_have_text("delivered")
    expect(shown.nth(1)).to_contain_text("delivered, but not to every recipient")
    expect(shown.nth(1)).to_contain_text("refused: bad@example.com")
    expect(shown.nth(2)).to_contain_text("not delivered, given up after 5 attempts")
    expect(shown.nth(2)).to_contain_text("HTTP 410")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    expect_to_fit(page)


def test_an_unknown_incident_is_reported(page: Page, page_errors: list[str], dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}{ALERTS}&incident=nothing")
    expect(page.get_by_test_id("empty")).to_contain_text("Incident 'nothing' does not exist")
    page_errors[:] = [error for error in page_errors if "404" not in error]  # logged by the browser itself


def test_a_reader_sees_alerts_and_no_buttons(browser: Browser, monitor: PageMonitor, stack: RunningStack) -> None:
    key = make_key(stack.urls["postgres"], KeyScope("initech", "billing", "prod"), AccessLevel.READ, "reader of alerts")
    page = open_monitored_page(browser.new_context(), monitor)
    page.goto(stack.dashboard + ALERTS)
    page.get_by_test_id("key").fill(key)
    page.get_by_test_id("sign-in").click()
    for shown, listed in LISTS.items():
        page.get_by_test_id(f"show-{shown}").click()
        expect(page.get_by_test_id(listed)).to_be_attached()
        expect(page.locator("main .card button")).to_have_count(0)
    page.context.close()
