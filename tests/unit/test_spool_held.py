"""Records that wait in the spool until earlier ones are finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UnknownRecord
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord
from headrace.spool.spool import Spool
from tests.conftest import wait_until
from tests.model.spool_files import CrashFiles

FOLDER = Path("/spool")


def open_spool(files: CrashFiles | None = None, **others: object) -> Spool:
    options = SpoolOptions(**{"path": FOLDER, "segment_size": 4096, **others})  # pyright: ignore[reportArgumentType]
    return Spool.open(options, files=files or CrashFiles(), background=False)


def put(spool: Spool, count: int) -> list[int]:
    return spool.put_many([NewRecord(b"%d" % number) for number in range(count)])


def lease(spool: Spool) -> int | None:
    record = spool.lease()
    return None if record is None else record.id


def test_a_held_record_comes_back_when_all_earlier_ones_are_finished() -> None:
    spool = open_spool()
    first, second, follower, later = put(spool, 4)
    assert [lease(spool), lease(spool), lease(spool)] == [first, second, follower]
    assert spool.hold(follower)
    assert spool.stats().held == 1
    assert lease(spool) == later, "later records overtake it"
    spool.ack(second)
    assert lease(spool) is None
    spool.ack(first)
    assert lease(spool) == follower
    assert spool.stats().held == 0
    assert not spool.hold(follower), "nothing before it is left"
    spool.ack(follower)
    spool.ack(later)
    assert spool.stats().size == 0


def test_a_failed_record_is_unfinished_until_it_is_sent_or_dead() -> None:
    spool = open_spool()
    first, follower = put(spool, 2)
    assert [lease(spool), lease(spool)] == [first, follower]
    spool.nack(first, delay=1000.0)
    assert spool.hold(follower)
    assert lease(spool) is None
    spool.end_delays()
    assert lease(spool) == first
    spool.reject(first, "bad")
    assert lease(spool) == follower


def test_the_parts_of_a_split_record_hold_it_too() -> None:
    spool = open_spool()
    first, follower = put(spool, 2)
    assert [lease(spool), lease(spool)] == [first, follower]
    assert spool.hold(follower)
    parts = spool.replace(first, [NewRecord(b"a"), NewRecord(b"b")])
    assert [lease(spool), lease(spool), lease(spool)] == [*parts, None]
    spool.ack_many(parts)
    assert lease(spool) == follower


def test_followers_do_not_wait_for_one_another_unless_declared() -> None:
    spool = open_spool()
    row, one, two, three, four = put(spool, 5)
    assert [lease(spool) for _ in range(5)] == [row, one, two, three, four]
    assert spool.hold(one)
    assert spool.hold(two)
    assert spool.hold(three, holds_later=True)
    assert spool.hold(four)
    spool.ack(row)
    assert [lease(spool), lease(spool), lease(spool), lease(spool)] == [one, two, three, None]
    spool.ack(three)
    assert lease(spool) == four


def test_a_follower_that_is_declared_late_holds_others_only_until_then() -> None:
    """Two threads lease one follower each, and the second declares its own first."""
    spool = open_spool()
    one, two = put(spool, 2)
    assert [lease(spool), lease(spool)] == [one, two]
    assert spool.hold(two)
    assert lease(spool) is None
    assert not spool.hold(one)
    assert lease(spool) == two


def test_a_thread_that_waits_for_a_record_is_woken() -> None:
    import threading

    with Spool.open(SpoolOptions(type="memory")) as spool:
        first, follower = put(spool, 2)
        assert [lease(spool), lease(spool)] == [first, follower]
        assert spool.hold(follower)
        leased: list[int] = []
        thread = threading.Thread(target=lambda: leased.append(getattr(spool.lease(timeout=None), "id", 0)))
        thread.start()
        spool.ack(first)
        wait_until(lambda: leased == [follower], "the follower is leased")
        thread.join()


def test_holding_costs_no_attempt_and_changes_nothing_on_disk() -> None:
    files = CrashFiles()
    spool = open_spool(files)
    first, follower = put(spool, 2)
    assert [lease(spool), lease(spool)] == [first, follower]
    assert spool.hold(follower)
    files.kill()
    spool = open_spool(files)
    again = spool.lease_many(9)
    assert [(record.id, record.attempts) for record in again] == [(first, 1), (follower, 0)]
    assert spool.hold(follower), "the order is the same in the next process"


def test_a_full_spool_drops_held_records_as_well() -> None:
    spool = open_spool(max_size=3, full_behavior="drop_oldest")
    first, follower, other = put(spool, 3)
    assert [lease(spool), lease(spool)] == [first, follower]
    assert spool.hold(follower)
    spool.put(b"new")
    assert spool.stats().dropped == {"oldest": 1}
    assert not spool.is_unfinished(follower)
    spool.ack(first)
    assert lease(spool) == other
    assert spool.stats().conserved


def test_a_record_that_is_not_in_flight_cannot_be_held() -> None:
    spool = open_spool()
    (first,) = put(spool, 1)
    with pytest.raises(UnknownRecord):
        spool.hold(first)


def test_a_dropped_new_record_leaves_its_marks(tmp_path: Path) -> None:
    """Regression: the producer went on behind the dropped record, and the spool still named the position before it."""
    files = CrashFiles()
    spool = open_spool(files, max_size=2, full_behavior="drop_newest")
    spool.put_many([NewRecord(b"1"), NewRecord(b"2")], marks={"at": "2"})
    assert spool.put_many([NewRecord(b"3")], marks={"at": "3"}) == []
    assert spool.read_marks() == {"at": "3"}
    stats = spool.stats()
    assert (stats.dropped, stats.size, stats.conserved) == ({"newest": 1}, 2, True)
    files.kill()
    spool = open_spool(files)
    assert spool.read_marks() == {"at": "3"}
    assert [record.payload for record in spool.lease_many(9)] == [b"1", b"2"]
    assert spool.stats().corrupt == 0


def test_on_a_full_disk_the_marks_of_a_dropped_record_are_not_kept() -> None:
    files = CrashFiles()
    spool = open_spool(files, max_size=1, full_behavior="drop_newest")
    spool.put(b"1", marks={"at": "1"})
    files.capacity = files.used()
    assert spool.put(b"2", marks={"at": "2"}) == 0
    files.capacity = None
    assert spool.read_marks() == {"at": "1"}
    spool.flush()
    assert spool.read_marks() == {"at": "1"}
