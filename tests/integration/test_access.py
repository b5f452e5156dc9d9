"""Who gets in, with what, and for how long: keys, sessions, links, limits and the audit log, on a real PostgreSQL."""

from __future__ import annotations

import json
import logging
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from headrace.api import api_keys as keys
from headrace.api import readiness, sessions
from headrace.api.access import AccessLevel, KeyScope
from headrace.api.api_keys import (
    KeyRing,
    KeySnapshot,
    compute_digest,
    generate_key,
    list_keys,
    parse_key_id,
    revoke_key,
)
from headrace.api.app import PUBLIC_ROUTES, create_app
from headrace.api.deps import AdminTenant, Auditor, OperateTenant, ReadTenant
from headrace.api.housekeeping import ApiHousekeeping
from headrace.api.problems import Problem
from headrace.api.rate_limit import RequestRateLimiter
from headrace.api.services import FAILURES_BURST, FAILURES_PER_S, Services
from headrace.cli import main
from headrace.cli.local_key import ensure_local_key, read_local_key
from headrace.errors import EmbeddedError, QueueClosed
from headrace.postgres.connect import connect, transaction
from headrace.postgres.migrate import migrate
from headrace.postgres.probe import read_server_version as postgres_version
from headrace.settings import ApiSettings
from headrace.valkey import probe as valkey_probe
from headrace.valkey.connect import Valkey
from headrace.valkey.connect import connect as connect_valkey
from tests.access import client, client_with_key, local_client, make_key
from tests.conftest import POSTGRES_SCHEMAS, READY_S, QuickPostgres, wait_until
from tests.ports import reserved_port

NOBODY = "http://127.0.0.1:1"
HERE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def services(postgres_url: str) -> Iterator[Services]:
    """PostgreSQL alone: the others do not answer."""
    made = Services("redis://127.0.0.1:1/0", NOBODY, "x", 2, postgres_url, ApiSettings(rate=1000.0))
    yield made
    made.close()


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[QuickPostgres]:
    """A server that a test may stop."""
    with reserved_port() as port:
        server = QuickPostgres(tmp_path / "postgres", tmp_path / "log", port)
        server.start()
        server.wait_ready(READY_S)
        migrate(server.url, POSTGRES_SCHEMAS)
        yield server
        server.stop()


def with_settings(services: Services, **changed: Any) -> Services:
    return replace(services, settings=replace(services.settings, **changed))


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def get_status(api: TestClient, headers: dict[str, str] | None = None) -> int:
    """Return the status of the route that describes the caller."""
    return int(api.get("/api/v1/session", headers=headers).status_code)


def is_problem(answer: httpx.Response, status: int) -> bool:
    body = answer.json()
    assert (answer.status_code, body.get("status")) == (status, status), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(body) >= {"type", "title", "status", "detail"}
    return True


# --- Every route -----------------------------------------------------------------------------------


def all_routes(app: FastAPI) -> list[tuple[str, str]]:
    found = [(method, str(route.path)) for route in iter_route_contexts(app.routes) for method in route.methods or ()]
    assert ("GET", "/api/v1/queues") in found
    return found


def test_every_route_needs_a_key_but_a_few(services: Services) -> None:
    """Request every route without a key: a route without authentication would not answer 401."""
    app, api = create_app(services), client(services)
    for method, path in all_routes(app):
        if (method, path) not in PUBLIC_ROUTES:
            answer = api.request(method, re.sub(r"\{.*?\}", "x", path))
            assert (method, path, answer.status_code) == (method, path, 401)
            assert answer.headers["www-authenticate"].startswith("Bearer ")


def test_the_list_of_open_routes_names_only_what_exists(services: Services) -> None:
    assert not PUBLIC_ROUTES - set(all_routes(create_app(services)))


