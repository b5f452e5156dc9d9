"""Attacks on /metrics, which names tenants: without a key or token, only requests from this machine are served."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from headrace.api import services
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.services import Services
from headrace.model.names import QueueRef
from headrace.runtime.access import is_direct_loopback
from headrace.runtime.http_server import serve_metrics
from headrace.settings import ApiSettings, QueueSnapshotSettings
from headrace.snapshot import reader
from headrace.snapshot.queue_families import ALL, TenantLabelPolicy
from headrace.valkey.connect import Valkey
from tests.access import client, local_client, make_key
from tests.operating import NOBODY, Server
from tests.snapshots import enqueue, parse_samples, refresher, sources

OURS = QueueRef("acme", "shop", "prod", "emails")
THEIRS = QueueRef("globex", "labs", "prod", "hidden-queue")
FORGED = QueueRef('x",org="acme', "shop", "prod", 'q,org="acme",project="shop",env="prod"}')
OLD_IS_FINE = QueueSnapshotSettings(max_staleness=86400.0)
TOKEN = "a-token-of-some-length"

FORWARDING = {
    "Forwarded": "for=192.0.2.1",
    "X-Forwarded-For": "127.0.0.1",
    "X-Forwarded-Host": "127.0.0.1",
    "X-Forwarded-Proto": "http",
    "X-Real-IP": "127.0.0.1",
    "Via": "1.1 proxy",
}
FOREIGN_HOSTS = (
    "headrace.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "[::2]",
    "169.254.1.1",
    "0.0.0.0",
)


@pytest.fixture
def api(valkey: Valkey, valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Yield services with queues of three tenants in a snapshot."""
    monkeypatch.setattr(services, "SNAPSHOT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(reader, "POLL_WAIT_S", 60.0)
    for ref in (OURS, THEIRS, FORGED):
        enqueue(valkey_url, ref)
    refresher(valkey, sources(valkey, naming=TenantLabelPolicy(ALL))).run_once()
    made = Services(valkey_url, NOBODY, "x", 2, postgres_url, ApiSettings(rate=1000.0), snapshot=OLD_IS_FINE)
    yield made
    made.close()


def test_a_proxy_on_this_machine_does_not_open_metrics(api: Services) -> None:
    with Server(api) as server:
        url = f"{server.url}/metrics"
        assert "globex" in httpx.get(url).text
        for name, value in FORWARDING.items():
            answer = httpx.get(url, headers={name: value})
            assert (name, answer.status_code) == (name, 401)
            assert "globex" not in answer.text


def test_a_foreign_host_reads_no_metrics(api: Services) -> None:
    """Such a request comes from a web page after DNS rebinding, or through a proxy that adds no header."""
    with Server(api) as server:
        for host in FOREIGN_HOSTS:
            for name in (host, f"{host}:{server.address[1]}"):
                assert httpx.get(f"{server.url}/metrics", headers={"Host": name}).status_code == 401, name
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8080"):
            assert httpx.get(f"{server.url}/metrics", headers={"Host": host}).status_code == 200, host


def test_another_machine_reads_no_metrics(api: Services) -> None:
    public = replace(api, settings=replace(api.settings, host="0.0.0.0", metrics=True))
    for address in ("192.0.2.1", "10.0.0.1", "::ffff:192.0.2.1", "testclient", ""):
        for to in (api, public):
            stranger = client(to, address=address, base_url="http://127.0.0.1")
            assert stranger.get("/metrics").status_code == 401, address
    assert local_client(public).get("/metrics").status_code == 200


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_a_key_of_a_tenant_reads_its_own_series_alone(api: Services, accept: str) -> None:
    for scope in (KeyScope("acme"), KeyScope("acme", "shop"), KeyScope("acme", "shop", "prod")):
        key = make_key(api.postgres_url, scope, AccessLevel.READ)
        api.key_ring.refresh()
        for address in ("192.0.2.1", "127.0.0.1"):  # on this machine too, the key decides what is shown
            answer = client(api, key, address, base_url="http://127.0.0.1").get("/metrics", headers={"Accept": accept})
            assert answer.status_code == 200
            series = [line for line in answer.text.splitlines() if not line.startswith("#")]
            assert series
            assert all('{org="acme",project="shop",env="prod",queue="emails"' in line for line in series), series
    for scope in (KeyScope("nobody"), KeyScope("acme", "blog"), KeyScope("shop", "shop", "prod")):
        key = make_key(api.postgres_url, scope, AccessLevel.ADMIN)
        api.key_ring.refresh()
        page = client(api, key).get("/metrics", headers={"Accept": accept}).text
        assert page == ("# EOF\n" if "openmetrics" in accept else "")


def test_a_name_with_quotes_is_its_own_tenant(api: Services) -> None:
    key = make_key(api.postgres_url, KeyScope(FORGED.org), AccessLevel.READ)
    api.key_ring.refresh()
    series = parse_samples(client(api, key).get("/metrics").text)
    assert {dict(labels)["org"] for family in series.values() for labels in family} == {FORGED.org}


def test_a_key_that_reaches_everything_reads_all_through_a_proxy(api: Services) -> None:
    """The tests above would pass if every request were refused."""
    key = make_key(api.postgres_url, GLOBAL_SCOPE, AccessLevel.READ)
    api.key_ring.refresh()
    page = client(api, key, "192.0.2.1").get("/metrics", headers=FORWARDING).text
    for part in ("acme", "globex", "headrace_api_requests_total", "headrace_queue_metrics_snapshot_served"):
        assert part in page


# --- Pages of workers, the pipeline and the others ------------------------------------------------


def unwell() -> tuple[int, dict[str, Any]]:
    return 503, {"healthy": False, "last_error": "hidden-queue"}


def fetch(port: int | None, path: str, **headers: str) -> tuple[int, str]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=given)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_pages_of_processes_follow_the_same_rule() -> None:
    with serve_metrics(0, CollectorRegistry(), unwell) as port:
        assert fetch(port, "/metrics") == (200, "")
        assert "hidden-queue" in fetch(port, "/healthz")[1]
        strangers = [{name: value} for name, value in FORWARDING.items()] + [{"Host": host} for host in FOREIGN_HOSTS]
        for headers in strangers:
            status, body = fetch(port, "/metrics", **headers)
            assert (headers, status) == (headers, 401)
            assert "metrics.token" in body
            assert fetch(port, "/healthz", **headers) == (503, '{"healthy": false}')
            assert fetch(port, "/metrics", Authorization=f"Bearer {TOKEN}", **headers)[0] == 401


