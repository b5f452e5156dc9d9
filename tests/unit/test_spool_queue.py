"""Public behaviour of the spool: order, leases, limits, attempts, marks, counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import RecordTooLarge, SettingsError, SpoolBusy, SpoolClosed, SpoolFull, UnknownRecord
from headrace.spool.admission import DROPPED
from headrace.spool.inspect import inspect_spool, list_dead, list_quarantine
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.spool import Spool
from tests.conftest import wait_until

Opener = Callable[..., Spool]


@pytest.fixture
def spool_path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def opened(spool_path: Path) -> Iterator[Opener]:
    """Opens spools at one path, and closes them."""
    spools: list[Spool] = []

    def open_one(*, background: bool = False, **options: object) -> Spool:
        for spool in spools:
            spool.close()
        spools.append(Spool.open(SpoolOptions(path=spool_path, **options), background=background))  # type: ignore[arg-type]
        return spools[-1]

    yield open_one
    for spool in spools:
        spool.close()


@pytest.fixture(params=["disk", "memory"])
def spool(request: pytest.FixtureRequest, spool_path: Path) -> Iterator[Spool]:
    with Spool.open(SpoolOptions(path=spool_path, type=request.param), background=False) as each:
        yield each
        assert each.stats().conserved


def leased(spool: Spool) -> SpoolRecord:
    record = spool.lease()
    assert record is not None
    return record


def payloads(spool: Spool) -> list[bytes]:
    return [record.payload for record in spool.lease_many(10_000)]


def test_records_come_in_the_order_they_were_put(spool: Spool) -> None:
    for number in range(20):
        spool.put(b"%d" % number, durable=number % 3 == 0)
    assert payloads(spool) == [b"%d" % number for number in range(20)]


def test_a_record_brings_its_company(spool: Spool) -> None:
    id = spool.put(b"rows", token="t", meta={"table": "x", "ü": "🎈"})
    record = leased(spool)
    assert (record.id, record.payload, record.token, dict(record.meta)) == (id, b"rows", "t", {"table": "x", "ü": "🎈"})
    assert record.attempts == 0
    assert record.put_at > 0


def test_an_acked_record_never_comes_again(spool: Spool) -> None:
    spool.put(b"a")
    spool.ack(leased(spool).id)
    assert spool.lease() is None
    assert spool.stats().size == spool.stats().bytes == 0


def test_only_what_is_in_flight_can_be_ended(spool: Spool) -> None:
    id = spool.put(b"a")
    for unknown in (id, 99):
        for verb in (spool.ack, spool.nack, spool.release):
            with pytest.raises(UnknownRecord):
                verb(unknown)
        with pytest.raises(UnknownRecord):
            spool.reject(unknown, "no")
        with pytest.raises(UnknownRecord):
            spool.replace(unknown, [NewRecord(b"")])
    leased(spool)
    spool.ack(id)
    with pytest.raises(UnknownRecord):
        spool.ack(id)


def test_acks_of_many_are_all_or_none(spool: Spool) -> None:
    for _ in range(4):
        spool.put(b"a")
    ids = [record.id for record in spool.lease_many(3)]
    with pytest.raises(UnknownRecord):
        spool.ack_many([*ids, ids[-1] + 1])
    with pytest.raises(UnknownRecord):
        spool.ack_many([ids[0], ids[0]])
    assert spool.stats().in_flight == 3
    spool.ack_many(ids[::-1])
    assert spool.stats().acked == 3


def test_a_nacked_record_keeps_its_place_and_counts_the_attempt(spool: Spool) -> None:
    for name in (b"a", b"b", b"c"):
        spool.put(name)
    first = leased(spool)
    assert leased(spool).payload == b"b"
    spool.nack(first.id, reason="down")
    again = leased(spool)
    assert (again.payload, again.attempts) == (b"a", 1)
    assert leased(spool).payload == b"c"
    assert spool.stats().retries == 1
    assert spool.stats().last_error == "down"


def test_a_delayed_record_blocks_no_other(spool: Spool) -> None:
    spool.put(b"a")
    spool.put(b"b")
    spool.nack(leased(spool).id, delay=3600)
    assert payloads(spool) == [b"b"]
    assert spool.stats().delayed == 1


def test_a_delayed_record_wakes_a_waiting_lease(spool: Spool) -> None:
    spool.put(b"a")
    spool.nack(leased(spool).id, delay=0.02)
    record = spool.lease(timeout=60)
    assert record is not None
    assert record.attempts == 1


def test_a_released_record_was_not_tried(spool: Spool) -> None:
    spool.put(b"a")
    spool.put(b"b")
    spool.release(leased(spool).id)
    assert [(record.payload, record.attempts) for record in spool.lease_many(2)] == [(b"a", 0), (b"b", 0)]


def test_a_put_wakes_a_waiting_lease(spool: Spool) -> None:
    found: list[SpoolRecord | None] = []
    waiter = threading.Thread(target=lambda: found.append(spool.lease(timeout=None)))
    waiter.start()
    spool.put(b"a")
    waiter.join(60)
    assert [record.payload for record in found if record] == [b"a"]


def test_closing_wakes_a_waiting_lease(spool: Spool) -> None:
    found: list[SpoolRecord | None] = []
    waiter = threading.Thread(target=lambda: found.append(spool.lease(timeout=None)))
    waiter.start()
    spool.close()
    waiter.join(60)
    assert found == [None]
    with pytest.raises(SpoolClosed):
        spool.put(b"a")


def test_parts_take_the_place_of_what_they_replace(spool: Spool) -> None:
    for name in (b"a", b"b"):
        spool.put(name)
    record = leased(spool)
    ids = spool.replace(record.id, [NewRecord(b"a1", "t/1", {"part": "1"}), NewRecord(b"a2", "t/2")])
    one, two, three = spool.lease_many(3)
    assert [one.payload, two.payload, three.payload] == [b"a1", b"a2", b"b"]
    assert [one.id, two.id] == ids
    assert (one.token, dict(one.meta), two.token) == ("t/1", {"part": "1"}, "t/2")
    assert spool.stats().pushed == 3
    deeper = spool.replace(two.id, [NewRecord(b"a2a"), NewRecord(b"a2b")])
    spool.nack(one.id)
    spool.nack(three.id)
    assert payloads(spool) == [b"a1", b"a2a", b"a2b", b"b"]
    spool.ack(deeper[1])


def test_marks_are_the_newest_of_each_key(spool: Spool) -> None:
    spool.put(b"a", marks={"0": "1-1", "1": "1-5"})
    spool.put(b"b", marks={"0": "2-1"})
    spool.put_many([NewRecord(b"c"), NewRecord(b"d")], marks={"2": "9-9"})
    assert spool.read_marks() == {"0": "2-1", "1": "1-5", "2": "9-9"}


def test_marks_outlive_acks_segments_and_restarts(opened: Opener) -> None:
    spool = opened(segment_size=4096)
    for number in range(30):
        spool.put(b"x" * 1000, marks={"0": str(number), str(number): "once"})
        spool.ack(leased(spool).id)
    spool.put(b"y", durable=False, marks={"memory": "1"})
    spool.ack(leased(spool).id)  # never written, but closing the spool keeps its mark
    spool.put(b"z", marks={"0": "newest"})
    expected = {str(number): "once" for number in range(30)} | {"memory": "1", "0": "newest"}
    for _ in range(3):
        spool = opened(segment_size=4096)
        assert spool.read_marks() == expected
        assert spool.stats().segments <= 3


def test_everything_survives_a_restart(opened: Opener) -> None:
    spool = opened()
    for number in range(6):
        spool.put(b"%d" % number, token=f"t{number}", meta={"n": str(number)}, durable=number < 3)
    acked, nacked, _held = spool.lease_many(3)
    spool.ack(acked.id)
    spool.nack(nacked.id, delay=3600)
    spool = opened()
    records = spool.lease_many(10)
    assert [(record.payload, record.token, record.attempts) for record in records] == [
        (b"1", "t1", 1),
        (b"2", "t2", 0),  # closing the spool releases leases
        (b"3", "t3", 0),
        (b"4", "t4", 0),
        (b"5", "t5", 0),
    ]
    assert dict(records[-1].meta) == {"n": "5"}
    stats = spool.stats()
    assert stats.conserved
    assert (stats.pushed, stats.recovered, stats.acked) == (5, 5, 0)


def test_numbers_go_on_after_a_restart(opened: Opener) -> None:
    last = 0
    for _ in range(5):
        spool = opened()
        id = spool.put(b"a", durable=False)
        assert id == last + 1
        last = id
        spool.ack(leased(spool).id)


def test_finished_segments_are_deleted_out_of_order(opened: Opener, spool_path: Path) -> None:
    spool = opened(segment_size=4096, compression="none")
    for _ in range(12):
        spool.put(b"x" * 1500)
    first, *others = spool.lease_many(12)
    spool.ack_many([record.id for record in others])
    assert spool.stats().segments == 2  # the segment with the first record, and the one being written
    spool = opened(segment_size=4096)
    assert spool.stats().corrupt == 0  # removed segments in between are no loss
    assert leased(spool).id == first.id
    assert not inspect_spool(spool_path).findings


def test_poison_is_dead_lettered_with_its_reason(opened: Opener, spool_path: Path) -> None:
    spool = opened()
    id = spool.put(b"bad \n rows", token="t", meta={"table": "x"})
    leased(spool)
    spool.reject(id, "400 Bad Request")
    assert spool.lease() is None
    assert spool.stats().dead == 1
    (dead,) = list_dead(spool_path)
    assert dead.facts["id"] == id
    assert dead.facts["reason"] == "400 Bad Request"
    assert dead.path.read_bytes().split(b"\n", 1)[1] == b"bad \n rows"


def test_the_size_of_the_dead_directory_is_reported(opened: Opener, spool_path: Path) -> None:
    first = opened()
    first.put(b"bad" * 100)
    first.reject(leased(first).id, "no")
    first.close()
    (dead,) = list_dead(spool_path)
    assert opened().stats().dead_bytes == dead.path.stat().st_size


def test_what_was_read_ahead_waits_behind_a_record_that_came_back(opened: Opener) -> None:
    """One by one, from disk: consecutive records are read together, but the order is checked each time."""
    spool = opened(inmemory_blocks=0)
    ids = spool.put_many([NewRecord(b"%d" % number) for number in range(6)])
    first = leased(spool)
    second = leased(spool)
    spool.nack(first.id)
    again = leased(spool)
    assert (again.id, again.attempts) == (first.id, 1)
    assert [record.id for record in spool.lease_many(1)] == [ids[2]]
    spool.replace(second.id, [NewRecord(b"a"), NewRecord(b"b")])
    assert [leased(spool).payload for _ in range(5)] == [b"a", b"b", b"3", b"4", b"5"]
    assert spool.lease() is None


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_too_many_attempts_are_poison(spool_path: Path, kind: str) -> None:
    options = SpoolOptions(path=spool_path, type=kind, max_attempts=2)  # type: ignore[arg-type]
    with Spool.open(options, background=False) as spool:
        spool.put(b"a")
        spool.put(b"b")
        spool.nack(leased(spool).id, reason="down")
        spool.nack(leased(spool).id, reason="still down")
        assert leased(spool).payload == b"b"
        assert (spool.stats().dead, spool.stats().size) == (1, 1)
        assert spool.stats().conserved


def test_a_record_that_kills_its_process_is_poison_in_the_end(spool_path: Path) -> None:
    options = SpoolOptions(path=spool_path, max_attempts=2)
    with Spool.open(options, background=False) as spool:
        spool.put(b"killer")
        spool.put(b"b")
    for attempt in range(2):
        spool = Spool.open(options, background=False)
        assert (leased(spool).payload, leased(spool).payload) == (b"killer", b"b")
        spool.release(2)
        die(spool)
        assert attempt < 2
    with Spool.open(options, background=False) as spool:
        assert leased(spool).payload == b"b"
        assert spool.stats().dead == 1


def die(spool: Spool) -> None:
    """Leave the spool as a killed process does: the lock is gone, nothing more is written."""
    store = vars(spool)["_state"].store
    store.files.close(vars(store)["_lock"])
    vars(spool)["_state"].closed = True


# Limits


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_limits_hold_with_records_in_flight(spool_path: Path, kind: str) -> None:
    options = SpoolOptions(path=spool_path, type=kind, max_size=3, block_timeout=0)  # type: ignore[arg-type]
    with Spool.open(options, background=False) as spool:
        for _ in range(3):
            spool.put(b"a")
        ids = [record.id for record in spool.lease_many(3)]
        with pytest.raises(SpoolFull):
            spool.put(b"b")
        spool.nack(ids[0])
        with pytest.raises(SpoolFull):
            spool.put(b"b")
        spool.ack(ids[1])
        spool.put(b"b")
        assert spool.stats().size == 3
        assert spool.stats().refused == 2


def test_bytes_are_limited_too(opened: Opener) -> None:
    spool = opened(max_bytes=1000, block_timeout=0)
    spool.put(b"x" * 800)
    with pytest.raises(SpoolFull):
        spool.put(b"x" * 100)
    assert spool.stats().bytes <= 1000
    with pytest.raises(RecordTooLarge):
        spool.put(b"x" * 1001)


def test_a_blocked_put_goes_on_when_there_is_room(opened: Opener) -> None:
    spool = opened(max_size=1, block_timeout=120)
    spool.put(b"a")
    record = leased(spool)
    done = threading.Event()

    def put() -> None:
        spool.put(b"b")
        done.set()

    thread = threading.Thread(target=put)
    thread.start()
    spool.ack(record.id)
    thread.join(60)
    assert done.is_set()


def test_drop_newest_drops_and_counts_the_new_one(opened: Opener) -> None:
    spool = opened(max_size=1, full_behavior="drop_newest")
    spool.put(b"a")
    assert spool.put(b"b") == DROPPED
    assert spool.put_many([NewRecord(b"c")]) == []
    assert payloads(spool) == [b"a"]
    assert spool.stats().dropped == {"newest": 2}
    assert spool.stats().conserved


def test_drop_oldest_drops_and_counts_the_oldest_that_is_not_in_flight(opened: Opener) -> None:
    spool = opened(max_size=3, full_behavior="drop_oldest")
    for name in (b"a", b"b", b"c"):
        spool.put(name)
    held = leased(spool)
    spool.put(b"d")
    assert spool.stats().dropped == {"oldest": 1}
    assert payloads(spool) == [b"c", b"d"]
    spool.ack(held.id)
    assert spool.stats().conserved


def test_drop_oldest_prefers_a_delayed_one_if_that_is_oldest(opened: Opener) -> None:
    spool = opened(max_size=2, full_behavior="drop_oldest")
    spool.put(b"a")
    spool.put(b"b")
    spool.nack(leased(spool).id, delay=3600)
    spool.put(b"c")
    assert payloads(spool) == [b"b", b"c"]
    assert spool.stats().delayed == 0


def test_drop_oldest_never_spins(opened: Opener) -> None:
    """With everything in flight there is nothing to drop: the put is refused at once."""
    spool = opened(max_size=2, full_behavior="drop_oldest")
    spool.put(b"a")
    spool.put(b"b")
    spool.lease_many(2)
    with pytest.raises(SpoolFull, match="in flight"):
        spool.put(b"c")


def test_many_are_accepted_together_or_not_at_all(opened: Opener) -> None:
    spool = opened(max_size=3, block_timeout=0)
    spool.put(b"a")
    with pytest.raises(SpoolFull):
        spool.put_many([NewRecord(b"b")] * 3)
    assert spool.stats().size == 1
    with pytest.raises(RecordTooLarge):
        spool.put_many([NewRecord(b"b")] * 4)
    assert len(spool.put_many([NewRecord(b"b"), NewRecord(b"c")])) == 2


def test_a_record_larger_than_the_limit_is_refused(opened: Opener) -> None:
    spool = opened(max_record=100)
    with pytest.raises(RecordTooLarge):
        spool.put(b"x" * 101)
    spool.put(b"x" * 100)
    assert spool.stats().refused == 1


def test_a_record_larger_than_a_segment_gets_one_of_its_own(opened: Opener) -> None:
    spool = opened(segment_size=4096, compression="none")
    for size in (10, 100_000, 10):
        spool.put(b"x" * size)
    spool = opened()
    assert [len(payload) for payload in payloads(spool)] == [10, 100_000, 10]


# Memory and disk


def test_memory_overflows_to_disk_in_order(opened: Opener) -> None:
    spool = opened(inmemory_blocks=4)
    for number in range(50):
        spool.put(b"%d" % number, durable=False)
        assert spool.stats().inmemory_blocks <= 4
    assert spool.stats().flushes >= 10
    assert payloads(spool) == [b"%d" % number for number in range(50)]


def test_memory_is_bounded_in_bytes_too(opened: Opener) -> None:
    spool = opened(inmemory_bytes=1000)
    for _ in range(5):
        spool.put(b"x" * 400, durable=False)
    assert spool.stats().inmemory_bytes <= 1000


def test_what_is_acked_in_memory_is_never_written(opened: Opener) -> None:
    spool = opened()
    before = spool.stats().disk_bytes
    for _ in range(100):
        spool.put(b"x" * 1000, durable=False)
        spool.ack(leased(spool).id)
    assert spool.stats().disk_bytes - before < 1000


def test_a_stale_record_is_written(opened: Opener) -> None:
    spool = opened(stale_flush=0.0)
    spool.put(b"a", durable=False)
    assert spool.stats().inmemory_blocks == 1
    spool.maintain()
    assert spool.stats().inmemory_blocks == 0
    assert spool.stats().durable_id == 1


def test_the_keeper_writes_stale_records_and_the_hint(opened: Opener, spool_path: Path) -> None:
    spool = opened(background=True, stale_flush=0.01, meta_sync=0.01)
    spool.put(b"a", durable=False)
    wait_until(lambda: spool.stats().inmemory_blocks == 0, "the stale record is on disk")
    wait_until((spool_path / "spool.meta").exists, "the hint is written")


def test_a_leased_record_that_moves_to_disk_stays_leased(opened: Opener) -> None:
    spool = opened()
    spool.put(b"a", durable=False)
    spool.put(b"b", durable=False)
    held = leased(spool)
    spool.flush()
    assert payloads(spool) == [b"b"]
    spool.nack(held.id)
    assert leased(spool).attempts == 1


@pytest.mark.parametrize("sync", ["always", "group", "os"])
def test_every_policy_keeps_a_durable_put_from_a_killed_process(spool_path: Path, sync: str) -> None:
    options = SpoolOptions(path=spool_path, sync=sync)  # type: ignore[arg-type]
    spool = Spool.open(options, background=False)
    spool.put(b"a")
    spool.put(b"b", durable=False)
    die(spool)
    with Spool.open(options, background=False) as spool:
        assert payloads(spool) == ([b"a", b"b"] if sync == "always" else [b"a"])


def test_many_threads(opened: Opener) -> None:
    """Four threads put, four lease and ack: each record exactly once, and the records of each thread in order."""
    spool = opened(background=True, segment_size=65536, inmemory_blocks=64, max_size=500, block_timeout=240)
    seen: list[list[bytes]] = [[] for _ in range(4)]
    producing = threading.Event()

    def produce(name: int) -> None:
        for number in range(300):
            spool.put(b"%d:%d" % (name, number), durable=number % 10 == 0)

    def consume(mine: list[bytes]) -> None:
        while True:
            record = spool.lease(timeout=0.05)
            if record is None and producing.is_set() and spool.stats().size == 0:
                return
            if record is not None:
                mine.append(record.payload)
                spool.ack(record.id)

    producers = [threading.Thread(target=produce, args=(name,)) for name in range(4)]
    consumers = [threading.Thread(target=consume, args=(mine,)) for mine in seen]
    for thread in [*producers, *consumers]:
        thread.start()
    for thread in producers:
        thread.join()
    producing.set()
    for thread in consumers:
        thread.join()
    everything = [payload for mine in seen for payload in mine]
    assert len(everything) == len(set(everything)) == 1200
    for mine in seen:
        for name in range(4):
            own = [int(payload.split(b":")[1]) for payload in mine if payload.startswith(b"%d:" % name)]
            assert own == sorted(own)
    assert spool.stats().conserved


# The directory


def test_two_spools_on_one_directory_are_refused(opened: Opener, spool_path: Path) -> None:
    opened()
    with pytest.raises(SpoolBusy, match="Process"):
        Spool.open(SpoolOptions(path=spool_path))


def test_a_live_directory_can_be_looked_at(opened: Opener, spool_path: Path) -> None:
    spool = opened()
    for number in range(3):
        spool.put(b"%d" % number, marks={"0": str(number)})
    spool.ack(leased(spool).id)
    steps: list[tuple[int, int]] = []
    found = inspect_spool(spool_path, progress=lambda done, total: steps.append((done, total)))
    assert found.in_use
    assert (found.pending, found.newest_id, dict(found.marks)) == (2, 3, {"0": "2"})
    assert found.oldest_put_at is not None
    assert steps[-1][0] == steps[-1][1]
    assert list_quarantine(spool_path) == []
    spool.close()
    assert not inspect_spool(spool_path).in_use


def test_oldest_put_at_is_that_of_the_oldest_without_an_end(opened: Opener) -> None:
    spool = opened()
    assert spool.stats().oldest_put_at is None
    spool.put(b"a")
    spool.put(b"b")
    first, second = spool.lease_many(2)
    assert spool.stats().oldest_put_at == pytest.approx(first.put_at)
    spool.ack(first.id)
    assert spool.stats().oldest_put_at == pytest.approx(second.put_at)
    spool.ack(second.id)
    assert spool.stats().oldest_put_at is None


@pytest.mark.parametrize(
    "options",
    [{"max_size": 0}, {"segment_size": 100}, {"segment_size": 2**32}, {"meta_sync": 0}, {"max_attempts": 0}],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(SettingsError):
        SpoolOptions(path=tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError):
        SpoolOptions()
