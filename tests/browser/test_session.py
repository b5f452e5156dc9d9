"""Signing in, choosing an environment, and what each level of key may do."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page, expect

from headrace.api.access import AccessLevel, KeyScope
from tests.access import make_key
from tests.browser.conftest import PageMonitor, open_monitored_page
from tests.browser.urls import ACME, EMAILS, GLOBEX, QUEUES
from tests.stack import RunningStack


def sign_in(page: Page, key: str) -> None:
    page.get_by_test_id("key").fill(key)
    page.get_by_test_id("sign-in").click()


def test_signing_in_needs_a_valid_key(signed_out_page: Page, page_errors: list[str], stack: RunningStack) -> None:
    signed_out_page.goto(stack.dashboard + QUEUES)
    with signed_out_page.expect_console_message(lambda message: message.type == "error"):
        sign_in(signed_out_page, "hr_wrong")
    expect(signed_out_page.get_by_test_id("refused")).to_contain_text("Invalid API key")
    # The browser itself logs the 401 of the wrong key; no other request was refused.
    assert [error for error in page_errors if "401" not in error] == []
    assert len(page_errors) == 1
    page_errors.clear()
    sign_in(signed_out_page, stack.key)
    expect(signed_out_page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()
    signed_out_page.reload()
    expect(signed_out_page.get_by_test_id("tenant")).to_be_visible()
    signed_out_page.get_by_test_id("sign-out").click()
    expect(signed_out_page.get_by_test_id("key")).to_be_visible()


def test_a_link_signs_in_one_browser(signed_out_page: Page, page_errors: list[str], stack: RunningStack) -> None:
    link = stack.link()
    signed_out_page.goto(link)
    expect(signed_out_page.get_by_test_id("tenant")).to_be_visible()
    expect(signed_out_page).to_have_url(re.compile(r"//[^/]+/(\?|$)"))
    signed_out_page.goto("about:blank")
    signed_out_page.context.clear_cookies()
    answer = signed_out_page.goto(link)
    assert answer is not None
    assert answer.status == 404
    expect(signed_out_page.get_by_role("heading")).to_have_text("This sign-in link is not valid")
    # The browser logs every 404.
    page_errors[:] = [error for error in page_errors if "404" not in error]


def test_the_environment_is_selected_by_part_and_stored_in_the_url(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + QUEUES)
    page.get_by_test_id("tenant-org").select_option("globex")
    expect(page.get_by_test_id("tenant-project")).to_have_value("media")
    expect(page).to_have_url(re.compile(rf"[?&]{GLOBEX}(&|$)"))
    page.go_back()
    expect(page.get_by_test_id("tenant-org")).to_have_value("acme")


def test_a_reader_sees_one_environment_and_no_buttons(
    browser: Browser, monitor: PageMonitor, stack: RunningStack
) -> None:
    key = make_key(stack.urls["postgres"], KeyScope("acme", "shop", "prod"), AccessLevel.READ, "reader")
    page = open_monitored_page(browser.new_context(), monitor)
    page.goto(stack.dashboard + EMAILS)
    sign_in(page, key)
    expect(page.get_by_test_id("figure-depth")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("tenant-org").locator("option")).to_have_text(["acme"])
    expect(page.get_by_test_id("actions")).to_have_count(0)
    page.context.close()


def test_an_operator_pauses_and_limits_a_queue(page: Page, dashboard_url: str) -> None:
    page.goto(f"{dashboard_url}queues/search-index?{ACME}&range=5m")
    page.get_by_test_id("pause-queue").click()
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("tags")).to_contain_text("paused")
    page.get_by_test_id("pause-queue").click()
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("tags")).not_to_contain_text("paused")

    page.get_by_test_id("set-limit").click()
    page.get_by_test_id("limit").fill("7")
    page.get_by_test_id("confirm").click()
    expect(page.locator(".stat", has=page.get_by_test_id("figure-running"))).to_contain_text("/ 7")
    page.get_by_test_id("set-limit").click()
    page.get_by_test_id("limit").fill("")
    page.keyboard.press("Enter")
    expect(page.locator(".stat", has=page.get_by_test_id("figure-running"))).to_contain_text("no limit")


def test_closing_a_dialog_changes_nothing(page: Page, dashboard_url: str) -> None:
    page.goto(dashboard_url + EMAILS)
    page.get_by_test_id("pause-queue").click()
    expect(page.get_by_test_id("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("dialog")).to_have_count(0)
    expect(page.get_by_test_id("pause-queue")).to_be_focused()
    expect(page.get_by_test_id("tags")).not_to_contain_text("paused")