def test_a_token_opens_the_page_of_a_process() -> None:
    with serve_metrics(0, CollectorRegistry(), unwell, token=TOKEN) as port:
        for given in ("", "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN):
            assert fetch(port, "/metrics", Host="worker-1", Authorization=given)[0] == 401, given
        for given in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            assert fetch(port, "/metrics", Host="worker-1", X_Forwarded_For="192.0.2.1", Authorization=given)[0] == 200
        assert "hidden-queue" in fetch(port, "/healthz", Host="worker-1", Authorization=f"Bearer {TOKEN}")[1]


@pytest.mark.parametrize(
    ("peer", "hosts", "names", "expected"),
    [
        ("127.0.0.1", ["127.0.0.1"], ["host", "accept"], True),
        ("::1", ["[::1]:9"], [], True),
        ("::ffff:127.0.0.1", ["localhost"], [], True),
        (None, ["localhost"], [], False),
        ("localhost", ["localhost"], [], False),
        ("127.0.0.1", [], [], False),
        ("127.0.0.1", ["localhost", "localhost"], [], False),
        ("127.0.0.1", ["localhost,evil"], [], False),
        ("127.0.0.1", ["127.1"], [], False),
        ("127.0.0.1", [""], [], False),
        ("127.0.0.1", ["localhost"], ["X-FORWARDED-SERVER"], False),
    ],
)
def test_what_counts_as_this_machine(peer: str | None, hosts: list[str], names: list[str], expected: bool) -> None:
    assert is_direct_loopback(peer, hosts, names) is expected
