"""From the servers to the page that Prometheus reads, and what is left of it when something dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import QueueUnavailable
from headrace.postgres.connect import connect as connect_postgres
from headrace.snapshot import refresher as refresher_module
from headrace.snapshot.refresher import STEPS, Refresher
from headrace.snapshot.sources import SnapshotSources
from headrace.snapshot.store import SCRIPTS, SnapshotSuperseded, StagingLost, script
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse
from tests.alerting import History
from tests.conftest import ODD_NAMES, READY_S, wait_until
from tests.operating import NOBODY
from tests.snapshots import (
    KEYS,
    REF,
    SERVED,
    TENANT,
    Clock,
    Crash,
    count_waiting,
    enqueue,
    find_troubles,
    reader,
    refresher,
    scrape,
    sources,
    store,
)

AGE = "headrace_queue_metrics_snapshot_age_seconds"


@pytest.fixture
def live(valkey: Valkey) -> SnapshotSources:
    """Valkey alone: what is quick to read."""
    return sources(valkey)


# --- What is told ----------------------------------------------------------------------------------


def test_what_a_queue_holds_is_on_the_page(valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
    enqueue(valkey_url, REF, 3)
    done = refresher(valkey, sources(valkey, postgres_url)).run_once()
    assert done is not None
    told = scrape(reader(valkey))
    assert count_waiting(told) == 3
    assert told["headrace_queue_oldest_job_age_seconds"][TENANT] >= 0
    assert told["headrace_operations_total"][("op", "enqueue"),] == 3
    assert told["headrace_cold_rows"] == {(("kind", kind),): 0 for kind in ("waiting", "delayed", "dead")}
    assert told["headrace_alerts_waiting_messages"] == {(): 0}
    assert told[SERVED] == {(): 1}
    assert find_troubles(told) == set()
    assert told["headrace_queue_metrics_refresh_total"][("status", "ok"),] == 1
    assert told["headrace_queue_metrics_snapshot_series"][()] == done.meta.series_total
    assert told["headrace_queue_metrics_source_up"] == {(("source", "clickhouse"),): 0}


def test_names_of_any_kind_come_through(valkey: Valkey, valkey_url: str, live: SnapshotSources) -> None:
    enqueue(valkey_url, ODD_NAMES)
    refresher(valkey, live).run_once()
    [labels] = scrape(reader(valkey))["headrace_queue_oldest_job_age_seconds"]
    assert dict(labels) == vars(ODD_NAMES)


def test_cold_rows_and_open_incidents_come_from_postgres(valkey: Valkey, postgres_url: str) -> None:
    with connect_postgres(postgres_url) as conn:
        conn.execute(
            "INSERT INTO cold_queues (shard, org, project, env, queue, waiting, waiting_bytes, delayed, dead) VALUES "
            "(0, 'a', 'b', 'c', 'd', 5, 50, 6, 7), (1, 'a', 'b', 'c', 'e', 10, 100, 0, 0)"
        )
        conn.execute(
            "INSERT INTO alert_incidents (id, rule_id, rule, org, project, env, queue, severity, channels, fired_at, "
            "resolved_at) SELECT i::text, 'r', '{}', 'a', 'b', 'c', 'd', 'critical', '{}', now(), "
            "CASE WHEN i > 2 THEN now() END FROM generate_series(1, 5) i"
        )
    refresher(valkey, sources(valkey, postgres_url)).run_once()
    told = scrape(reader(valkey))
    rows = {labels[0][1]: value for labels, value in told["headrace_cold_rows"].items()}
    assert rows == {"waiting": 15, "delayed": 6, "dead": 7}
    assert told["headrace_cold_bytes"][("kind", "waiting"),] == 150
    assert told["headrace_alerts_open_incidents"] == {(("severity", "critical"),): 2}


def test_wait_and_run_times_come_from_history(
    valkey: Valkey, valkey_url: str, warehouse: Client, clickhouse_url: str
) -> None:
    enqueue(valkey_url, REF)
    now_ms, history = int(time.time() * 1000), History(warehouse)
    history.add({"at_ms": now_ms - 60_000, "op": "dequeue", "n": 3, "waits": [1000, 1000, 4000]})
    history.add({"at_ms": now_ms - 400_000, "op": "dequeue", "n": 1, "waits": [90_000]})
    history.add({"at_ms": now_ms - 30_000, "op": "ack", "n": 1, "runs": [250]})
    history.set_watermark(now_ms - 5000)
    database = str(warehouse.database)
    refresher(valkey, sources(valkey, history=lambda: connect_clickhouse(clickhouse_url, database))).run_once()
    told = scrape(reader(valkey))
    waits = {dict(labels)["percentile"]: value for labels, value in told["headrace_queue_recent_wait_seconds"].items()}
    assert waits == {"p50": pytest.approx(1, rel=0.03), "p95": pytest.approx(4, rel=0.03), "p99": waits["p95"]}
    assert max(told["headrace_queue_recent_run_seconds"].values()) == pytest.approx(0.25, rel=0.03)
    lag_s = told["headrace_history_lag_seconds"][()]
    assert 4 <= lag_s <= time.time() - now_ms / 1000 + 6, "up to when history was final"
    assert told["headrace_queue_metrics_source_up"] == {(("source", "clickhouse"),): 1}


def test_without_clickhouse_only_its_families_are_left_out(valkey: Valkey, valkey_url: str) -> None:
    enqueue(valkey_url, REF, 2)
    refresher(valkey, sources(valkey, history=lambda: connect_clickhouse(NOBODY))).run_once()
    told = scrape(reader(valkey))
    assert count_waiting(told) == 2
    assert "headrace_queue_recent_wait_seconds" not in told
    assert told["headrace_queue_metrics_source_up"] == {(("source", "clickhouse"),): 0}


def test_ages_grow_between_refreshes_and_everything_goes_when_they_stop(
    valkey: Valkey, valkey_url: str, live: SnapshotSources
) -> None:
    enqueue(valkey_url, REF, 1)
    refresher(valkey, live).run_once()
    clock = Clock()
    read = reader(valkey, clock, poll_every_s=1e9)
    first = scrape(read)
    clock.now += 10
    second = scrape(read)
    name = "headrace_queue_oldest_job_age_seconds"
    assert second[name][TENANT] - first[name][TENANT] == pytest.approx(10, abs=0.01)
    assert second[AGE][()] - first[AGE][()] == pytest.approx(10, abs=0.01)
    clock.now += 111
    third = scrape(read)
    assert not [name for name in third if name.startswith("headrace_queue") and "_metrics_" not in name]
    assert (third[SERVED][()], find_troubles(third)) == (0, {"stale"})
    assert third[AGE][()] > 120


def test_with_the_convoy_preset_its_names_are_there_too(valkey: Valkey, live: SnapshotSources) -> None:
    refresher(valkey, live).run_once()
    told = scrape(reader(valkey, convoy=True))
    ours = [name for name in told if name.startswith("convoy_")]
    assert sorted(ours) == [
        "convoy_queue_metrics_refresh_duration_seconds",
        "convoy_queue_metrics_refresh_total",
        "convoy_queue_metrics_snapshot_age_seconds",
        "convoy_queue_metrics_snapshot_last_success_timestamp_seconds",
    ]
    assert all(told[name].keys() == told[name.replace("convoy", "headrace", 1)].keys() for name in ours)


# --- Publishing ------------------------------------------------------------------------------------


def test_all_keys_share_a_slot(any_valkey_url: str) -> None:
    with connect(any_valkey_url) as client:
        for _ in range(5):
            assert refresher(client, sources(client), owner="me", keep_versions=2).run_once() is not None
        assert scrape(reader(client))["headrace_queue_metrics_snapshot_version"] == {(): 5}
        assert store(client).list_versions() == [5, 4]


def test_superseded_versions_expire_and_only_the_configured_number_is_kept(
    valkey: Valkey, live: SnapshotSources
) -> None:
    made = refresher(valkey, live)
    for _ in range(5):
        made.run_once()
    found = {key.decode(): valkey.pttl(key) for key in valkey.scan_iter(f"{KEYS.key_prefix}v*:*")}
    assert sorted(found) == sorted(key(version) for version in (3, 4, 5) for key in (KEYS.data, KEYS.meta))
    assert {key for key, ttl in found.items() if ttl == -1} == {KEYS.data(5), KEYS.meta(5)}
    assert all(0 < int(ttl) <= 3_600_000 for ttl in found.values() if ttl != -1)
    assert valkey.pttl(KEYS.current) == -1
    assert valkey.get(KEYS.current) == b"v5"


def test_meta_names_the_producer_and_its_sources(valkey: Valkey, valkey_url: str, live: SnapshotSources) -> None:
    enqueue(valkey_url, REF)
    before_s = time.time()
    done = refresher(valkey, live, owner="me").run_once()
    assert done is not None
    fields = {name.decode(): value.decode() for name, value in valkey.hgetall(KEYS.meta(1)).items()}  # pyright: ignore
    assert (fields["owner"], fields["token"], fields["status"], fields["rows_total"]) == ("me", "1", "ok", "1")
    assert fields["source"] == "valkey,postgres"
    assert before_s - 1 <= float(fields["generated_at_unix"]) <= time.time() + 1
    assert int(fields["bytes"]) == valkey.strlen(KEYS.data(1))


@pytest.mark.parametrize("step", STEPS)
def test_a_refresher_that_dies_leaves_a_whole_snapshot(
    valkey: Valkey, valkey_url: str, live: SnapshotSources, step: str
) -> None:
    enqueue(valkey_url, REF, 1)
    refresher(valkey, live, owner="me").run_once()
    enqueue(valkey_url, REF, 1)

    def die(done: str) -> None:
        if done == step:
            raise Crash

    with pytest.raises(Crash):
        refresher(valkey, live, die, owner="me").run_once()
    assert count_waiting(scrape(reader(valkey))) == (2 if step == "switched" else 1)
    staged = [key for key in valkey.scan_iter(f"{KEYS.key_prefix}v2:*") if valkey.pttl(key) == -1]
    assert bool(staged) == (step == "switched"), "what nobody serves ends by itself"
    refresher(valkey, live, owner="me").run_once()
    told = scrape(reader(valkey))
    assert (count_waiting(told), told["headrace_queue_metrics_snapshot_version"][()]) == (2, 3)


@pytest.mark.parametrize("step", [None, *STEPS])
def test_the_duration_of_a_refresh_covers_all_its_steps_and_its_failure(
    valkey: Valkey, live: SnapshotSources, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    """Each step takes ten seconds; the refresh fails after one of them, or not at all."""
    clock = Clock()
    monkeypatch.setattr(refresher_module, "time", SimpleNamespace(monotonic=clock))

    def take_ten_seconds(done: str) -> None:
        clock.now += 10
        if done == step:
            raise ValueError(done)

    with nullcontext() if step is None else pytest.raises(ValueError, match=step):
        refresher(valkey, live, take_ten_seconds).run_once()
    attempts = store(valkey).read_status().attempts
    assert attempts.duration_ms == 10_000 * (len(STEPS) if step is None else STEPS.index(step) + 1)
    assert attempts.error == (step is not None)


def test_the_duration_of_a_superseded_refresh_is_recorded(
    valkey: Valkey, live: SnapshotSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(refresher_module, "time", SimpleNamespace(monotonic=clock))

    def overtake(done: str) -> None:
        if done == "verified":
            valkey.incr(KEYS.number)
            clock.now += 10

    with pytest.raises(SnapshotSuperseded):
        refresher(valkey, live, overtake).run_once()
    attempts = store(valkey).read_status().attempts
    assert (attempts.duration_ms, attempts.superseded, attempts.error) == (10_000, 1, 0)


def test_of_two_refreshers_one_works_until_it_leaves(valkey: Valkey, live: SnapshotSources) -> None:
    first, second = refresher(valkey, live), refresher(valkey, live)
    assert first.run_once() is not None
    assert second.run_once() is None
    assert not second.lease.renew()
    assert first.lease.renew()
    assert store(valkey).read_status().version == 1
    first.lease.release()
    assert second.run_once() is not None
    assert not first.lease.renew()


def overtaken(valkey: Valkey, live: SnapshotSources, meanwhile: Callable[[Refresher], object]) -> None:
    """Pause a refresher after reading for longer than its lease; another one begins and `meanwhile` runs."""

    def pause(step: str) -> None:
        if step == "read":
            wait_until(lambda: not valkey.exists(KEYS.lease), "the lease is over")
            meanwhile(refresher(valkey, live, owner="late"))

    with pytest.raises(SnapshotSuperseded):
        refresher(valkey, live, pause, owner="early", lock_ttl_s=0.05).run_once()


def test_a_late_writer_does_not_win(valkey: Valkey, live: SnapshotSources) -> None:
    refresher(valkey, live, owner="early").run_once()
    store(valkey).create_lease("early").release()
    overtaken(valkey, live, lambda other: other.run_once())
    assert valkey.get(KEYS.current) == b"v3"
    told = scrape(reader(valkey))
    assert told["headrace_queue_metrics_refresh_total"] == {
        (("status", "ok"),): 2,
        (("status", "error"),): 0,
        (("status", "superseded"),): 1,
    }
    assert not valkey.exists(KEYS.data(2), KEYS.meta(2))


def test_a_late_writer_does_not_win_against_one_that_has_only_begun(valkey: Valkey, live: SnapshotSources) -> None:
    overtaken(valkey, live, lambda _: store(valkey).create_lease("late").acquire())
    assert valkey.get(KEYS.current) is None
    assert scrape(reader(valkey))[SERVED] == {(): 0}


def test_a_lease_that_ended_without_another_taking_it_is_no_reason_to_lose(
    valkey: Valkey, live: SnapshotSources
) -> None:
    def pause(step: str) -> None:
        if step == "read":
            wait_until(lambda: not valkey.exists(KEYS.lease), "the lease is over")

    assert refresher(valkey, live, pause, lock_ttl_s=0.05).run_once() is not None
    assert valkey.get(KEYS.current) == b"v1"


def test_a_number_is_never_given_twice(valkey: Valkey, live: SnapshotSources) -> None:
    refresher(valkey, live, owner="me").run_once()
    valkey.delete(KEYS.number)
    refresher(valkey, live, owner="me").run_once()
    assert valkey.get(KEYS.current) == b"v2"


def test_a_number_is_above_those_of_versions_that_are_kept(valkey: Valkey, live: SnapshotSources) -> None:
    made = refresher(valkey, live, keep_versions=2)
    for _ in range(3):
        made.run_once()
    valkey.delete(KEYS.number, KEYS.current)
    made.run_once()
    assert scrape(reader(valkey))["headrace_queue_metrics_snapshot_version"] == {(): 4}


def test_a_repeated_switch_is_done_once(valkey: Valkey, live: SnapshotSources) -> None:
    done = refresher(valkey, live).run_once()
    assert done is not None
    store(valkey).switch(done.meta)
    look = store(valkey).read_status()
    assert (look.version, look.attempts.ok, look.attempts.superseded) == (1, 1, 0)
    assert store(valkey).read(1) is not None


@pytest.mark.parametrize("lost", ["data", "meta", "half"])
def test_what_was_not_written_whole_is_not_published(valkey: Valkey, live: SnapshotSources, lost: str) -> None:
    def lose(step: str) -> None:
        if step == "staged":
            if lost == "half":
                valkey.set(KEYS.data(1), b"half")
            else:
                valkey.delete(KEYS.data(1) if lost == "data" else KEYS.meta(1))

    with pytest.raises(StagingLost):
        refresher(valkey, live, lose).run_once()
    assert valkey.get(KEYS.current) is None
    look = store(valkey).read_status()
    assert (look.attempts.error, "differs from what was written" in look.attempts.error_message) == (1, True)


def test_a_switch_looks_for_itself(valkey: Valkey, live: SnapshotSources) -> None:
    def lose(step: str) -> None:
        if step == "verified":
            valkey.delete(KEYS.data(1))

    with pytest.raises(StagingLost):
        refresher(valkey, live, lose).run_once()
    assert valkey.get(KEYS.current) is None


# --- Reading ---------------------------------------------------------------------------------------


def damage(valkey: Valkey, version: int) -> None:
    data = bytes(valkey.get(KEYS.data(version)) or b"")  # pyright: ignore[reportArgumentType]
    valkey.set(KEYS.data(version), data[:-3] + b"xyz")


def test_a_damaged_version_is_not_served_but_the_one_before(
    valkey: Valkey, valkey_url: str, live: SnapshotSources
) -> None:
    made = refresher(valkey, live)
    for _ in range(3):
        enqueue(valkey_url, REF)
        made.run_once()
    old = reader(valkey)
    assert count_waiting(scrape(old)) == 3
    damage(valkey, 3)
    assert count_waiting(scrape(old)) == 3, "what was read is not read again"
    told = scrape(reader(valkey))
    assert (count_waiting(told), find_troubles(told)) == (2, {"damaged"})
    damage(valkey, 2)
    valkey.delete(KEYS.meta(1))
    told = scrape(reader(valkey))
    assert (told[SERVED][()], find_troubles(told)) == (0, {"damaged", "missing"})
    made.run_once()
    told = scrape(old)
    assert (count_waiting(told), find_troubles(told)) == (3, set())


def test_a_removed_version_is_replaced_by_the_one_before(
    valkey: Valkey, valkey_url: str, live: SnapshotSources
) -> None:
    made = refresher(valkey, live)
    for _ in range(2):
        enqueue(valkey_url, REF)
        made.run_once()
    valkey.delete(KEYS.data(2), KEYS.meta(2))
    assert count_waiting(scrape(reader(valkey))) == 1


def test_a_reader_keeps_what_it_has_when_the_newest_is_damaged(
    valkey: Valkey, valkey_url: str, live: SnapshotSources
) -> None:
    made, read = refresher(valkey, live), reader(valkey)
    enqueue(valkey_url, REF)
    made.run_once()
    assert count_waiting(scrape(read)) == 1
    enqueue(valkey_url, REF)
    made.run_once()
    damage(valkey, 2)
    told = scrape(read)
    assert (count_waiting(told), told["headrace_queue_metrics_snapshot_version"][()]) == (1, 1)
    assert find_troubles(told) == {"damaged"}
    for _ in range(2):
        enqueue(valkey_url, REF)
        made.run_once()
    damage(valkey, 4)
    assert count_waiting(scrape(read)) == 3, "unless there is a newer one that is whole"


def test_scrapes_that_come_together_share_a_page(valkey: Valkey, live: SnapshotSources) -> None:
    refresher(valkey, live).run_once()
    clock, made = Clock(), list[bytes]()
    read = reader(valkey, clock, poll_every_s=1.0)

    def own() -> bytes:
        made.append(b"mine 1\n")
        return made[-1]

    bodies = {read.render_body(own, openmetrics=False, gzip=False) for _ in range(5)}
    assert (len(bodies), len(made)) == (1, 1)
    clock.now += 0.3
    assert read.render_body(own, openmetrics=False, gzip=False).endswith(b"\nmine 1\n")
    assert read.render_body(own, openmetrics=True, gzip=False).endswith(b"\nmine 1\n# EOF\n")
    assert len(made) == 3


def test_scrapes_that_arrive_while_a_page_is_rendered_share_it(valkey: Valkey, live: SnapshotSources) -> None:
    refresher(valkey, live).run_once()
    read, began, may_end, made = reader(valkey), Event(), Event(), list[bytes]()

    def own() -> bytes:
        began.set()
        assert may_end.wait(READY_S)
        made.append(b"mine 1\n")
        return made[-1]

    first = read.submit_page(own, openmetrics=False, gzip=True)
    assert began.wait(READY_S)
    others = [read.submit_page(own, openmetrics=False, gzip=True) for _ in range(50)]
    may_end.set()
    assert {each.result(READY_S) for each in others} == {first.result(READY_S)}
    assert len(made) == 1


def test_a_page_is_current_for_250_ms_and_until_valkey_is_due(valkey: Valkey, live: SnapshotSources) -> None:
    made, clock = refresher(valkey, live), Clock()
    made.run_once()
    rarely, often = reader(valkey, clock, poll_every_s=1e9), reader(valkey, clock, poll_every_s=0.1)
    assert rarely.find_page(openmetrics=False, gzip=False) is None
    bodies = [each.render_body(bytes, openmetrics=False, gzip=False) for each in (rarely, often)]
    made.run_once()
    clock.now += 0.09
    assert [each.find_page(openmetrics=False, gzip=False) for each in (rarely, often)] == bodies
    clock.now += 0.02
    assert rarely.find_page(openmetrics=False, gzip=False) == bodies[0]
    assert often.find_page(openmetrics=False, gzip=False) is None, "Valkey may have a newer version"
    assert scrape(often)["headrace_queue_metrics_snapshot_version"] == {(): 2}
    clock.now += 0.15
    assert rarely.find_page(openmetrics=False, gzip=False) is None


def test_every_process_serves_a_new_version_at_its_next_poll(valkey: Valkey, live: SnapshotSources) -> None:
    made, clock = refresher(valkey, live), Clock()
    made.run_once()
    processes = [reader(valkey, clock, poll_every_s=0.25) for _ in range(3)]
    for version in (2, 3):
        assert [scrape(each)["headrace_queue_metrics_snapshot_version"][()] for each in processes] == [version - 1] * 3
        made.run_once()
        clock.now += 0.25
    assert [scrape(each)["headrace_queue_metrics_snapshot_version"][()] for each in processes] == [3] * 3


def test_a_page_that_fails_is_rendered_again(valkey: Valkey, live: SnapshotSources) -> None:
    refresher(valkey, live).run_once()
    read = reader(valkey)

    def fail() -> bytes:
        raise ValueError("no metrics")

    with pytest.raises(ValueError, match="no metrics"):
        read.render_body(fail, openmetrics=False, gzip=False)
    assert scrape(read)[SERVED] == {(): 1}


def test_a_missing_first_snapshot_is_reported(valkey: Valkey) -> None:
    told = scrape(reader(valkey))
    assert (told[SERVED][()], find_troubles(told)) == (0, {"missing"})
    assert AGE not in told


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(tmp_path / "valkey", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    yield server
    server.stop()


def test_while_valkey_is_down_the_last_copy_is_served_with_its_age(own_valkey: EmbeddedValkey) -> None:
    with connect(own_valkey.url) as client:
        enqueue(own_valkey.url, REF, 2)
        refresher(client, sources(client)).run_once()
        clock = Clock()
        read = reader(client, clock)
        before = scrape(read)
        assert count_waiting(before) == 2
        own_valkey.stop()
        clock.now += 50
        told = scrape(read)
        assert (count_waiting(told), find_troubles(told)) == (2, {"unreachable"})
        assert told[AGE][()] - before[AGE][()] == pytest.approx(50, abs=0.01)
        clock.now += 100
        told = scrape(read)
        assert (told[SERVED][()], find_troubles(told)) == (0, {"stale", "unreachable"})
        assert find_troubles(scrape(reader(client))) == {"missing", "unreachable"}
        with pytest.raises(QueueUnavailable):
            refresher(client, sources(client)).run_once()


def test_metrics_go_on_when_valkeys_memory_is_full(own_valkey: EmbeddedValkey) -> None:
    with connect(own_valkey.url) as client:
        enqueue(own_valkey.url, REF, 2)
        client.config_set("maxmemory", "1")
        refresher(client, sources(client)).run_once()
        assert count_waiting(scrape(reader(client))) == 2


def test_scripts_compile(valkey: Valkey) -> None:
    for name in SCRIPTS:
        assert valkey.script_load(script(name).source)
