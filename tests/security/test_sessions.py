"""Attacks on sessions: cookies after the session's end, blocked or logged links, forged addresses."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from headrace.api import sessions
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.api_keys import KeyRing, generate_key, parse_key_id
from headrace.api.housekeeping import ApiHousekeeping
from headrace.api.rate_limit import RequestRateLimiter
from headrace.api.services import FAILURES_BURST, FAILURES_PER_S, Services
from headrace.cli import main
from headrace.errors import DatabaseUnavailable
from headrace.postgres.connect import connect
from headrace.settings import ApiSettings
from tests.access import client, client_with_key, make_key
from tests.operating import NOBODY, Server

HERE = {"Sec-Fetch-Site": "same-origin"}
ME, SESSIONS = "/api/v1/session", "/api/v1/sessions"


@pytest.fixture
def to(valkey_url: str, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, NOBODY, "x", 2, postgres_url, ApiSettings(rate=1000.0))
    made.failed_key_limits = RequestRateLimiter(FAILURES_PER_S, FAILURES_BURST, clock=lambda: 0.0)
    yield made
    made.close()


def with_settings(services: Services, **changed: Any) -> Services:
    made = replace(services, settings=replace(services.settings, **changed))
    made.failed_key_limits = RequestRateLimiter(FAILURES_PER_S, FAILURES_BURST, clock=lambda: 0.0)
    return made


def sign_in(to: Services, key: str, **options: Any) -> TestClient:
    browser = client(to, **options)
    answer = browser.post(ME, json={"key": key}, headers=HERE)
    assert answer.status_code == 200, answer.text
    return browser


def steal_cookie(browser: TestClient) -> dict[str, str]:
    """Return a copy of the browser's cookie."""
    [(name, value)] = browser.cookies.items()
    return {"Cookie": f"{name}={value}"}


def read_session_id(browser: TestClient) -> str:
    return browser.get(ME).json()["session_id"]


def create_link(to: Services, key: str) -> str:
    with connect(to.postgres_url) as conn:
        return sessions.create_login_link(conn, parse_key_id(key) or "")


# --- Sessions end ---------------------------------------------------------------------------------


def test_a_copied_cookie_is_worth_nothing_after_sign_out(to: Services) -> None:
    browser = sign_in(to, make_key(to.postgres_url))
    cookie = steal_cookie(browser)
    other_process = replace(to)
    assert [client(each).get(ME, headers=cookie).status_code for each in (to, other_process)] == [200, 200]
    assert browser.delete(ME, headers=HERE).status_code == 204
    assert client(to).get(ME, headers=cookie).status_code == 401
    other_process.key_ring.refresh()  # the API refreshes every two seconds
    assert client(other_process).get(ME, headers=cookie).status_code == 401
    assert client(to).delete(ME, headers={**cookie, **HERE}).status_code == 204
    other_process.close()


def test_one_session_is_revoked_and_the_others_stay(to: Services) -> None:
    key = make_key(to.postgres_url, name="ann")
    lost, kept = sign_in(to, key), sign_in(to, key)
    listed = kept.get(SESSIONS).json()["sessions"]
    assert {each["id"]: each["current"] for each in listed} == {
        read_session_id(lost): False,
        read_session_id(kept): True,
    }
    assert {(each["key_name"], each["via"], each["address"]) for each in listed} == {("ann", "key", "testclient")}
    assert kept.delete(f"{SESSIONS}/{read_session_id(lost)}", headers=HERE).status_code == 204
    assert [browser.get(ME).status_code for browser in (lost, kept)] == [401, 200]
    assert kept.delete(f"{SESSIONS}/{listed[0]['id']}x", headers=HERE).status_code == 404
    [entry] = [each for each in kept.get("/api/v1/audit").json()["entries"] if each["action"] == "session.revoke"]
    assert entry["outcome"] == "done"