def test_a_router_is_guarded_whether_its_routes_say_so_or_not(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = APIRouter()

    @careless.get("/api/v1/careless")
    def forgot() -> str:  # pyright: ignore[reportUnusedFunction]
        return "secret"

    monkeypatch.setattr("headrace.api.app.AUTHENTICATED_ROUTERS", [careless])
    assert is_problem(client(services).get("/api/v1/careless"), 401)
    assert client_with_key(services).get("/api/v1/careless").json() == "secret"


# --- Keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        bearer("hr_"),
        bearer("x" * 5000),
        bearer(generate_key()),
        {"Authorization": "Basic aHI6aHI="},
        {"Authorization": "Bearer"},
        {"Authorization": ""},
        {"Cookie": "headrace_session_80=rubbish.rubbish"},
    ],
)
def test_what_is_no_valid_key_is_refused(services: Services, headers: dict[str, str]) -> None:
    answer = client(services).get("/api/v1/session", headers=headers)
    assert is_problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith('Bearer realm="headrace"')


def test_the_right_id_with_another_secret_is_refused(services: Services) -> None:
    text = make_key(services.postgres_url)
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    api = client(services)
    assert is_problem(api.get("/api/v1/session", headers=bearer(wrong)), 401)
    assert api.get("/api/v1/session", headers=bearer(text)).status_code == 200


def test_who_am_i(services: Services) -> None:
    text = make_key(services.postgres_url, KeyScope("acme", "shop"), AccessLevel.OPERATE, "ci")
    assert client(services, text).get("/api/v1/session").json() == {
        "key_id": parse_key_id(text),
        "name": "ci",
        "level": "operate",
        "scope": {"org": "acme", "project": "shop", "env": None},
        "session_id": None,
    }


def test_a_new_key_is_let_in_at_once_and_a_revoked_one_no_more(services: Services) -> None:
    with client(services) as api:
        assert is_problem(api.get("/api/v1/session"), 401)
        text = make_key(services.postgres_url)
        wait_until(lambda: get_status(api, bearer(text)) == 200, "it is known")
        with connect(services.postgres_url) as conn:
            assert revoke_key(conn, parse_key_id(text) or "")
            assert revoke_key(conn, parse_key_id(text) or "") is None
        wait_until(lambda: get_status(api, bearer(text)) == 401, "it is out")


def test_a_key_made_just_after_a_read_is_let_in(services: Services) -> None:
    api = client(services)
    for _ in range(5):
        services.key_ring.refresh()
        assert get_status(api, bearer(make_key(services.postgres_url))) == 200


class CountedReads(KeyRing):
    n = 0

    def _read_snapshot(self) -> KeySnapshot:
        self.n += 1
        return super()._read_snapshot()


def test_requests_with_unknown_keys_share_a_read(services: Services) -> None:
    ring = CountedReads(services.postgres)
    arrived = time.monotonic()
    for _ in range(3):
        ring.refresh_if_older(arrived)
    assert ring.n == 1
    assert 0.0 <= ring.wait_before_read_s() <= keys.MIN_REFRESH_INTERVAL_S
    ring.refresh_if_older(time.monotonic())
    assert ring.n == 2


