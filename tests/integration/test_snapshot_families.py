"""Families that are declared as SQL: a file's own, and Convoy's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.postgres.connect import connect as connect_postgres
from headrace.snapshot.families import InvalidFamily, InvalidSamples
from headrace.snapshot.service import SnapshotService
from headrace.snapshot.sources import SnapshotSources
from headrace.snapshot.sql_family_reader import FamilyUnreadable
from headrace.valkey.connect import Valkey
from tests.conftest import wait_until
from tests.snapshots import (
    KEYS,
    SERVED,
    family,
    load_families_from,
    reader,
    refresher,
    scrape,
    sources,
    store,
)


def test_labels_that_are_null_or_hard_to_write(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    query = r"""SELECT * FROM (VALUES (NULL, 1), ('a "b" \c', 2), (E'line\nline', 3)) AS t (kind, n)"""
    declared = load_families_from(tmp_path, family("shop_things", query, "kind"))
    found = sources(valkey, postgres_url, declared)
    found.validate()
    refresher(valkey, found).run_once()
    told = scrape(reader(valkey))["shop_things"]
    assert told == {(): 1, (("kind", 'a "b" \\c'),): 2, (("kind", "line\nline"),): 3}


def test_null_and_empty_are_one_label_so_both_are_refused(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    sql = "SELECT * FROM (VALUES ('x', NULL, 1), ('x', '', 2)) AS t (project, kind, n)"
    declared = load_families_from(tmp_path, family("shop_things", sql, "project", "kind"))
    with pytest.raises(
        InvalidSamples, match=r"shop_things has two series with the labels \{'project': 'x', 'kind': ''\}"
    ):
        refresher(valkey, sources(valkey, postgres_url, declared)).run_once()
    look = store(valkey).read_status()
    assert (look.version, look.attempts.error) == (0, 1)
    assert "'project': 'x'" in look.attempts.error_message


def test_rows_that_make_no_series_are_refused(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    for sql, more, words in (
        ("SELECT NULL::int AS n", {}, "in n is not a number"),
        ("SELECT 'many' AS n", {}, "in n is not a number"),
        ("SELECT true AS n", {}, "in n is not a number"),
        ("SELECT now()::timestamp AS t", {"value": None, "oldest": "t"}, "is not a time"),
        ("SELECT 'NaN'::float8 AS t", {"value": None, "oldest": "t"}, "is not a time"),
    ):
        declared = load_families_from(tmp_path, family("shop_things", sql, **more))
        with pytest.raises(InvalidSamples, match=words):
            sources(valkey, postgres_url, declared).read()


def test_sql_that_cannot_work_is_refused_at_start(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    for sql, words in (
        ("SELEC 1 AS n", "syntax error"),
        ("SELECT n FROM nowhere", 'relation "nowhere" does not exist'),
        ("SELECT 1 AS m", "does not return column n; it returns m"),
        ("SELECT 1 AS n; DROP TABLE cold_queues", "syntax error"),
        ("DELETE FROM cold_queues RETURNING 1 AS n", "syntax error"),
    ):
        found = sources(valkey, postgres_url, load_families_from(tmp_path, family("shop_things", sql)))
        with pytest.raises(InvalidFamily, match=f"shop_things.*{words}"):
            SnapshotService(refresher(valkey, found), found).run_forever(threading.Event())
    assert valkey.get(KEYS.current) is None


def test_sql_may_take_as_long_as_is_set(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    limit = family("shop_limit", "SELECT current_setting('statement_timeout') AS limit, 1 AS n", "limit")
    found = sources(valkey, postgres_url, load_families_from(tmp_path, limit), query_timeout_s=77.0)
    refresher(valkey, found).run_once()
    assert scrape(reader(valkey))["shop_limit"] == {(("limit", "77s"),): 1}


def test_sql_that_takes_too_long_publishes_nothing(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    """The first family shortens the time for those after it: it itself may take as long as the machine needs."""
    quick = family("shop_quick", "SELECT 1 AS n, set_config('statement_timeout', '50ms', true) AS was")
    slow = family("shop_slow", "SELECT 1 AS n FROM pg_sleep(3600)")
    refresher(valkey, sources(valkey, postgres_url), owner="me").run_once()
    found = sources(valkey, postgres_url, load_families_from(tmp_path, quick + slow), query_timeout_s=60.0)
    with pytest.raises(FamilyUnreadable, match=r"Could not read family shop_slow: .*statement timeout"):
        refresher(valkey, found, owner="me").run_once()
    told = scrape(reader(valkey))
    assert (told["headrace_queue_metrics_snapshot_version"][()], told[SERVED][()]) == (1, 1)
    assert "shop_quick" not in told
    assert told["headrace_queue_metrics_refresh_total"][("status", "error"),] == 1
    assert told["headrace_queue_metrics_snapshot_last_failure_timestamp_seconds"][()] > 0


def test_all_families_see_one_moment(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    count = "SELECT count(*) AS n FROM alert_rules"
    pause = "SELECT 1 AS n FROM pg_advisory_xact_lock_shared(7)"
    text = family("shop_before", count) + family("shop_pause", pause) + family("shop_after", count)
    found = sources(valkey, postgres_url, load_families_from(tmp_path, text), query_timeout_s=120.0)
    with connect_postgres(postgres_url) as conn:
        conn.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=refresher(valkey, found).run_once)
        thread.start()
        asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
        wait_until(lambda: conn.execute(asleep).fetchone(), "the refresher waits between two families")
        conn.execute(
            "INSERT INTO alert_rules SELECT 'r', 'o', 'p', 'e', 'n', NULL, 'BACKLOG', '>', 1, 'avg', 60, 60, 0, "
            "'warning', true, true, '{}'"
        )
        conn.execute("SELECT pg_advisory_unlock(7)")
        thread.join(60)
    told = scrape(reader(valkey))
    assert (told["shop_before"][()], told["shop_after"][()]) == (0, 0)


def test_a_hundred_thousand_series(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    sql = "SELECT 'project ' || i AS project, i AS n FROM generate_series(1, 100000) i"
    patient = f"{postgres_url}?options=-c%20idle_in_transaction_session_timeout%3D0"  # to make them takes its time
    found = sources(valkey, patient, load_families_from(tmp_path, family("shop_things", sql, "project")))
    done = refresher(valkey, found).run_once()
    assert done is not None
    assert done.meta.rows_total == 100_000
    text = reader(valkey).render_body(bytes, openmetrics=False, gzip=False).decode()
    lines = [line for line in text.splitlines() if line.startswith("shop_things{")]
    assert len(lines) == 100_000
    assert lines[-1] == 'shop_things{project="project 100000"} 100000.0'


def test_families_of_another_database_are_read_there(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    sql = "SELECT 1 AS n, current_setting('application_name') AS name"
    declared = load_families_from(tmp_path, family("shop_things", sql, "name"), ["headrace"])
    other = f"{postgres_url}{'&' if '?' in postgres_url else '?'}application_name=elsewhere"
    found = sources(valkey, postgres_url, declared, source_url=other)
    refresher(valkey, found).run_once()
    told = scrape(reader(valkey))
    assert told["shop_things"] == {(("name", "elsewhere"),): 1}
    assert "headrace_cold_rows" in told
    with pytest.raises(InvalidFamily, match="requires PostgreSQL"):
        sources(valkey, "", declared).read()


# --- Convoy ----------------------------------------------------------------------------------------

CONVOY_TABLES = """
CREATE SCHEMA convoy;
CREATE TABLE convoy.organisations (id char(26) PRIMARY KEY, name text);
CREATE TABLE convoy.projects (id char(26) PRIMARY KEY, name text, organisation_id char(26));
CREATE TABLE convoy.events (id char(26), project_id char(26), source_id char(26), created_at timestamptz DEFAULT now(),
  deleted_at timestamptz);