def test_sessions_of_others_can_neither_be_seen_nor_revoked(to: Services) -> None:
    """A caller sees sessions of its own key; an admin also those of keys within its scope."""
    own = KeyScope("acme", "shop")
    scopes = {
        "globex": KeyScope("globex"), "wider": KeyScope("acme"), "everything": GLOBAL_SCOPE,
        "beside": KeyScope("acme", "blog"), "same": own, "within": KeyScope("acme", "shop", "prod"),
    }  # fmt: skip
    browsers = {name: sign_in(to, make_key(to.postgres_url, scope, name=name)) for name, scope in scopes.items()}
    ids = {name: read_session_id(browser) for name, browser in browsers.items()}
    for level in AccessLevel:
        api = client_with_key(to, own, level)
        reached = {"same", "within"} if level == AccessLevel.ADMIN else set[str]()
        assert {each["key_name"] for each in api.get(SESSIONS).json()["sessions"]} == reached
        for name in set(scopes) - reached:
            there, absent = (api.delete(f"{SESSIONS}/{each}") for each in (ids[name], "0" * 16))
            assert there.status_code == absent.status_code == 404
            assert there.text.replace(ids[name], "…") == absent.text.replace("0" * 16, "…")
    assert {browser.get(ME).status_code for browser in browsers.values()} == {200}
    admin = client_with_key(to, own, AccessLevel.ADMIN)
    assert [admin.delete(f"{SESSIONS}/{ids[name]}").status_code for name in ("same", "within")] == [204, 204]
    assert [browsers[name].get(ME).status_code for name in ("same", "within", "wider")] == [401, 401, 200]


def test_the_id_of_a_session_is_no_cookie(to: Services) -> None:
    """Lists show the ids of sessions."""
    browser = sign_in(to, make_key(to.postgres_url))
    name, value = steal_cookie(browser)["Cookie"].split("=", 1)
    session_id, _, secret = value.partition(".")
    with connect(to.postgres_url) as conn:
        assert secret not in str(conn.execute("SELECT s::text FROM api_sessions s").fetchall())
    for forged in (session_id, f"{session_id}.", f"{session_id}.{'0' * 64}", f".{secret}", f"{secret}.{session_id}"):
        assert client(to).get(ME, headers={"Cookie": f"{name}={forged}"}).status_code == 401
        client(to).delete(ME, headers={"Cookie": f"{name}={forged}", **HERE})
    assert browser.get(ME).status_code == 200


