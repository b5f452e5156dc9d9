"""Dead letters after the first page: refreshed like the first, and reset with the filter."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, Route, expect

from tests.browser.urls import DEAD

NEXT = "the-older-ones"


def letter(job_id: str) -> dict[str, Any]:
    times = {"enqueued_at": "2026-01-31T12:00:00Z", "buried_at": "2026-01-31T12:00:05Z"}
    counts = {"attempts": 3, "max_attempts": 3, "bytes": 2}
    return {"id": job_id, "task": "post", "flow": "", "flow_type": "", "error": f"boom of {job_id}", **counts, **times}


class Dead:
    """Mock of two pages of dead letters; with an error filter there is a single one."""

    def __init__(self, page: Page) -> None:
        self.older = ["old-1", "old-2"]
        page.route("**/api/v1/queues/invoices/dead?*", self._answer)

    def _answer(self, route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        if "error" in query:
            ids, following = ["other"], None
        elif query.get("cursor") == [NEXT]:
            ids, following = self.older, None
        else:
            ids, following = ["new-1"], NEXT
        body = {"jobs": [letter(each) for each in ids], "next": following}
        route.fulfill(content_type="application/json", body=json.dumps(body))


def test_older_pages_are_refreshed_and_reset_with_the_filter(page: Page, dashboard_url: str) -> None:
    dead = Dead(page)
    page.goto(f"{dashboard_url}{DEAD}&queue=invoices")
    letters = page.get_by_test_id("letters")
    expect(letters).to_have_attribute("data-count", "1")
    page.get_by_test_id("more").click()
    expect(letters).to_have_attribute("data-count", "3")
    error = page.get_by_test_id("dead-error")
    error.fill("other")
    dead.older = ["old-2"]  # the other one was redriven
    expect(letters).to_have_attribute("data-count", "2")
    expect(letters).not_to_contain_text("old-1")
    expect(error).to_have_value("other")  # a refresh keeps the text being typed
    error.press("Enter")
    expect(letters).to_have_attribute("data-count", "1")
    expect(letters).to_contain_text("boom of other")
    error.fill("")
    error.press("Enter")
    expect(letters).to_contain_text("new-1")
    expect(page.get_by_test_id("more")).to_be_visible()  # starts with the first page again
