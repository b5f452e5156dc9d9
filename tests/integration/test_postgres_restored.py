"""PostgreSQL is restored to an earlier point, or another one takes its place, beside a Valkey that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import sql

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.errors import HeadraceError, WrongDatabase
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import DeadFilter, WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.scripts import run
from tests.conftest import end_sessions

X = QueueRef("tenant x", "p", "e", "q")
Y = QueueRef("tenant y", "p", "e", "q")
HOUR_MS = 3_600_000
CAP = 2


class Database:
    """A database that can be set back to a copy of itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._server, _, self._name = url.rpartition("/")
        self._copy = f"{self._name}_copy"

    def copy(self) -> None:
        self._run("CREATE DATABASE {} TEMPLATE {}", self._copy, self._name)

    def restore(self) -> None:
        self._run("DROP DATABASE {} WITH (FORCE)", self._name)
        self._run("ALTER DATABASE {} RENAME TO {}", self._copy, self._name)

    def query(self, query: str) -> list[Any]:
        with connect_postgres(self.url) as conn:
            found = conn.execute(query.encode())
            return found.fetchall() if found.description else []

    def _run(self, statement: str, *names: str) -> None:
        with connect_postgres(f"{self._server}/postgres") as conn:
            end_sessions(conn, self._name)
            conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # pyright: ignore[reportArgumentType]


@dataclass
class Producer:
    valkey_url: str
    postgres_url: str

    def __enter__(self) -> Producer:
        options = QueueOptions(shards=1, caps=WarmCaps(items=CAP))
        self.stubs = options.make_stubs()
        self.tiers = Tiers(self.valkey_url, self.postgres_url, options)
        self.client = SyncClient(self.valkey_url, options, self.tiers)
        self.mover = Mover(self.tiers, MoverOptions(lease_s=3600.0))
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.tiers.close()

    def enqueue(self, ref: QueueRef, *ids: str) -> None:
        assert all(self.client.enqueue_many(ref, [NewJob("t", b"12", id=job_id) for job_id in ids]))

    def finish(self) -> list[str]:
        jobs = run(self.client.redis, self.stubs.dequeue(0, 1000, HOUR_MS))
        run(self.client.redis, self.stubs.ack(0, [(job, 1) for job in jobs]))
        return [job.id for job in jobs]

    def drain(self) -> list[str]:
        self.mover.renew_leadership()
        done: list[str] = []
        while True:
            self.mover.sweep(0)
            if not (jobs := self.finish()):
                return done
            done += jobs

    def state(self, ref: QueueRef) -> QueueState:
        return next(state for state in read_states(self.client.redis, 1) if state.ref == ref)


@pytest.fixture
def database(postgres_url: str) -> Database:
    return Database(postgres_url)


@pytest.fixture
def producer(valkey_url: str, database: Database) -> Iterator[Producer]:
    with Producer(valkey_url, database.url) as producer:
        yield producer


@pytest.fixture
def other(valkey_url: str, database: Database) -> Iterator[Producer]:
    """Another process on the same servers."""
    with Producer(valkey_url, database.url) as other:
        yield other


class TestRestored:
    def test_a_row_with_a_number_used_before_is_placed(self, producer: Producer, database: Database) -> None:
        producer.enqueue(X, "1", "2")
        producer.enqueue(X, "3")  # goes cold
        producer.enqueue(X, "4")
        database.copy()
        producer.enqueue(X, "5", "6")
        with producer.tiers.store.transaction() as conn:  # a mover places all rows and dies before it deletes them
            producer.mover.renew_leadership()
            queue_id = producer.tiers.store.ensure_queue_id(X, 0)
            rows = producer.tiers.store.claim(conn, queue_id, 10, 1000)
            assert producer.finish() == ["1", "2"]
            token = producer.mover._get_token(X)  # pyright: ignore[reportPrivateUsage]
            room = QueueOptions(shards=1).make_stubs()
            producer.tiers.run(room.refill(X, token, 10**15, rows))
        assert producer.finish() == ["3", "4", "5", "6"]
        database.restore()
        producer.enqueue(X, "7", "8")  # these rows have the numbers of 5 and 6
        assert sorted(producer.drain()) == ["7", "8"]

    def test_a_producer_never_spills_into_another_tenants_queue(
        self, producer: Producer, other: Producer, database: Database
    ) -> None:
        database.copy()
        producer.enqueue(X, "1", "2", "3")
        database.restore()
        other.enqueue(Y, "4", "5", "6")  # its queue has the id that X had
        producer.enqueue(X, "7")
        found = database.query("SELECT org, job_id FROM cold_jobs ORDER BY job_id")
        assert found == [(Y.org, "6"), (X.org, "7")]
        assert producer.tiers.redrive(X, DeadFilter()) == 0
        assert sorted(producer.drain()) == ["1", "2", "4", "5", "6", "7"]

    def test_depth_is_that_of_the_restored_rows(self, producer: Producer, database: Database) -> None:
        producer.enqueue(X, "1", "2", "3", "4")
        database.copy()
        producer.enqueue(X, *map(str, range(5, 15)))
        producer.enqueue(X, "15")
        assert producer.state(X).cold == 13
        database.restore()
        producer.mover.renew_leadership()
        producer.mover.sweep(0)
        assert producer.state(X).cold == 2
        producer.enqueue(X, "16")
        assert producer.state(X).cold == 3
        assert producer.drain() == ["1", "2", "3", "4", "16"]

    def test_what_is_missing_is_reported(self, producer: Producer, database: Database) -> None:
        producer.enqueue(X, "1", "2", "3", "4")
        database.copy()
        producer.enqueue(X, "5", "6", "7")
        database.restore()
        producer.mover.renew_leadership()
        producer.mover.sweep(0)
        found = database.query(
            "SELECT server, kind, org, missing FROM server_events JOIN server_event_losses ON id = event_id"
        )
        assert found == [("postgres", "went back", X.org, 3)]
        producer.mover.sweep(0)
        assert database.query("SELECT count(*) FROM server_events") == [(1,)]


class TestReplaced:
    @pytest.fixture
    def replaced(self, producer: Producer, database: Database) -> Producer:
        """Valkey knows one PostgreSQL; the address leads to another one now."""
        producer.enqueue(X, "1", "2", "3")
        database.query("UPDATE cold_identity SET id = gen_random_uuid()")
        return producer

    def test_producers_are_refused(self, replaced: Producer, other: Producer, database: Database) -> None:
        for client in (replaced, other):
            with pytest.raises(HeadraceError, match="another PostgreSQL"):
                client.enqueue(X, "4")
        with pytest.raises(WrongDatabase):
            other.tiers.redrive(X, DeadFilter())
        assert database.query("SELECT job_id FROM cold_jobs") == [("3",)]

    def test_a_mover_moves_nothing(self, replaced: Producer, other: Producer) -> None:
        other.mover.renew_leadership()
        with pytest.raises(WrongDatabase):
            other.mover.sweep(0)
        other.mover.refill_queue(X)
        assert replaced.finish() == ["1", "2"]

    def test_it_can_be_adopted(self, replaced: Producer, other: Producer) -> None:
        other.tiers.adopt_postgres()
        other.enqueue(X, "4")
        assert other.drain() == ["1", "2", "3", "4"]
        replaced.enqueue(X, "5")
        assert other.drain() == ["5"]

    def test_valkey_that_lost_its_data_takes_the_postgres_that_is_there(
        self, replaced: Producer, other: Producer
    ) -> None:
        other.client.redis.delete(keys.meta(0))
        other.enqueue(X, "4")
