"""The endpoint as Prometheus sees it: what its tools say of the page, and what a real one scrapes."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from headrace.api import services
from headrace.api.services import Services
from headrace.settings import QueueSnapshotSettings
from headrace.snapshot import reader
from headrace.snapshot.queue_families import ALL, TenantLabelPolicy
from headrace.snapshot.reader import SnapshotReader
from headrace.snapshot.sources import SnapshotSources
from headrace.snapshot.store import SnapshotStore
from headrace.valkey.connect import Valkey
from tests.access import local_client
from tests.conftest import ODD_NAMES
from tests.operating import NOBODY, Server
from tests.ports import reserved_port
from tests.programs import find_tool
from tests.prometheus import Prometheus
from tests.snapshots import REF, Clock, enqueue, family, load_families_from, parse_samples, refresher, sources
from tests.snapshots import reader as make_reader

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "reference" / "snapshot-metrics.md").read_text("utf-8")
OLD_IS_FINE = QueueSnapshotSettings(max_staleness=86400.0)
NO_POSTGRES = "postgresql://127.0.0.1:1/nowhere"
HARD = 'say "hi" \\ \n é'
LINES = r"SELECT E'say \"hi\" \\ \n é' AS kind, 5 AS n, now() - interval '1 hour' AS since"


@pytest.fixture(autouse=True)
def long_poll_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a slow Valkey, because there is no last good copy yet."""
    monkeypatch.setattr(services, "SNAPSHOT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(reader, "POLL_WAIT_S", 60.0)


@pytest.fixture
def published(valkey: Valkey, valkey_url: str, postgres_url: str, tmp_path: Path) -> SnapshotSources:
    """Queues, and families whose names and labels are hard to take."""
    enqueue(valkey_url, REF, 3)
    enqueue(valkey_url, ODD_NAMES)
    text = family("shop_orders_total", LINES, "kind", keep_name=True)
    text += family("shop_oldest_order_seconds", LINES, "kind", value=None, oldest="since")
    text += family("shop_sold_total", LINES, "kind", type="counter")
    found = sources(
        valkey, postgres_url, load_families_from(tmp_path, text, ["headrace"]), naming=TenantLabelPolicy(ALL)
    )
    refresher(valkey, found).run_once()
    return found


@pytest.fixture
def without_databases(valkey_url: str) -> Services:
    """An API whose PostgreSQL and ClickHouse do not answer."""
    return Services(valkey_url, NOBODY, "x", 2, NO_POSTGRES, snapshot=OLD_IS_FINE)


def page(api: TestClient, **headers: str) -> str:
    answer = api.get("/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert answer.status_code == 200, answer.text
    return answer.text


def promtool(text: str) -> list[str]:
    """Its complaints."""
    command = [find_tool("prometheus", "promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    return [line for line in (checked.stdout + checked.stderr).splitlines() if line.strip()]


@pytest.mark.usefixtures("published")
def test_a_scrape_needs_no_database(without_databases: Services) -> None:
    told = parse_samples(page(local_client(without_databases)))
    assert max(told["headrace_queue_jobs"].values()) == 3
    assert told["shop_orders_total"] == {(("kind", HARD),): 5}
    assert told["headrace_queue_metrics_snapshot_served"] == {(): 1}


@pytest.mark.usefixtures("published")
def test_the_page_as_openmetrics(without_databases: Services) -> None:
    api = local_client(without_databases)
    api.get("/healthz")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = api.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.count("# EOF") == 1
    found = {each.name: each for each in parse_openmetrics(answer.text)}
    assert found["headrace_operations"].type == "counter"
    assert found["headrace_api_requests"].type == "counter"
    assert found["shop_orders_total"].type == "gauge"
    assert found["shop_orders_total"].samples[0].labels == {"kind": HARD}
    assert answer.headers["vary"] == "Accept, Accept-Encoding, Authorization, Cookie"


@pytest.mark.usefixtures("published")
def test_the_page_compressed_and_not(without_databases: Services) -> None:
    with Server(without_databases) as server:
        asked = urllib.request.Request(f"{server.url}/metrics", headers={"Accept-Encoding": "gzip;q=1.0"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            packed = parse_samples(gzip.decompress(answer.read()).decode())
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Encoding"] is None
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            plain = parse_samples(answer.read().decode())
    assert packed["headrace_queue_jobs"] == plain["headrace_queue_jobs"]


@pytest.mark.usefixtures("published")
def test_a_scrape_of_a_current_page_needs_neither_valkey_nor_a_thread(
    without_databases: Services, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the reader stands still, so that the page stays current."""
    without_databases.snapshot_reader = make_reader(valkey, Clock(), poll_every_s=1.0, max_staleness_s=86400.0)
    api = local_client(without_databases)
    first = page(api)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a scrape of a current page used a thread")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
    monkeypatch.setattr(SnapshotStore, "read_status", refuse)
    monkeypatch.setattr(SnapshotReader, "submit_page", refuse)
    assert {page(api) for _ in range(3)} == {first}


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=x.y", "text/plain;version=,", ";;,="])
def test_whatever_is_accepted_there_is_an_answer(without_databases: Services, accept: str) -> None:
    assert "# EOF" not in page(local_client(without_databases), accept=accept)


def test_settings_reach_the_page(valkey: Valkey, valkey_url: str) -> None:
    found = sources(valkey)
    refresher(valkey, found, prefix="other").run_once()
    given = replace(OLD_IS_FINE, redis_prefix="other", presets="headrace,convoy")
    told = parse_samples(page(local_client(Services(valkey_url, NOBODY, "x", 2, NO_POSTGRES, snapshot=given))))
    assert told["convoy_queue_metrics_snapshot_age_seconds"][()] >= 0
    assert "headrace_queues" in told
    shadow = replace(OLD_IS_FINE, redis_prefix="other", shadow=True)
    told = parse_samples(page(local_client(Services(valkey_url, NOBODY, "x", 2, NO_POSTGRES, snapshot=shadow))))
    assert "headrace_queues" not in told
    assert "headrace_queue_metrics_snapshot_age_seconds" in told


@pytest.mark.usefixtures("published")
def test_promtool_has_nothing_to_say(without_databases: Services) -> None:
    api = local_client(without_databases)
    api.get("/healthz")
    # The gauge with the suffix _total is intended; Headrace's own metrics must have no findings.
    complaints = [line for line in promtool(page(api)) if not line.startswith("shop_orders_total ")]
    assert complaints == []


@pytest.mark.usefixtures("published")
def test_what_is_served_is_documented(without_databases: Services) -> None:
    names = {each.name for each in text_string_to_metric_families(page(local_client(without_databases)))}
    documented = set(re.findall(r"^\| `(\w+)`", DOCUMENTED, re.MULTILINE))
    documented |= {name.removesuffix("_total") for name in documented}
    assert {name for name in names - documented if not name.startswith(("shop_", "headrace_api_"))} == set()


def test_promtool_detects_an_invalid_page() -> None:
    assert promtool("# TYPE headrace_wrong counter\nheadrace_wrong 1\n") != []


@pytest.fixture
def prometheus(without_databases: Services, published: SnapshotSources, tmp_path: Path) -> Iterator[Prometheus]:
    with Server(without_databases) as server, reserved_port() as port:
        made = Prometheus(tmp_path / "prometheus", port, server.address)
        made.child.start()
        yield made
        made.child.stop()


def test_a_real_prometheus_scrapes_it(prometheus: Prometheus) -> None:
    assert prometheus.value("up == 1") == 1
    assert prometheus.value('sum(headrace_queue_jobs{state="ready"})') == 4
    assert prometheus.value('headrace_queue_jobs{queue="emails", state="ready", tier="warm"}') == 3
    assert prometheus.value("shop_orders_total") == 5
    assert prometheus.value("shop_oldest_order_seconds") >= 3600
    [found] = prometheus.query("shop_orders_total")
    assert found["metric"]["kind"] == HARD
    odd = prometheus.query("headrace_queue_paused")
    assert {ODD_NAMES.queue, REF.queue} == {each["metric"]["queue"] for each in odd}
    assert prometheus.value("headrace_queue_metrics_snapshot_served") == 1
    types = f"http://127.0.0.1:{prometheus.port}/api/v1/metadata"
    with urllib.request.urlopen(types, timeout=60) as answer:
        metadata = json.load(answer)["data"]
    assert metadata["shop_orders_total"][0]["type"] == "gauge"
    assert metadata["headrace_operations"][0]["type"] == "counter"
