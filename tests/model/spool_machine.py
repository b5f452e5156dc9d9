"""Run every operation of a spool against a plain list, with process deaths, power losses and disk failures.

Invariants: a record whose durable put returned and that is not finished is there, with its payload, in its position. A
record acked before the process died is not delivered again; after a power loss it may be, if the journal was not synced
since. A mark never covers a lost record. Sequence numbers are never reused. The counters add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import SpoolDiskFull, SpoolFull, SpoolWriteFailed
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.spool import Spool
from tests.model.spool_files import CrashFiles

FOLDER = Path("/spool")
OPTIONS = SpoolOptions(
    path=FOLDER,
    max_size=40,
    max_bytes=60_000,
    inmemory_blocks=5,
    segment_size=4096,
    block_timeout=0.0,
    group_ms=0.0,
    full_behavior="block",
)
MARK = "shard"

sizes = st.sampled_from([0, 1, 50, 300, 1500])


@dataclass
class Known:
    """A record in the model."""

    id: int
    place: int
    payload: bytes
    durable: bool
    mark: int = 0
    leases: int = 0  # leases without an ack
    released: int = 0  # since the journal was synced: a power loss may keep the lease and lose the release
    in_flight: bool = False
    ended: bool = False
    end_synced: bool = False


class SpoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.known: dict[int, Known] = {}
        self.mark = 0  # of the last put
        self.durable_mark = 0
        self.highest = 0
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.spool = self.open()

    def open(self) -> Spool:
        return Spool.open(OPTIONS, files=self.files, background=False)

    # Putting

    @rule(size=sizes, durable=st.booleans())
    def put(self, size: int, durable: bool) -> None:
        payload, mark = self.payload(size), self.mark + 1
        self.mark = mark
        try:
            id = self.spool.put(payload, token=f"t{mark}", marks={MARK: str(mark)}, durable=durable)
        except SpoolFull:
            assert not self.fits(size)
            return
        self.note(Known(id, id, payload, durable, mark))
        if durable:
            self.everything_is_durable()

    @rule(count=st.integers(1, 4), size=sizes)
    def put_many(self, count: int, size: int) -> None:
        payloads = [self.payload(size) for _ in range(count)]
        self.mark += 1
        try:
            ids = self.spool.put_many([NewRecord(each) for each in payloads], marks={MARK: str(self.mark)})
        except SpoolFull:
            assert not self.fits(size * count, count)
            return
        for id, payload in zip(ids, payloads, strict=True):
            self.note(Known(id, id, payload, True, self.mark))
        self.everything_is_durable()

    @rule(size=sizes, writes=st.booleans())
    def put_on_a_failing_disk(self, size: int, writes: bool) -> None:
        """The put raises, and the record is not there; records accepted before are."""
        if not self.fits(size):
            return
        self.mark += 1
        self.files.failing_syncs, self.files.failing_writes = (0, 1) if writes else (1, 0)
        try:
            self.spool.put(self.payload(size), marks={MARK: str(self.mark)})
        except SpoolWriteFailed:
            pass
        else:
            raise AssertionError("the put should have failed")
        finally:
            self.files.failing_syncs = self.files.failing_writes = 0

    @rule(size=sizes, slack=st.integers(0, 700))
    def put_on_a_full_disk(self, size: int, slack: int) -> None:
        if not self.fits(size):
            return
        payload = self.payload(size)
        self.mark += 1
        self.files.capacity = self.files.used() + slack
        try:
            id = self.spool.put(payload, marks={MARK: str(self.mark)})
        except SpoolDiskFull:
            return
        finally:
            self.files.capacity = None
        self.note(Known(id, id, payload, True, self.mark))
        self.everything_is_durable()

    def payload(self, size: int) -> bytes:
        self.number += 1
        return f"{self.number}:".encode() + Random(self.number).randbytes(size)

    def fits(self, size: int, count: int = 1) -> bool:
        stats = self.spool.stats()
        return stats.size + count <= OPTIONS.max_size and stats.bytes + size + count * 200 <= OPTIONS.max_bytes

    def note(self, known: Known) -> None:
        assert known.id > self.highest, "a number was used twice"
        self.highest = known.id
        self.known[known.id] = known

    def everything_is_durable(self) -> None:
        """Mark everything as durable: a durable put or a flush includes whatever was put before."""
        for known in self.known.values():
            known.durable = True
            self.durable_mark = max(self.durable_mark, known.mark)

    # Leasing

    def waiting(self) -> list[Known]:
        left = [each for each in self.known.values() if not each.in_flight and not each.ended]
        return sorted(left, key=lambda each: (each.place, each.id))

    def in_flight(self) -> list[Known]:
        return [each for each in self.known.values() if each.in_flight]

    @rule()
    def lease(self) -> None:
        record, expected = self.spool.lease(), next(iter(self.waiting()), None)
        assert (record is None) == (expected is None)
        if record is not None and expected is not None:
            self.check(record, expected)

    @rule(count=st.integers(1, 6))
    def lease_many(self, count: int) -> None:
        expected = self.waiting()[:count]
        records = self.spool.lease_many(count)
        assert len(records) == len(expected)
        for record, known in zip(records, expected, strict=True):
            self.check(record, known)

    def check(self, record: SpoolRecord, known: Known) -> None:
        assert (record.id, record.payload, record.attempts) == (known.id, known.payload, known.leases)
        known.in_flight = True
        known.leases += 1

    @precondition(lambda self: bool(self.in_flight()))
    @rule(pick=st.randoms(use_true_random=False))
    def ack(self, pick: Random) -> None:
        known = pick.choice(self.in_flight())
        self.spool.ack(known.id)
        known.in_flight, known.ended = False, True

    @precondition(lambda self: bool(self.in_flight()))
    @rule(pick=st.randoms(use_true_random=False))
    def ack_many(self, pick: Random) -> None:
        chosen = pick.sample(self.in_flight(), pick.randint(1, len(self.in_flight())))
        if pick.random() < 0.7:
            chosen.sort(key=lambda each: each.id)
        self.spool.ack_many([each.id for each in chosen])
        for known in chosen:
            known.in_flight, known.ended = False, True

    @precondition(lambda self: bool(self.in_flight()))
    @rule(pick=st.randoms(use_true_random=False))
    def nack(self, pick: Random) -> None:
        known = pick.choice(self.in_flight())
        self.spool.nack(known.id)
        known.in_flight = False

    @precondition(lambda self: bool(self.in_flight()))
    @rule(pick=st.randoms(use_true_random=False))
    def release(self, pick: Random) -> None:
        known = pick.choice(self.in_flight())
        self.spool.release(known.id)
        known.in_flight = False
        known.leases -= 1
        known.released += 1

    @precondition(lambda self: bool(self.in_flight()))
    @rule(pick=st.randoms(use_true_random=False))
    def reject(self, pick: Random) -> None:
        known = pick.choice(self.in_flight())
        self.spool.reject(known.id, "no")
        known.in_flight, known.ended = False, True

    @precondition(lambda self: bool(self.in_flight()))
    @rule(pick=st.randoms(use_true_random=False), count=st.integers(1, 3))
    def replace(self, pick: Random, count: int) -> None:
        known = pick.choice(self.in_flight())
        parts = [self.payload(10) for _ in range(count)]
        ids = self.spool.replace(known.id, [NewRecord(part) for part in parts])
        known.in_flight, known.ended, known.end_synced = False, True, True
        for id, part in zip(ids, parts, strict=True):
            self.note(Known(id, known.place, part, True, known.mark))
        self.everything_is_durable()

    # Maintenance and restarts

    @rule()
    def flush(self) -> None:
        self.spool.flush()
        self.everything_is_durable()

    @rule()
    def maintain(self) -> None:
        self.spool.maintain()
        self.ends_on_disk_are_synced()

    def ends_on_disk_are_synced(self) -> None:
        for known in self.known.values():
            if known.ended and known.durable:
                known.end_synced = True

    @rule()
    def stop_and_start(self) -> None:
        self.spool.close()
        self.everything_is_durable()
        for known in self.known.values():
            known.leases -= known.in_flight
            known.in_flight = False
            known.end_synced = known.ended
        self.spool = self.open()
        self.compare(self.peek(), exactly=True)

    @rule()
    def die(self) -> None:
        """Simulate kill -9: data written to the operating system is kept."""
        self.files.kill()
        for known in self.known.values():
            known.in_flight = False
        self.spool = self.open()
        self.compare(self.peek(), exactly=False, after_power_loss=False)

    @rule(random=st.randoms(use_true_random=False))
    def lose_power(self, random: Random) -> None:
        self.files.lose_power(random)
        for known in self.known.values():
            known.in_flight = False
        self.spool = self.open()
        self.compare(self.peek(), exactly=False, after_power_loss=True)

    def peek(self) -> list[SpoolRecord]:
        """Lease all waiting records in order, and release them."""
        records = self.spool.lease_many(10_000)
        for record in records:
            self.spool.release(record.id)
        self.spool.maintain()  # journals are synced
        return records

    def compare(self, found: Sequence[SpoolRecord], *, exactly: bool, after_power_loss: bool = False) -> None:
        there = {record.id for record in found}
        for known in self.known.values():
            if not known.ended and (known.durable or exactly):
                assert known.id in there, f"lost: {known}"
        for record in found:
            known = self.known[record.id]
            assert record.payload == known.payload
            came_again_rightly = after_power_loss and not known.end_synced
            assert not known.ended or came_again_rightly, f"came again: {known}"
            if after_power_loss:
                assert record.attempts <= known.leases + known.released
            else:
                assert record.attempts == known.leases, known
        places = [(self.known[record.id].place, record.id) for record in found]
        assert places == sorted(places)
        self.check_marks(there)
        self.highest = max(self.highest, self.spool.stats().next_id - 1)
        attempts = {record.id: record.attempts for record in found}
        self.known = {
            id: replace(known, ended=False, leases=attempts[id], released=0, durable=True)
            for id, known in self.known.items()
            if id in there
        }

    def check_marks(self, there: set[int]) -> None:
        """The mark is at least the last durable one, and covers no lost record."""
        mark = int(self.spool.read_marks().get(MARK, "0"))
        assert self.durable_mark <= mark <= self.mark
        lost = [known for known in self.known.values() if not known.ended and known.id not in there]
        assert not [known for known in lost if known.mark <= mark], "a mark speaks for a lost record"
        self.mark = max(self.mark, mark)
        self.durable_mark = mark

    @invariant()
    def counts_add_up(self) -> None:
        stats = self.spool.stats()
        assert stats.conserved, stats
        assert stats.size == sum(not known.ended for known in self.known.values()), stats
        assert stats.in_flight == len(self.in_flight())
        assert stats.size <= OPTIONS.max_size + 10  # parts may exceed the limit

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()
