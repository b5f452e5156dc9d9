"""The autoscaler page: wanted workers, the reason, and the inputs of decisions."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.test_all_pages import SCHEMES, expect_to_fit, find_violations
from tests.browser.urls import FIRST_DATA_TIMEOUT_MS


def test_a_worker_type_shows_its_wanted_workers_and_the_reason(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}autoscaler")
    mail = page.get_by_test_id("worker-type").filter(has_text="mail")
    expect(mail).to_be_visible(timeout=FIRST_DATA_TIMEOUT_MS)
    expect(mail).to_contain_text(re.compile(r"[1-8] wanted.*1 to 8.*emails, reports.*acme / shop / prod"))
    expect(mail).to_contain_text(re.compile(r"(Kept at|Raised from \d to|Lowered from \d to) [1-8]: "))
    mail.get_by_role("link", name="mail").click()
    expect(page.get_by_test_id("figure-wanted")).to_have_text(re.compile("[1-8]"))
    expect(page.get_by_test_id("decisions")).not_to_have_attribute(
        "data-count", re.compile("^[01]$"), timeout=FIRST_DATA_TIMEOUT_MS
    )
    expect(page.get_by_test_id("steps").locator("path").last).to_have_attribute("d", re.compile("^M0 .*H"))
    page.get_by_test_id("decision").first.click()
    expect(page.get_by_test_id("inputs")).to_contain_text("emails")
    expect(page.get_by_test_id("inputs")).to_contain_text("allowed by limits and pauses")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    expect_to_fit(page)
    page.get_by_test_id("changes").check()
    expect(page).to_have_url(re.compile("changes=only"))
    page.reload()
    expect(page.get_by_test_id("changes")).to_be_checked()


def test_without_worker_types_the_page_explains_how_to_define_them(page: Page, dashboard_url: str) -> None:
    page.route("**/api/v1/autoscale", lambda route: route.fulfill(content_type="application/json", body='{"types":[]}'))
    page.goto(f"{dashboard_url}autoscaler")
    expect(page.get_by_test_id("empty")).to_contain_text("autoscale.types")
    assert find_violations(page) == []
