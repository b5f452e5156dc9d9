"""All leases behave alike, on both servers: runtime/lease.py states what they promise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.alerts.lease import EvaluatorLease
from headrace.autoscale.lease import AutoscalerLease
from headrace.cold.mover import MoverLease
from headrace.cold.tiers import Tiers
from headrace.errors import LeaseFenced, ServiceUnavailable
from headrace.pipeline.lease import PipelineLease
from headrace.postgres.connect import Pool, open_pool, transaction
from headrace.postgres.lease import PostgresLease
from headrace.queue.scripts import Stubs
from headrace.runtime import lease as runtime_lease
from headrace.runtime.lease import Lease, boot_clock_s
from headrace.snapshot.store import RefreshLease
from headrace.valkey.connect import Valkey
from headrace.valkey.lease import ValkeyLease
from tests.snapshots import store

LONG_S = 3600.0


@dataclass
class LeaseBench:
    make: Callable[[str], Lease]  # by holder; those of PostgreSQL name themselves
    expire: Callable[[], object]  # as time does
    numbers_holders: bool


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as pool:
        yield pool


def expire_rows(pool: Pool) -> None:
    with transaction(pool) as conn:
        conn.execute("UPDATE leases SET until = '-infinity'")


@pytest.fixture(params=[EvaluatorLease, AutoscalerLease, ValkeyLease, PipelineLease, RefreshLease, MoverLease])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LeaseBench:
    if issubclass(request.param, PostgresLease):
        pool: Pool = request.getfixturevalue("pool")
        return LeaseBench(lambda _: request.param(pool, LONG_S), lambda: expire_rows(pool), numbers_holders=True)
    valkey: Valkey = request.getfixturevalue("valkey")
    monkeypatch.setattr("headrace.pipeline.lease.LEASE_S", LONG_S)
    tiers = cast(Tiers, SimpleNamespace(valkey=valkey, stubs=Stubs(2, 1000)))
    makers: dict[type[Lease], Callable[[str], Lease]] = {
        ValkeyLease: lambda holder: ValkeyLease(valkey, "hr:test:lease", LONG_S, holder),
        PipelineLease: lambda holder: PipelineLease(valkey, holder),
        RefreshLease: lambda holder: store(valkey, lock_ttl_s=LONG_S).create_lease(holder),
        MoverLease: lambda holder: MoverLease(tiers, 0, LONG_S, holder),
    }
    make = makers[request.param]
    return LeaseBench(make, lambda: valkey.delete(make("").name), numbers_holders=request.param is MoverLease)


def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let more time pass for this process than any lease lasts."""
    later = boot_clock_s() + 2 * LONG_S
    monkeypatch.setattr(runtime_lease, "boot_clock_s", lambda: later)


def test_one_holder_at_a_time(bench: LeaseBench) -> None:
    one, other = bench.make("one"), bench.make("other")
    assert (one.token, one.is_held, one.is_held_elsewhere) == (None, False, False)
    assert one.acquire()
    token = one.token
    assert not other.acquire()
    assert (other.token, other.is_held, other.is_held_elsewhere) == (None, False, True)
    assert one.acquire()  # renewed
    assert (one.token, one.is_held, one.is_held_elsewhere) == (token, True, False)
    one.ensure_held()
    with pytest.raises(other.fenced):
        other.ensure_held()


def test_a_renewal_lengthens_the_lease_by_the_clock(bench: LeaseBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench.make("one")
    assert one.acquire()
    pause(monkeypatch)
    assert not one.is_held, "it may have expired"
    one.ensure_held()  # the server has it still
    assert one.is_held


def test_a_holder_that_slept_is_fenced(bench: LeaseBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = bench.make("one"), bench.make("other")
    assert one.acquire()
    bench.expire()
    assert other.acquire()
    assert one.is_held, "it does not know better, nor does it ask before a renewal is overdue"
    one.ensure_held()
    pause(monkeypatch)
    assert not one.is_held
    with pytest.raises(one.fenced) as raised:
        one.ensure_held()
    assert isinstance(raised.value, LeaseFenced)
    assert one.is_held_elsewhere
    if bench.numbers_holders:
        bench.expire()
        before = other.token
        assert one.acquire()
        assert before is not None
        assert one.token is not None
        assert one.token > before


def test_a_refused_write_ends_a_lease(bench: LeaseBench) -> None:
    one = bench.make("one")
    assert one.acquire()
    one.mark_lost()
    assert (one.token, one.is_held, one.is_held_elsewhere) == (None, False, True)


def test_a_released_lease_is_free_at_once(bench: LeaseBench) -> None:
    one, other = bench.make("one"), bench.make("other")
    assert one.acquire()
    other.release()  # not its own
    assert not other.acquire()
    one.release()
    assert (one.token, one.is_held) == (None, False)
    if isinstance(one, MoverLease):
        bench.expire()  # its key lives for 1 ms more
    assert other.acquire()
    one.release()
    assert not bench.make("third").acquire()


def test_a_release_that_fails_is_left_to_time(bench: LeaseBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ServiceUnavailable

    one = bench.make("one")
    assert one.acquire()
    monkeypatch.setattr(one, "_release", fail)
    one.release()
    assert not one.is_held
    assert not bench.make("other").acquire()


def test_changes_are_logged_once(bench: LeaseBench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    one, other = bench.make("one"), bench.make("other")
    for _ in range(2):
        one.acquire()
        other.acquire()
    logged = [(record.getMessage(), vars(record)["action"]) for record in caplog.records]
    if isinstance(one, MoverLease):
        assert logged == [("became mover of shard 0", "elected")]
    else:
        holder = one.holder if isinstance(one, ValkeyLease) else "another process"
        held = f"lease {one.name} is held by {holder}"
        assert logged == [(f"acquired lease {one.name}", "lease"), (held, "lease")]
