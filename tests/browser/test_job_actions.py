"""Cancelling a running job, and tasks that no worker has, against a mocked API."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, Route, expect

from tests.browser.urls import ACME, EMAILS, job

RUNNING: dict[str, Any] = {
    **{"id": "1", "state": "running", "org": "acme", "project": "shop", "env": "prod", "queue": "emails"},
    **{"task": "send", "flow": "", "flow_type": "", "priority": 0, "attempts": 1, "max_attempts": 5},
    **{"enqueued_at": "2026-01-31T12:00:00Z", "due_at": "2026-01-31T12:00:00Z", "expires_at": None},
    **{"payload": None, "args": None, "headers": {}, "codec": "json", "progress": {"done": 3, "total": 4}},
    **{"error": None, "cancel_requested": False},
}


class MockedJob:
    """A running job, and the queries of the requests that cancelled it."""

    def __init__(self, page: Page) -> None:
        self.state = dict(RUNNING)
        self.cancels: list[dict[str, list[str]]] = []
        page.route("**/api/v1/jobs/1?*", self._answer)

    def _answer(self, route: Route) -> None:
        if route.request.method == "DELETE":
            self.cancels.append(parse_qs(urlsplit(route.request.url).query))
            self.state["cancel_requested"] = True
            body: dict[str, Any] = {"id": "1", "was": "running"}
        else:
            body = self.state
        route.fulfill(content_type="application/json", body=json.dumps(body))


def test_a_running_job_is_cancelled_after_a_confirmation(page: Page, dashboard_url: str) -> None:
    mocked = MockedJob(page)
    page.goto(dashboard_url + job(ACME, "1"))
    page.get_by_test_id("cancel-job").click()
    dialog = page.get_by_role("dialog")
    expect(page.get_by_test_id("job")).to_contain_text("3 of 4")
    expect(dialog).to_contain_text("stops it at the next heartbeat")
    assert mocked.cancels == []
    dialog.get_by_role("button", name="Cancel job").click()
    expect(page.get_by_test_id("job")).to_contain_text("to be cancelled")
    expect(page.get_by_test_id("cancel-job")).to_have_count(0)
    assert [each["running"] for each in mocked.cancels] == [["true"]]


def test_tasks_that_no_worker_has_are_named(page: Page, dashboard_url: str) -> None:
    times = {"since": "2026-01-31T12:00:00Z", "last_at": "2026-01-31T12:01:00Z"}

    def answer(route: Route) -> None:
        found = route.fetch()
        detail = {**found.json(), "missing_tasks": [{"task": "send_later", "deferrals": 12, **times}]}
        route.fulfill(response=found, json=detail)

    page.route("**/api/v1/queues/emails?*", answer)
    page.goto(dashboard_url + EMAILS)
    expect(page.get_by_test_id("missing-task")).to_contain_text("No worker has task send_later")
    expect(page.get_by_test_id("missing-task")).to_contain_text("12 times")