def test_sessions_of_a_key_are_limited_and_the_oldest_ends(to: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS_PER_KEY", 2)
    key = make_key(to.postgres_url)
    browsers = [sign_in(to, key) for _ in range(3)]
    assert [browser.get(ME).status_code for browser in browsers] == [401, 200, 200]
    pages = [browsers[1].get(SESSIONS, params={"limit": 1}).json()]
    pages.append(browsers[1].get(SESSIONS, params={"limit": 1, "cursor": pages[0]["next"]}).json())
    assert [each["id"] for page in pages for each in page["sessions"]] == [
        read_session_id(each) for each in browsers[:0:-1]
    ]
    assert pages[1]["next"] is None


def test_a_live_stream_ends_with_its_session(to: Services) -> None:
    """An open connection does not prolong a session."""
    key = make_key(to.postgres_url)
    with Server(to) as server, httpx.Client(base_url=server.url, timeout=120) as browser:
        assert browser.post(ME, json={"key": key}).status_code == 200
        with browser.stream("GET", "/api/v1/stream") as stream:
            lines = stream.iter_lines()
            assert "event: snapshot" in (next(lines) for _ in range(5))
            assert browser.delete(ME, headers=HERE).status_code == 204
            assert "event: end" in lines


def test_what_is_over_is_deleted_and_use_is_noted(to: Services) -> None:
    browser = sign_in(to, make_key(to.postgres_url))
    assert browser.get(SESSIONS).json()["sessions"][0]["last_used_at"] is None
    ApiHousekeeping(to).flush_used()
    assert browser.get(SESSIONS).json()["sessions"][0]["last_used_at"] is not None
    with connect(to.postgres_url) as conn:
        conn.execute("UPDATE api_sessions SET expires_at = now()")
        ApiHousekeeping(to).purge_old_rows()
        assert conn.execute("SELECT count(*) FROM api_sessions").fetchone() == (0,)
    to.key_ring.refresh()
    assert browser.get(ME).status_code == 401


def test_sessions_on_the_command_line(
    to: Services, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> Any:
        environ = {"HEADRACE_POSTGRES_URL": postgres_url}
        result = CliRunner(env=environ).invoke(main.headrace, ["sessions", *arguments], prog_name="headrace")
        assert result.exit_code == code, result.output
        return result.output

    key = make_key(postgres_url, name="ann")
    lost, kept = sign_in(to, key), sign_in(to, make_key(postgres_url, name="bob"))
    assert read_session_id(lost) in run("list")
    [found] = json.loads(run("list", "--key", parse_key_id(key) or "", "--json"))["sessions"]
    assert (found["id"], found["key_name"]) == (read_session_id(lost), "ann")
    assert json.loads(run("revoke", found["id"], "--json"))["key_name"] == "ann"
    assert "No active session" in run("revoke", found["id"], code=1)
    to.key_ring.refresh()
    assert [browser.get(ME).status_code for browser in (lost, kept)] == [401, 200]


# --- Sign-ins that fail ----------------------------------------------------------------------------


def exhaust(to: Services, **options: Any) -> list[int]:
    api = client(to, **options)
    return [api.post(ME, json={"key": generate_key()}).status_code for _ in range(FAILURES_BURST + 1)]


def test_failed_sign_ins_do_not_block_links_of_others(to: Services) -> None:
    """The attacker shares the address, for example behind a proxy."""
    key = make_key(to.postgres_url)
    token = create_link(to, key)
    assert exhaust(to)[-1] == 429
    guesses = ("guessed", "A" * 43, token[:-1] + ("A" if token[-1] != "A" else "B"))
    assert {client(to).get(f"/login/{guess}").status_code for guess in guesses} == {429}
    browser = client(to)
    assert browser.get(f"/login/{token}").status_code == 303
    assert browser.get(SESSIONS).json()["sessions"][0]["via"] == "link"
    assert client(to).post(ME, json={"key": key}).status_code == 200


def test_a_made_up_address_evades_no_limit(to: Services) -> None:
    """On loopback, where the HTTP server itself used to trust the header."""
    with Server(to) as server, httpx.Client(base_url=server.url, timeout=60) as attacker:
        statuses = [
            attacker.post(
                ME, json={"key": generate_key()}, headers={"X-Forwarded-For": f"198.51.100.{number}"}
            ).status_code
            for number in range(FAILURES_BURST + 1)
        ]
    assert statuses[-2:] == [401, 429]


def test_only_headers_of_a_trusted_proxy_are_used(to: Services) -> None:
    """A proxy appends the client's address; anything before it may be forged."""
    behind = with_settings(to, trusted_proxies=("127.0.0.1/32", "10.0.0.0/8"))
    key = make_key(to.postgres_url)

    def begun_from(forwarded: str, address: str = "127.0.0.1") -> str:
        browser = client(behind, address=address)
        assert browser.post(ME, json={"key": key}, headers={"X-Forwarded-For": forwarded}).status_code == 200
        [current] = [each for each in browser.get(SESSIONS).json()["sessions"] if each["current"]]
        return current["address"]

    assert begun_from("192.0.2.7") == "192.0.2.7"
    assert begun_from("192.0.2.7:4711") == "192.0.2.7"
    assert begun_from("[2001:db8::1]:4711, 10.0.0.1") == "2001:db8::1"
    assert begun_from("6.6.6.6, 192.0.2.7, 10.0.0.1") == "192.0.2.7"
    assert begun_from("6.6.6.6, rubbish") == "127.0.0.1"
    assert begun_from("6.6.6.6", address="192.0.2.9") == "192.0.2.9"
    proxied = {"address": "127.0.0.1"}
    assert {
        client(behind, **proxied)
        .post(ME, json={"key": generate_key()}, headers={"X-Forwarded-For": f"6.6.6.{number}, 192.0.2.7"})
        .status_code
        for number in range(FAILURES_BURST + 1)
    } == {401, 429}
    other = client(behind, **proxied).post(ME, json={"key": generate_key()}, headers={"X-Forwarded-For": "192.0.2.8"})
    assert other.status_code == 401
    behind.close()


def test_a_network_of_ipv6_is_one_address(to: Services) -> None:
    statuses = [
        client(to, address=f"2001:db8:0:1::{number:x}").post(ME, json={"key": generate_key()}).status_code
        for number in range(FAILURES_BURST + 1)
    ]
    assert statuses[-2:] == [401, 429]
    assert client(to, address="2001:db8:0:2::1").post(ME, json={"key": generate_key()}).status_code == 401


def test_a_large_body_is_not_read_from_strangers(to: Services) -> None:
    assert client(to).post(ME, json={"key": "x" * 10_000}).status_code == 413


# --- Logs and browsers ----------------------------------------------------------------------------


def test_tokens_of_links_are_never_logged(
    to: Services, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that could not be used yet would let in every reader of the log."""
    token = create_link(to, make_key(to.postgres_url))
    errors: list[Exception] = [DatabaseUnavailable(), ZeroDivisionError()]
    use_link = sessions.consume_login_link

    def failing(*args: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return use_link(*args)

    monkeypatch.setattr(sessions, "consume_login_link", failing)
    with caplog.at_level(logging.DEBUG), Server(to) as server, httpx.Client(base_url=server.url, timeout=60) as browser:
        answers = [browser.get(f"/login/{token}?token={token}").status_code for _ in range(4)]
    assert answers == [503, 500, 303, 404]
    assert "/login/…" in caplog.text
    own = [
        record.getMessage() for record in caplog.records if not record.name.startswith("http")
    ]  # httpx is the client
    assert token not in "\n".join(own)


def test_browsers_are_kept_on_https(to: Services) -> None:
    key = make_key(to.postgres_url)
    proxy = {"X-Forwarded-Proto": "https"}

    def answered(settings: dict[str, Any], headers: dict[str, str], base_url: str = "http://h") -> tuple[bool, bool]:
        made = with_settings(to, **settings)
        answer = client(made, address="10.0.0.1", base_url=base_url).post(ME, json={"key": key}, headers=headers)
        made.close()
        return "Secure" in answer.headers["set-cookie"], "strict-transport-security" in answer.headers

    assert answered({}, {}) == (False, False)
    assert answered({}, proxy) == (False, False)  # from an untrusted address
    assert answered({"trusted_proxies": ("10.0.0.0/8",)}, proxy) == (True, True)
    assert answered({"trusted_proxies": ("10.0.0.0/8",)}, {"X-Forwarded-Proto": "http"}) == (False, False)
    assert answered({"cookie_secure": True}, {}) == (True, True)
    assert answered({"cookie_secure": False}, {}, "https://h") == (False, False)
    assert answered({}, {}, "https://h") == (True, True)


def test_no_page_changes_where_links_and_forms_go(to: Services) -> None:
    policy = client(to).get("/healthz").headers["content-security-policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["base-uri"] == ["'none'"]
    assert rules["form-action"] == ["'self'"]
    assert rules["frame-ancestors"] == ["'none'"]


def test_a_session_that_ended_does_not_come_back(to: Services) -> None:
    """A session that ended while all sessions were being read must stay ended."""
    ring: KeyRing = to.key_ring
    browser = sign_in(to, make_key(to.postgres_url))
    cookie = steal_cookie(browser)
    readers = [Thread(target=ring.refresh) for _ in range(4)]
    for reader in readers:
        reader.start()
    assert browser.delete(ME, headers=HERE).status_code == 204
    assert client(to).get(ME, headers=cookie).status_code == 401
    for reader in readers:
        reader.join(60)
    assert client(to).get(ME, headers=cookie).status_code == 401