class TwoHoursOn(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(hours=2)


def test_an_expired_key_is_refused_although_the_copy_has_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = make_key(services.postgres_url, expires_s=3600)
    api = client(services, text)
    assert api.get("/api/v1/session").status_code == 200
    monkeypatch.setattr(keys, "datetime", TwoHoursOn)
    assert get_status(api) == 401


def test_the_secret_is_not_in_the_database(services: Services) -> None:
    text = make_key(services.postgres_url)
    with connect(services.postgres_url) as conn:
        [row] = conn.execute("SELECT k::text, hash FROM api_keys k").fetchall()
    assert text.split("_")[2] not in str(row[0])
    assert bytes(row[1]) == compute_digest(text)


def test_use_is_noted(services: Services) -> None:
    api = client_with_key(services)
    assert api.get("/api/v1/session").status_code == 200
    ApiHousekeeping(services).flush_used()
    with connect(services.postgres_url) as conn:
        [key] = list_keys(conn)
    assert key.last_used_at is not None


def test_known_keys_stay_valid_while_postgres_is_down(own_postgres: QuickPostgres, services: Services) -> None:
    to = replace(services, postgres_url=own_postgres.url)
    text = make_key(to.postgres_url)
    with client(to, text) as api:
        cookie = api.post("/api/v1/session", json={"key": text}).cookies
        assert cookie
        own_postgres.stop()
        to.key_ring.refresh()
        assert api.get("/api/v1/session").status_code == 200
        assert is_problem(api.get("/api/v1/session", headers=bearer(generate_key())), 401)
        assert is_problem(api.get("/api/v1/audit"), 503)
        fresh = client(replace(to), text)
        answer = fresh.get("/api/v1/session")
        assert is_problem(answer, 503)
        assert answer.headers["retry-after"] == "5"
        assert is_problem(fresh.post("/api/v1/session", json={"key": text}), 503)
        assert fresh.get("/healthz").status_code == 200
    with pytest.raises(EmbeddedError):
        _ = own_postgres.child  # it really is stopped


# --- Tenants ---------------------------------------------------------------------------------------


def tenants() -> APIRouter:
    router = APIRouter()

    @router.get("/read")
    def read(tenant: ReadTenant) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        return [tenant.org, tenant.project, tenant.env]

    @router.post("/operate")
    def operate(tenant: OperateTenant, auditor: Auditor) -> str:  # pyright: ignore[reportUnusedFunction]
        with auditor.record("test.operate", tenant, "q", asked=1) as entry:
            entry.note(found=2)
        return "done"

    @router.post("/refused")
    def refused(tenant: OperateTenant, auditor: Auditor) -> None:  # pyright: ignore[reportUnusedFunction]
        with auditor.record("test.refused", tenant):
            raise QueueClosed

    @router.post("/broken")
    def broken(tenant: AdminTenant, auditor: Auditor) -> None:  # pyright: ignore[reportUnusedFunction]
        with auditor.record("test.broken", tenant):
            raise ZeroDivisionError("hunter2")

    @router.post("/echo")
    def echo(body: dict[str, Any]) -> int:  # pyright: ignore[reportUnusedFunction]
        return len(str(body))

    @router.get("/problem")
    def problem() -> None:  # pyright: ignore[reportUnusedFunction]
        raise Problem(409, "It cannot be.")

    return router


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes that use every dependency."""
    from headrace.api import app

    monkeypatch.setattr(app, "AUTHENTICATED_ROUTERS", [*app.AUTHENTICATED_ROUTERS, tenants()])


PROD = {"org": "acme", "project": "shop", "env": "prod"}


def test_wrong_keys_do_not_wait_behind_a_silent_postgres(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would hold a thread for as long, and there are few of them."""
    monkeypatch.setattr("headrace.api.services.STATEMENT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(keys, "REFRESH_WAIT_S", 0.05)
    api = client_with_key(services)
    with connect(services.postgres_url) as conn, conn.transaction():
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        conn.execute("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
        reading = Thread(target=services.key_ring.refresh)
        reading.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'api_keys'::regclass AND NOT granted"
        wait_until(lambda: conn.execute(waiting).fetchone() == (1,), "the keys are being read")
        assert get_status(api, bearer(generate_key())) == 401
        assert get_status(api) == 200
        assert reading.is_alive()
    reading.join(60)


@pytest.mark.usefixtures("extra")
def test_a_scope_fills_in_what_the_url_leaves_out(services: Services) -> None:
    one = client_with_key(services, KeyScope("acme", "shop", "prod"), AccessLevel.READ)
    assert one.get("/read").json() == ["acme", "shop", "prod"]
    assert one.get("/read", params=PROD).json() == ["acme", "shop", "prod"]
    org = client_with_key(services, KeyScope("acme"), AccessLevel.READ)
    assert org.get("/read", params={"project": "shop", "env": "prod"}).json() == ["acme", "shop", "prod"]
    missing = org.get("/read", params={"env": "prod"})
    assert is_problem(missing, 400)
    assert "Missing: project." in missing.json()["detail"]
    assert is_problem(org.get("/read", params={"project": "a\n", "env": "prod"}), 400)


@pytest.mark.usefixtures("extra")
def test_a_foreign_tenant_is_404_and_a_missing_level_is_403(services: Services) -> None:
    reader = client_with_key(services, KeyScope("acme"), AccessLevel.READ)
    assert is_problem(reader.get("/read", params={**PROD, "org": "globex"}), 404)
    assert is_problem(reader.post("/operate", params={**PROD, "org": "globex"}), 404)
    assert is_problem(reader.post("/operate", params=PROD), 403)
    operator = client_with_key(services, KeyScope("acme"), AccessLevel.OPERATE)
    assert operator.post("/operate", params=PROD).status_code == 200
    assert is_problem(operator.post("/broken", params=PROD), 403)


# --- Sessions and links ----------------------------------------------------------------------------


def test_a_browser_signs_in_and_out(services: Services) -> None:
    text = make_key(services.postgres_url, name="ann")
    api = client(services)
    assert api.get("/api/v1/session/state").json() == {"signed_in": False}
    answer = api.post("/api/v1/session", json={"key": text}, headers=HERE)
    cookie = answer.headers["set-cookie"]
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert attribute in cookie
    assert "Secure" not in cookie
    assert text not in cookie
    assert api.get("/api/v1/session").json()["name"] == "ann"
    assert api.get("/api/v1/session/state").json() == {"signed_in": True}
    assert api.delete("/api/v1/session", headers=HERE).status_code == 204
    assert is_problem(api.get("/api/v1/session"), 401)


def test_over_https_the_cookie_stays_there(services: Services) -> None:
    api = TestClient(create_app(services), base_url="https://headrace.example")
    answer = api.post("/api/v1/session", json={"key": make_key(services.postgres_url)})
    assert "Secure" in answer.headers["set-cookie"]


def test_a_wrong_key_does_not_sign_in(services: Services) -> None:
    answer = client(services).post("/api/v1/session", json={"key": generate_key()}, headers=HERE)
    assert is_problem(answer, 401)
    assert "set-cookie" not in answer.headers


def test_revoking_the_key_ends_its_sessions(services: Services) -> None:
    text = make_key(services.postgres_url)
    api = client(services)
    api.post("/api/v1/session", json={"key": text})
    assert api.get("/api/v1/session").status_code == 200
    with connect(services.postgres_url) as conn:
        revoke_key(conn, parse_key_id(text) or "")
    services.key_ring.refresh()
    assert is_problem(api.get("/api/v1/session"), 401)


def test_a_session_ends(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    api = client(with_settings(services, session=3600.0))
    api.post("/api/v1/session", json={"key": make_key(services.postgres_url)})
    [(name, value)] = api.cookies.items()
    # Sent by hand, because clients drop expired cookies and the server must not rely on that.
    cookie = {"Cookie": f"{name}={value}"}
    assert get_status(client(services), cookie) == 200
    monkeypatch.setattr(keys, "datetime", TwoHoursOn)
    assert get_status(client(services), cookie) == 401


def test_all_processes_know_a_session(services: Services) -> None:
    api = client(services)
    api.post("/api/v1/session", json={"key": make_key(services.postgres_url)})
    other = client(replace(services))
    other.cookies = api.cookies
    assert other.get("/api/v1/session").status_code == 200


@pytest.mark.usefixtures("extra")
def test_other_sites_cannot_use_a_session(services: Services) -> None:
    api = client(services)
    api.post("/api/v1/session", json={"key": make_key(services.postgres_url)}, headers=HERE)
    for foreign in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert is_problem(api.post("/operate", params=PROD, headers=foreign), 403)
        assert is_problem(api.delete("/api/v1/session", headers=foreign), 403)
    assert api.post("/operate", params=PROD, headers={"Origin": "http://testserver"}).status_code == 200
    assert api.post("/operate", params=PROD, headers=HERE).status_code == 200
    answer = client(services).post("/api/v1/session", json={"key": "x"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert is_problem(answer, 403)


def link_for(services: Services, text: str, life_s: float = 3600) -> str:
    with connect(services.postgres_url) as conn:
        return sessions.create_login_link(conn, parse_key_id(text) or "", life_s)


def test_a_link_signs_in_once(services: Services) -> None:
    token = link_for(services, make_key(services.postgres_url, name="local"))
    first = client(services)
    answer = first.get(f"/login/{token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["cache-control"] == "no-store"
    assert first.get("/api/v1/session").json()["name"] == "local"
    second = client(services)
    again = second.get(f"/login/{token}")
    assert again.status_code == 404
    assert "headrace keys link" in again.text
    assert "set-cookie" not in again.headers
    assert is_problem(second.get("/api/v1/session"), 401)


def test_an_expired_link_or_one_of_a_revoked_key_does_not_sign_in(services: Services) -> None:
    text = make_key(services.postgres_url)
    api = client(services)
    assert api.get(f"/login/{link_for(services, text, life_s=-1)}").status_code == 404
    token = link_for(services, text)
    with connect(services.postgres_url) as conn:
        revoke_key(conn, parse_key_id(text) or "")
        assert token not in str(conn.execute("SELECT l::text FROM api_links l").fetchall())
    assert api.get(f"/login/{token}").status_code == 404
    ApiHousekeeping(services).purge_old_rows()
    with connect(services.postgres_url) as conn:
        assert conn.execute("SELECT count(*) FROM api_links").fetchone() == (0,)


def test_the_key_of_this_machine_is_made_once(services: Services, tmp_path: Path) -> None:
    def ensure() -> str:
        with transaction(services.postgres) as conn:
            return ensure_local_key(conn, tmp_path, exclusive=True)

    first = ensure()
    assert ensure() == first == read_local_key(tmp_path)
    assert stat.S_IMODE((tmp_path / "api.key").stat().st_mode) == 0o600
    (tmp_path / "api.key").unlink()
    second = ensure()
    services.key_ring.refresh()
    assert services.key_ring.find(first) is None
    assert services.key_ring.find(second) is not None


# --- Limits ----------------------------------------------------------------------------------------


def test_a_key_with_too_many_requests_is_rate_limited(services: Services) -> None:
    now = [0.0]
    to = with_settings(services, rate=0.1, burst=3)
    to.request_limits = RequestRateLimiter(0.1, 3, clock=lambda: now[0])
    api = client_with_key(to)
    assert [api.get("/api/v1/session").status_code for _ in range(3)] == [200] * 3
    answer = api.get("/api/v1/session")
    assert is_problem(answer, 429)
    assert answer.headers["retry-after"] == "10"
    assert (answer.headers["ratelimit-limit"], answer.headers["ratelimit-remaining"]) == ("3", "0")
    other = make_key(to.postgres_url)
    to.key_ring.refresh()
    assert client(to, other).get("/api/v1/session").headers["ratelimit-remaining"] == "2"
    now[0] += 10
    assert get_status(api) == 200
    assert get_status(api) == 429


def test_an_address_that_sends_wrong_keys_waits_and_right_ones_still_pass(services: Services) -> None:
    services.failed_key_limits = RequestRateLimiter(FAILURES_PER_S, FAILURES_BURST, clock=lambda: 0.0)
    api = client(services)
    right = make_key(services.postgres_url)
    statuses = [api.post("/api/v1/session", json={"key": generate_key()}).status_code for _ in range(FAILURES_BURST)]
    assert set(statuses) == {401}
    assert is_problem(api.post("/api/v1/session", json={"key": generate_key()}), 429)
    assert is_problem(api.get("/api/v1/session", headers=bearer(generate_key())), 429)
    assert is_problem(api.get("/login/guessed"), 429)
    services.key_ring.refresh()
    assert api.get("/api/v1/session", headers=bearer(right)).status_code == 200


@pytest.mark.usefixtures("extra")
@pytest.mark.parametrize("announced", [True, False])
def test_a_large_body_is_not_read(services: Services, announced: bool) -> None:
    api = client_with_key(with_settings(services, max_body=1024))
    small, large = json.dumps({"a": "x" * 900}).encode(), json.dumps({"a": "x" * 2000}).encode()

    def send(body: bytes) -> httpx.Response:
        content = body if announced else iter([body[:700], body[700:]])
        return api.post("/echo", content=content, headers={"Content-Type": "application/json"})

    assert send(small).status_code == 200
    assert is_problem(send(large), 413)


# --- Problems --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("extra")
def test_an_internal_error_is_returned_without_its_traceback_and_logged_with_it(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = client_with_key(services).post("/broken", params=PROD)
    assert is_problem(answer, 500)
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    error_id = answer.json()["error_id"]
    assert answer.json()["instance"] == f"urn:uuid:{error_id}"
    assert error_id in caplog.text
    assert "ZeroDivisionError: hunter2" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.usefixtures("extra")
def test_every_error_is_a_problem_document(services: Services) -> None:
    api = client_with_key(services)
    assert is_problem(api.get("/api/v1/nowhere"), 404)
    assert is_problem(api.get("/nowhere.html"), 404)
    wrong_method = api.post("/api/v1/queues")
    assert is_problem(wrong_method, 405)
    assert wrong_method.headers["allow"] == "GET"
    assert is_problem(api.get("/api/v1/audit", params={"limit": "many"}), 400)
    assert is_problem(api.post("/api/v1/session", content=b"{"), 400)
    assert is_problem(api.get("/problem"), 409)
    assert is_problem(api.post("/refused", params=PROD), 409)
    assert is_problem(api.get("/api/v1/queues"), 503)
    assert is_problem(api.get("/api/v1/queues/q/metrics", params=PROD), 503)


def test_a_wrong_method_gets_the_list_of_allowed_methods(services: Services) -> None:
    """Each of them is a route of its own."""
    api = client_with_key(services)
    for method, path, allowed in (
        ("PUT", "/api/v1/session", "DELETE, GET, POST"),
        ("PUT", "/api/v1/alerts/rules/x%2Fy", "DELETE, GET, PATCH"),
        ("OPTIONS", "/api/v1/queues/a%2Fb/dead", "DELETE, GET"),
        ("POST", "/", "GET, HEAD"),
    ):
        answer = api.request(method, path)
        assert is_problem(answer, 405)
        assert answer.headers["allow"] == allowed


def test_the_last_page_of_the_log_says_so(services: Services) -> None:
    api = client_with_key(services)
    for limit in (5, 6):
        api.put("/api/v1/environments/prod/limits", params={"org": "acme", "project": "shop"}, json={"limit": limit})
    pages = [api.get("/api/v1/audit", params={"limit": limit}).json() for limit in (1, 2)]
    assert [len(page["entries"]) for page in pages] == [1, 2]
    assert pages[0]["next"] == pages[0]["entries"][0]["id"]
    assert pages[1]["next"] is None


def test_an_unavailable_server_is_named_without_its_address(services: Services) -> None:
    to = replace(services, redis_url="redis://:hunter2@127.0.0.1:1/0", clickhouse_url="http://u:hunter2@127.0.0.1:1")
    api = client_with_key(to)
    for answer in (api.get("/api/v1/queues"), api.get("/api/v1/queues/q/metrics", params=PROD)):
        assert is_problem(answer, 503)
        assert "hunter2" not in answer.text
        assert "127.0.0.1" not in answer.text


def test_openapi_says_what_errors_look_like_and_how_to_sign_in(services: Services) -> None:
    described = client(services).get("/openapi.json").json()
    route = described["paths"]["/api/v1/queues/{queue}/metrics"]["get"]
    assert {"400", "401", "403", "404", "429", "500", "503"} <= set(route["responses"])
    assert "422" not in route["responses"]
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    assert route["responses"]["404"]["content"] == problem
    assert {"key": []} in route["security"]
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "HTTPValidationError" not in described["components"]["schemas"]


def test_answers_are_not_kept_and_files_may_be(services: Services) -> None:
    api = client_with_key(services)
    answer = api.get("/api/v1/session")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]
    assert "cache-control" not in api.get("/").headers


# --- Audit log -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("extra")
def test_what_is_done_is_written_down(services: Services) -> None:
    text = make_key(services.postgres_url, name="ann")
    api = client(services, text)
    for path in ("/operate", "/refused", "/broken"):
        api.post(path, params=PROD)
    entries = api.get("/api/v1/audit").json()["entries"]
    assert [(entry["action"], entry["outcome"], entry["details"]) for entry in entries] == [
        ("test.broken", "failed", {"error": "hunter2"}),
        ("test.refused", "refused", {"error": str(QueueClosed())}),
        ("test.operate", "done", {"asked": 1, "found": 2}),
    ]
    [done] = [entry for entry in entries if entry["action"] == "test.operate"]
    assert {key: done[key] for key in ("key_id", "key_name", *PROD, "queue", "address")} == {
        **{"key_id": parse_key_id(text), "key_name": "ann", "queue": "q", "address": "testclient"},
        **PROD,
    }


@pytest.mark.usefixtures("extra")
def test_the_log_is_read_page_by_page_and_by_admins(services: Services) -> None:
    api = client_with_key(services)
    for env in ("prod", "test", "prod", "dev", "prod"):
        api.post("/operate", params={**PROD, "env": env})
    seen: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next": None}
    while not seen or page["next"] is not None:
        params = {"limit": 2} | ({"before": page["next"]} if page["next"] else {})
        page = api.get("/api/v1/audit", params=params).json()
        seen += page["entries"]
    assert [entry["env"] for entry in seen] == ["prod", "dev", "prod", "test", "prod"]
    narrow = client_with_key(services, KeyScope("acme", "shop", "prod"), AccessLevel.ADMIN)
    assert [entry["env"] for entry in narrow.get("/api/v1/audit").json()["entries"]] == ["prod"] * 3
    assert client_with_key(services, KeyScope("globex"), AccessLevel.ADMIN).get("/api/v1/audit").json()["entries"] == []
    assert is_problem(client_with_key(services, KeyScope("acme"), AccessLevel.OPERATE).get("/api/v1/audit"), 403)


@pytest.mark.usefixtures("extra")
def test_without_the_log_nothing_is_done(own_postgres: QuickPostgres, services: Services) -> None:
    to = replace(services, postgres_url=own_postgres.url)
    api = client_with_key(to)
    assert api.post("/operate", params=PROD).status_code == 200
    own_postgres.stop()
    answer = api.post("/broken", params=PROD)  # would be a 500 if it were done
    assert is_problem(answer, 503)
    assert "audit log" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "5"


@pytest.mark.usefixtures("extra")
def test_old_entries_are_deleted(services: Services) -> None:
    api = client_with_key(services)
    api.post("/operate", params=PROD)
    api.post("/operate", params=PROD)
    with connect(services.postgres_url) as conn:
        conn.execute("UPDATE audit_log SET at = now() - interval '91 days' WHERE id = (SELECT min(id) FROM audit_log)")
    ApiHousekeeping(services).purge_old_rows()
    assert len(api.get("/api/v1/audit").json()["entries"]) == 1


# --- Health ----------------------------------------------------------------------------------------


def patient_postgres_version(url: str) -> str | None:
    return postgres_version(url, 60)


def patient_connect(url: str, timeout_s: float) -> Valkey:
    return connect_valkey(url, max(timeout_s, 60.0))


def test_readiness_names_what_is_down_to_those_with_a_key(
    valkey_url: str, clickhouse_url: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(readiness, "postgres_version", patient_postgres_version)
    monkeypatch.setattr(valkey_probe, "connect", patient_connect)
    text = make_key(services.postgres_url)
    whole = replace(services, redis_url=valkey_url, clickhouse_url=clickhouse_url)
    answer = client(whole).get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    told = client(whole, text).get("/readyz").json()["servers"]
    assert {name: one["status"] for name, one in told.items()} == dict.fromkeys(
        ("valkey", "postgres", "clickhouse"), "up"
    )
    assert all(one["latency_ms"] > 0 for one in told.values())
    partial = replace(services, redis_url=valkey_url)
    answer = client(partial, text).get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    told = {name: one["status"] for name, one in answer.json()["servers"].items()}
    assert told == {"valkey": "up", "postgres": "up", "clickhouse": "down"}
    assert client(partial).get("/readyz").json() == {"status": "not ready"}
    assert client(partial, generate_key()).get("/readyz").json() == {"status": "not ready"}
    whole.close()


def test_metrics_count_requests_by_route(services: Services) -> None:
    api = client_with_key(services)
    api.get("/api/v1/queues/some%2Fqueue/metrics", params=PROD)
    api.get("/nowhere/hunter2")
    api.request("INVENTED", "/api/v1/session")
    page = api.get("/metrics").text
    assert 'headrace_api_requests_total{method="GET",route="/api/v1/queues/{queue}/metrics",status="503"} 1.0' in page
    assert 'headrace_api_requests_total{method="GET",route="dashboard",status="404"} 1.0' in page
    assert 'headrace_api_request_duration_seconds_count{method="GET",route="dashboard"} 1.0' in page
    assert "hunter2" not in page
    assert "INVENTED" not in page


@pytest.mark.parametrize(
    ("host", "wanted", "stranger", "tenant", "everybody"),
    [
        ("127.0.0.1", None, 401, 200, 200),
        ("127.0.0.1", False, 404, 404, 404),
        ("0.0.0.0", None, 404, 404, 404),
        ("0.0.0.0", True, 401, 200, 200),
    ],
)
def test_metrics_are_for_this_machine_unless_wanted(
    services: Services, host: str, wanted: bool | None, stranger: int, tenant: int, everybody: int
) -> None:
    to = with_settings(services, host=host, metrics=wanted)
    assert client(to).get("/metrics").status_code == stranger
    assert local_client(to).get("/metrics").status_code == everybody
    assert client_with_key(to, KeyScope("acme")).get("/metrics").status_code == tenant
    assert client_with_key(to).get("/metrics").status_code == everybody


# --- The command -----------------------------------------------------------------------------------


@pytest.fixture
def command(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> Any:
        env = {"HEADRACE_POSTGRES_URL": postgres_url}
        result = CliRunner(env=env).invoke(main.headrace, ["keys", *arguments, "--json"], prog_name="headrace")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout.splitlines()[-1]) if code == 0 else result.stderr

    return run


def test_keys_on_the_command_line(command: Any, services: Services) -> None:
    scope = ["--org", "acme", "--project", "shop", "--env", "prod"]
    made = command("create", "--name", "ci", *scope, "--level", "operate", "--expires", "90d")
    [key] = command("list")["keys"]
    assert (key["id"], key["name"], key["level"], key["state"]) == (made["id"], "ci", "operate", "live")
    assert (key["org"], key["project"], key["env"]) == ("acme", "shop", "prod")
    assert made["key"].split("_")[2] not in json.dumps(key)
    api = client(services, made["key"])
    assert api.get("/api/v1/session").json()["level"] == "operate"
    link = command("link", "--key", made["id"], "--url", "http://testserver/")["link"]
    assert client(services).get(link).status_code == 303
    assert command("revoke", made["id"]) == {"id": made["id"], "name": "ci"}
    assert command("list")["keys"][0]["state"] == "revoked"
    assert "No active key" in command("revoke", made["id"], code=1)
    assert "No valid key" in command("link", "--key", made["id"], "--url", "http://x", code=1)
    services.key_ring.refresh()
    assert is_problem(api.get("/api/v1/session"), 401)
    admin = client_with_key(services)
    actions = [(one["action"], one["key_name"]) for one in admin.get("/api/v1/audit").json()["entries"]]
    assert actions == [("key.revoke", "command line"), ("key.create", "command line")]


def test_a_scope_with_a_hole_is_refused(command: Any) -> None:
    assert "--project needs --org" in command("create", "--name", "x", "--project", "p", "--level", "read", code=2)
    assert "control character" in command("create", "--name", "x\n", "--level", "read", code=1)
    assert command("list")["keys"] == []
