"""The refresher as it runs: again and again, beside others, in shadow mode, through outages."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from psycopg.sql import SQL, Identifier

from headrace.errors import ServiceUnavailable
from headrace.postgres.connect import connect as connect_postgres
from headrace.runtime.backoff import Backoff
from headrace.snapshot import service
from headrace.snapshot.parity import VOLATILE, collect_values
from headrace.snapshot.refresher import Refresher, read_direct
from headrace.snapshot.service import SnapshotService, SnapshotServiceOptions
from headrace.snapshot.sources import SnapshotSources
from headrace.snapshot.store import SnapshotSuperseded
from headrace.valkey.connect import Valkey
from tests.conftest import Servers, wait_until
from tests.snapshots import (
    KEYS,
    REF,
    SERVED,
    count_waiting,
    enqueue,
    find_troubles,
    reader,
    refresher,
    scrape,
    sources,
    store,
)


@pytest.fixture
def live(valkey: Valkey) -> SnapshotSources:
    """Valkey alone: what is quick to read."""
    return sources(valkey)


def test_in_shadow_mode_all_is_compared_and_nothing_served(
    valkey: Valkey, valkey_url: str, live: SnapshotSources
) -> None:
    enqueue(valkey_url, REF, 2)
    Refresher(store(valkey), live, shadow=True).run_once()
    told = scrape(reader(valkey, shadow=True))
    assert (told[SERVED][()], find_troubles(told)) == (0, {"shadow"})
    assert "headrace_queue_jobs" not in told
    parity = {labels[0][1]: value for labels, value in told["headrace_queue_metrics_shadow_series"].items()}
    found = store(valkey).read(1)
    assert found is not None
    compared = [family for family in found[1] if family.name not in VOLATILE]
    volatile = found[0].series_total - len(collect_values(compared))
    assert volatile == 1  # the memory used
    assert parity == {"same": found[0].series_total - 1, "different": 0, "only_snapshot": 0, "only_direct": 0}
    assert compared == [family for family in read_direct(live) if family.name not in VOLATILE]


FAST = SnapshotServiceOptions(0.02, 0.3, Backoff(base_s=0.01, longest_s=0.02))


class Running:
    """A service in a thread."""

    def __init__(self, service: SnapshotService) -> None:
        self.stop = threading.Event()
        self._thread = threading.Thread(target=service.run_forever, args=[self.stop])

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def version(valkey: Valkey) -> int:
    return store(valkey).read_status().version


def test_a_service_refreshes_again_and_again_and_leaves_its_lease(valkey: Valkey, live: SnapshotSources) -> None:
    with Running(SnapshotService(refresher(valkey, live), live, FAST)):
        wait_until(lambda: version(valkey) >= 3, "three versions")
    assert not valkey.exists(KEYS.lease)


def test_a_service_that_stands_by_takes_over(valkey: Valkey, live: SnapshotSources) -> None:
    dead = refresher(valkey, live, owner="dead", lock_ttl_s=0.3)
    dead.run_once()
    with Running(SnapshotService(refresher(valkey, live, owner="alive", lock_ttl_s=0.3), live, FAST)):
        wait_until(lambda: version(valkey) >= 2, "the other took over")
    assert not dead.lease.renew()


def test_a_long_refresh_keeps_its_lease(valkey: Valkey, live: SnapshotSources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STUCK_LEASES", 10**6)
    reading, go_on = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "read":
            reading.set()
            go_on.wait()

    slow = refresher(valkey, live, hold, owner="slow", lock_ttl_s=3600.0)
    with Running(SnapshotService(slow, live, FAST)):
        try:
            assert reading.wait(60)
            for _ in range(2):
                valkey.pexpire(KEYS.lease, 1_800_000)  # half of it is over
                wait_until(lambda: int(valkey.pttl(KEYS.lease)) > 2_400_000, "a sign of life")  # pyright: ignore
            assert refresher(valkey, live, owner="other").run_once() is None
        finally:
            go_on.set()
        wait_until(lambda: version(valkey), "it is published")


def test_a_refresh_that_hangs_gives_way(valkey: Valkey, live: SnapshotSources) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang(step: str) -> None:
        if step == "read":
            hangs.set()
            go_on.wait()

    options = replace(FAST, lock_ttl_s=0.05)
    with Running(SnapshotService(refresher(valkey, live, hang, lock_ttl_s=0.05), live, options)) as hung:
        try:
            assert hangs.wait(60)
            wait_until(refresher(valkey, live, owner="other").run_once, "another refreshes")
        finally:
            hung.stop.set()
            go_on.set()
    look = store(valkey).read_status()
    assert (look.version, look.attempts.superseded) == (2, 1)


def test_one_whose_refreshes_fail_gives_way(valkey: Valkey, live: SnapshotSources) -> None:
    broken = threading.Event()

    def fail(step: str) -> None:
        if step == "read" and broken.is_set():
            raise ServiceUnavailable

    options = replace(FAST, lock_ttl_s=60.0)
    with Running(SnapshotService(refresher(valkey, live, fail, lock_ttl_s=60.0), live, options)):
        wait_until(lambda: version(valkey), "it refreshes")
        broken.set()
        wait_until(refresher(valkey, live, owner="other").run_once, "another, which can, refreshes")


def test_many_refreshers_whose_leases_end_all_the_time(valkey: Valkey, valkey_url: str, live: SnapshotSources) -> None:
    enqueue(valkey_url, REF, 7)
    stop, wrong = threading.Event(), list[BaseException]()

    def refresh(lock_ttl_s: float) -> None:
        made = refresher(valkey, live, lock_ttl_s=lock_ttl_s, keep_versions=2)
        while not stop.is_set():
            try:
                made.run_once()
            except SnapshotSuperseded:
                pass
            except BaseException as error:
                wrong.append(error)
                return

    # One has time to finish: else, on a slow machine, each might overtake the others without end.
    threads = [threading.Thread(target=refresh, args=[lock_ttl_s]) for lock_ttl_s in (0.002, 0.002, 0.002, 0.2)]
    for thread in threads:
        thread.start()
    read, seen = reader(valkey), 0
    while seen < 20 and not wrong:
        told = scrape(read)
        found = int(told.get("headrace_queue_metrics_snapshot_version", {(): 0})[()])
        assert found >= seen, "never back"
        assert found == 0 or count_waiting(told) == 7
        seen = found
    stop.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(list(valkey.scan_iter(f"{KEYS.key_prefix}v*:data"))) <= 2 + len(threads)


def test_a_service_waits_for_an_unavailable_database(valkey: Valkey, postgres_url: str, servers: Servers) -> None:
    found, name = sources(valkey, postgres_url), Identifier(postgres_url.rpartition("/")[2])
    with connect_postgres(servers.postgres_template()) as conn:
        conn.execute(SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        with Running(SnapshotService(refresher(valkey, found), found, FAST)):
            wait_until(lambda: store(valkey).read_status().attempts.error >= 2, "two failures")
            conn.execute(SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
            wait_until(lambda: version(valkey), "it is published")
    assert "not currently accepting connections" in store(valkey).read_status().attempts.error_message