CREATE TABLE convoy.event_deliveries (id char(26), status text, project_id char(26), endpoint_id char(26),
  event_id char(26), event_type text, created_at timestamptz DEFAULT now(), deleted_at timestamptz);
CREATE TABLE convoy.delivery_attempts (id varchar, project_id varchar, endpoint_id varchar, http_status varchar,
  status boolean, created_at timestamptz DEFAULT now(), deleted_at timestamptz);
"""


@pytest.fixture
def convoy(valkey: Valkey, postgres_url: str) -> SnapshotSources:
    """1,500 projects that deliver at once, and one whose only delivery waits for a day."""
    with connect_postgres(postgres_url) as conn:
        conn.execute(CONVOY_TABLES)  # pyright: ignore[reportArgumentType, reportCallIssue]
        conn.execute("INSERT INTO convoy.organisations VALUES (repeat('o', 26), 'Acme \"the\" \\ first')")
        conn.execute(
            "INSERT INTO convoy.projects SELECT lpad(i::text, 26, '0'), 'project ' || i, repeat('o', 26) "
            "FROM generate_series(1, 1501) i"
        )
        conn.execute("INSERT INTO convoy.events SELECT lpad(i::text, 26, '0'), id FROM convoy.projects, "
                     "LATERAL (SELECT id::int AS i) n")  # fmt: skip
        conn.execute(
            "INSERT INTO convoy.event_deliveries SELECT id, 'Processing', id, repeat('e', 26), id, "
            "CASE WHEN id::int % 2 = 0 THEN NULL ELSE '' END, now() - CASE WHEN id::int = 1501 THEN interval '1 day' "
            "ELSE interval '1 second' END FROM convoy.projects"
        )
        conn.execute(
            "INSERT INTO convoy.event_deliveries SELECT id, 'Processing', id, repeat('e', 26), id, NULL "
            "FROM convoy.projects WHERE id::int = 1"
        )
        conn.execute(
            "INSERT INTO convoy.delivery_attempts VALUES ('1', 'p', 'e', '200 OK', true), "
            "('2', 'p', 'e', '200', true), ('3', 'p', 'e', '503', false), ('4', 'p', 'e', NULL, false)"
        )
    found = sources(valkey, postgres_url, presets=("convoy",))
    found.validate()
    return found


def test_convoy_by_its_own_names(valkey: Valkey, convoy: SnapshotSources) -> None:
    refresher(valkey, convoy).run_once()
    told = scrape(reader(valkey))
    business = {name for name in told if not name.startswith("headrace_queue_metrics")}
    assert business == {
        "convoy_event_queue_total",
        "convoy_event_queue_backlog_seconds",
        "convoy_event_delivery_queue_total",
        "convoy_event_delivery_queue_backlog_seconds",
        "convoy_event_delivery_attempts_total",
    }
    attempts = {
        tuple(value for _, value in labels): n for labels, n in told["convoy_event_delivery_attempts_total"].items()
    }
    assert attempts == {("e", "200", "p", "success"): 2, ("e", "503", "p", "failure"): 1, ("e", "p", "failure"): 1}
    deliveries = told["convoy_event_delivery_queue_total"]
    assert sum(deliveries.values()) == 1502, "those that are not named are counted"
    first = next(labels for labels in deliveries if dict(labels).get("project_name") == "project 1501")
    assert dict(first) == {
        "project": "1501".rjust(26, "0"),
        "project_name": "project 1501",
        "endpoint": "e" * 26,
        "status": "processing",
        "source": "http",
        "organisation_id": "o" * 26,
        "organisation_name": 'Acme "the" \\ first',
    }


def test_the_stuck_project_is_there_among_many(valkey: Valkey, convoy: SnapshotSources) -> None:
    refresher(valkey, convoy).run_once()
    told = scrape(reader(valkey))
    for name in ("convoy_event_queue_backlog_seconds", "convoy_event_delivery_queue_backlog_seconds"):
        ages = told[name]
        assert len(ages) == 1001
        assert dict(max(ages, key=lambda labels: ages[labels]))["project"] == "1501".rjust(26, "0")
        assert max(ages.values()) == pytest.approx(86_400, abs=3600)
        assert ages[()] < 3600, "the others together"
