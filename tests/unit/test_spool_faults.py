"""Full and failing disks, and concurrent processes: accepted records are kept, others are refused with an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from headrace.errors import SpoolBusy, SpoolDiskFull, SpoolFull, SpoolReadFailed, SpoolWriteFailed
from headrace.spool.admission import DROPPED
from headrace.spool.journal import NoteKind, encode_note
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.segment import decode_header
from headrace.spool.spool import Spool
from tests.conftest import wait_until
from tests.model.spool_files import CrashFiles

FOLDER = Path("/spool")
PAYLOAD = Random(1).randbytes(1000)


@pytest.fixture
def files() -> CrashFiles:
    return CrashFiles()


def opened(files: CrashFiles, **options: object) -> Spool:
    given = {"segment_size": 4096, "block_timeout": 0.0, **options}
    return Spool.open(SpoolOptions(path=FOLDER, **given), files=files, background=False)  # type: ignore[arg-type]


def fill(spool: Spool, files: CrashFiles, count: int = 9) -> None:
    """Fill the spool with `count` records, and leave no free space."""
    for number in range(count):
        spool.put(b"%d" % number + PAYLOAD)
    files.capacity = files.used()


def names(records: list[SpoolRecord]) -> list[int]:
    return [int(record.payload[:1]) for record in records]


def leased(spool: Spool) -> SpoolRecord:
    record = spool.lease()
    assert record is not None
    return record


# The disk cannot be read


class UnreadableFiles(CrashFiles):
    """Files on which reading or opening a segment fails with this error."""

    read_error: int | None = None
    open_error: int | None = None

    def read(self, handle: int, length: int, offset: int) -> bytes:
        if self.read_error is not None:
            raise OSError(self.read_error, os.strerror(self.read_error))
        return super().read(handle, length, offset)

    def open_read(self, path: Path) -> int:
        if self.open_error is not None:
            raise OSError(self.open_error, os.strerror(self.open_error))
        return super().open_read(path)


def unreadable_spool() -> tuple[UnreadableFiles, Spool]:
    files = UnreadableFiles()
    spool = opened(files, inmemory_blocks=0)
    for number in range(9):
        spool.put(b"%d" % number + PAYLOAD)
    return files, spool


@pytest.mark.parametrize("fault", [{"open_error": errno.EMFILE}, {"read_error": errno.EIO}])
def test_a_record_that_cannot_be_read_now_is_kept_and_comes_again(fault: dict[str, int]) -> None:
    """Regression: too many open files, or a disk that was away for a moment, lost every leased record."""
    files, spool = unreadable_spool()
    vars(files).update(fault)
    for _ in range(3):
        with pytest.raises(SpoolReadFailed, match="It is kept"):
            spool.lease()
        with pytest.raises(SpoolReadFailed):
            spool.lease_many(5)
    assert (spool.stats().corrupt, spool.stats().in_flight, spool.stats().size) == (0, 0, 9)
    vars(files).update(read_error=None, open_error=None)
    records = [leased(spool), *spool.lease_many(10)]
    assert [(int(record.payload[:1]), record.attempts) for record in records] == [(number, 0) for number in range(9)]
    assert spool.stats().conserved


def test_a_bad_sector_costs_its_record_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    files, spool = unreadable_spool()
    files.read_error = errno.EIO
    with pytest.raises(SpoolReadFailed):
        spool.lease()
    monkeypatch.setattr("headrace.spool.leasing.READ_ERROR_TIMEOUT_S", 0.0)
    assert spool.lease() is None
    assert (spool.stats().corrupt, spool.stats().size) == (9, 0)
    assert spool.stats().conserved


# The disk is full


def test_block_refuses_in_time_and_reads_and_acks_go_on(files: CrashFiles) -> None:
    spool = opened(files)
    fill(spool, files)
    with pytest.raises(SpoolDiskFull, match="not accepted"):
        spool.put(b"x" * 300)
    assert spool.stats().dropped == {"disk_full": 1}
    assert spool.stats().disk_full >= 1
    records = spool.lease_many(20)
    assert names(records) == list(range(9))
    spool.ack_many([record.id for record in records[:3]])
    spool.nack(records[3].id)
    assert names([leased(spool)]) == [3]
    assert spool.stats().conserved


def test_space_that_acks_free_is_used(files: CrashFiles) -> None:
    spool = opened(files)
    fill(spool, files)
    spool.ack_many([record.id for record in spool.lease_many(6)])
    for number in range(9, 13):
        spool.put(b"%d" % (number % 10) + PAYLOAD)
    assert names(spool.lease_many(20)) == [6, 7, 8, 9, 0, 1, 2]
    assert spool.stats().conserved


def test_a_blocked_put_goes_on_when_space_returns(files: CrashFiles) -> None:
    spool = opened(files, block_timeout=60.0)
    fill(spool, files)
    thread = threading.Thread(target=spool.put, args=(b"9" + PAYLOAD,))
    thread.start()
    wait_until(lambda: spool.stats().disk_full > 0, "the put met the full disk")
    files.capacity = None
    thread.join(60)
    assert names(spool.lease_many(20)) == list(range(10))


def test_a_disk_filled_by_one_finished_segment_is_not_the_end(files: CrashFiles) -> None:
    """Everything is acked, but the space is used by the segment being written: the ballast makes room for another."""
    spool = opened(files, segment_size=2**20)
    fill(spool, files)
    spool.ack_many([record.id for record in spool.lease_many(20)])
    spool.put(b"9" + PAYLOAD)
    assert names(spool.lease_many(20)) == [9]
    assert [name for name in files.names(FOLDER) if name.endswith(".seg")] == ["000000000000000a.seg"]


def test_drop_newest_drops_the_new_one(files: CrashFiles) -> None:
    spool = opened(files, full_behavior="drop_newest")
    fill(spool, files)
    assert spool.put(b"9" + PAYLOAD) == DROPPED
    assert spool.put_many([NewRecord(PAYLOAD)] * 2) == []
    assert spool.stats().dropped == {"disk_full": 3}
    assert names(spool.lease_many(20)) == list(range(9))
    assert spool.stats().conserved


def test_drop_oldest_drops_whole_segments_since_only_they_free_space(files: CrashFiles) -> None:
    spool = opened(files, full_behavior="drop_oldest")
    fill(spool, files)
    spool.put(b"9" + PAYLOAD)
    assert spool.stats().dropped == {"disk_full": 3}
    assert names(spool.lease_many(20)) == [3, 4, 5, 6, 7, 8, 9]
    assert spool.stats().conserved


def test_drop_oldest_leaves_what_is_in_flight_and_does_not_spin(files: CrashFiles) -> None:
    spool = opened(files, full_behavior="drop_oldest")
    fill(spool, files)
    held = spool.lease_many(20)
    with pytest.raises(SpoolDiskFull):
        spool.put(b"9" + PAYLOAD)
    spool.ack_many([record.id for record in held])
    assert spool.stats().conserved
    spool.put(b"9" + PAYLOAD)


def test_drop_oldest_in_a_single_segment(files: CrashFiles) -> None:
    spool = opened(files, full_behavior="drop_oldest", segment_size=2**20)
    fill(spool, files)
    last = 0
    while not spool.stats().dropped:  # the ballast is used first
        last = spool.put(b"9" + PAYLOAD)
        assert last < 100
    assert spool.stats().dropped == {"disk_full": 9}
    assert spool.lease_many(100)[-1].id == last
    assert spool.stats().conserved


def test_a_put_that_need_not_be_durable_uses_memory_first(files: CrashFiles) -> None:
    spool = opened(files, inmemory_blocks=3)
    fill(spool, files)
    for number in (0, 1, 2):
        spool.put(b"%d" % number + PAYLOAD, durable=False)
    with pytest.raises(SpoolDiskFull):
        spool.put(b"3" + PAYLOAD, durable=False)
    files.capacity = None
    spool.put(b"4" + PAYLOAD, durable=False)
    assert names(spool.lease_many(20)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 4]


def test_acks_on_a_full_disk_are_written_when_space_returns(files: CrashFiles) -> None:
    spool = opened(files)
    fill(spool, files, 2)
    spool.ack(leased(spool).id)
    files.capacity = None
    spool.maintain()
    files.kill()
    with opened(files) as spool:
        assert names(spool.lease_many(5)) == [1]


def test_a_record_that_cannot_be_buried_stays_in_flight(files: CrashFiles) -> None:
    spool = opened(files)
    fill(spool, files, 2)
    record = leased(spool)
    with pytest.raises(SpoolDiskFull):
        spool.reject(record.id, "no")
    assert spool.stats().in_flight == 1
    files.capacity = None
    spool.reject(record.id, "no")
    assert spool.stats().dead == 1


def test_a_full_disk_at_close_is_reported_and_the_lock_is_released(files: CrashFiles) -> None:
    spool = opened(files)
    fill(spool, files, 2)
    spool.put(PAYLOAD, durable=False)
    with pytest.raises(SpoolFull):
        spool.close()
    files.capacity = None
    with opened(files) as spool:
        assert names(spool.lease_many(5)) == [0, 1]


def test_opening_on_a_full_disk_is_reported_and_harmless(files: CrashFiles) -> None:
    spool = opened(files)
    fill(spool, files, 2)
    spool.close()
    files.capacity = 0
    with pytest.raises(SpoolDiskFull):
        opened(files)
    files.capacity = None
    with opened(files) as spool:
        assert names(spool.lease_many(5)) == [0, 1]


# The disk fails


@pytest.mark.parametrize("fault", ["failing_syncs", "failing_writes"])
def test_a_put_that_the_disk_fails_raises_and_is_not_there(files: CrashFiles, fault: str) -> None:
    spool = opened(files)
    spool.put(b"0" + PAYLOAD, marks={"0": "0"})
    setattr(files, fault, 1)
    with pytest.raises(SpoolWriteFailed, match="not accepted"):
        spool.put(b"1" + PAYLOAD, marks={"0": "1"})
    spool.put(b"2" + PAYLOAD, marks={"1": "2"})
    assert spool.read_marks() == {"0": "0", "1": "2"}
    assert spool.stats().dropped == {"write_failed": 1}
    assert spool.stats().write_errors == 1
    assert names(spool.lease_many(5)) == [0, 2]
    files.kill()
    files.lose_power(Random(1))
    with opened(files) as spool:
        assert names(spool.lease_many(5)) == [0, 2]
        assert spool.read_marks() == {"0": "0", "1": "2"}
        assert spool.stats().corrupt == 0


def test_after_a_failed_sync_the_tail_is_left_and_read_back(files: CrashFiles) -> None:
    """Records on disk are checked through a new handle; the next record goes to another file."""
    spool = opened(files, inmemory_blocks=0)
    for number in range(3):
        spool.put(b"%d" % number + b"x" * 100)
    segment = files.folders[FOLDER].names["0000000000000001.seg"]
    at = vars(spool)["_state"].store.segments[0].offsets[1]
    segment.data[at + 70] ^= 1
    files.failing_syncs = 1
    with pytest.raises(SpoolWriteFailed):
        spool.put(b"3")
    assert spool.stats().corrupt == 1
    assert spool.stats().quarantined == 1
    spool.put(b"4")
    assert spool.stats().segments == 2
    assert names(spool.lease_many(5)) == [0, 2, 4]
    assert spool.stats().conserved


def test_a_failed_sync_keeps_what_waits_in_memory(files: CrashFiles) -> None:
    spool = opened(files)
    spool.put(b"0", durable=False)
    files.failing_syncs = 1
    with pytest.raises(SpoolWriteFailed):
        spool.flush()
    spool.flush()
    files.lose_power(Random(2))
    with opened(files) as spool:
        assert names(spool.lease_many(5)) == [0]


def test_puts_that_share_a_failed_sync_all_raise(files: CrashFiles) -> None:
    spool = opened(files)
    files.failing_syncs = 100
    failed: list[int] = []

    def put(number: int) -> None:
        try:
            spool.put(b"%d" % number)
        except SpoolWriteFailed:
            failed.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(failed) == list(range(8))
    assert spool.stats().size == 0
    files.failing_syncs = 0
    spool.put(b"8")
    assert names(spool.lease_many(20)) == [8]
    assert spool.stats().conserved


# Power loss


def loses_power_until(files: CrashFiles, fits: Callable[[CrashFiles], bool]) -> None:
    for seed in range(1000):
        trial = files.twin()
        trial.lose_power(Random(seed))
        if fits(trial):
            files.lose_power(Random(seed))
            return
    raise AssertionError("no seed does that")


def test_a_mark_does_not_cover_a_record_lost_in_a_power_failure(files: CrashFiles) -> None:
    """The kernel wrote the page of the second record and not that of the first: neither was durable, but the mark of
    the second must not cover the first."""
    spool = opened(files, sync="os", segment_size=65536, compression="none")
    spool.put(b"0" + PAYLOAD, marks={"0": "0"})
    spool.flush()
    spool.put(b"1" + PAYLOAD, marks={"0": "1"})
    spool.put(b"2" + PAYLOAD, marks={"0": "2"})

    def second_alone(trial: CrashFiles) -> bool:
        data = trial.folders[FOLDER].names["0000000000000001.seg"].data
        return b"2" + PAYLOAD in data and b"1" + PAYLOAD not in data

    loses_power_until(files, second_alone)
    for _ in range(2):
        with opened(files) as spool:
            assert names(spool.lease_many(5)) == [0, 2]
            assert spool.read_marks() == {"0": "0"}


# The process dies at a critical moment (each of these was found by `./hr chaos spool`)


def test_a_part_that_was_itself_replaced_does_not_come_again(files: CrashFiles) -> None:
    """Killed when the parts of the part were on disk, but the note that it is replaced was not."""
    spool = opened(files)
    spool.put(b"0")
    (one, _) = spool.replace(leased(spool).id, [NewRecord(b"1"), NewRecord(b"2")])
    assert leased(spool).id == one
    journal = files.folders[FOLDER].names["0000000000000001.notes"]
    spool.replace(one, [NewRecord(b"3"), NewRecord(b"4")])
    journal.data = journal.data.replace(encode_note(salt_of_first(files), NoteKind.REPLACED, one), b"")
    files.kill()
    with opened(files) as spool:
        assert names(spool.lease_many(9)) == [2, 3, 4]  # parts of a part come after its siblings
        assert spool.stats().conserved


def test_notes_about_unwritten_records_are_ignored(files: CrashFiles) -> None:
    """Killed between the note that a record in memory is acked and the write of that record: the number is free again,
    and its next user must not count as acked."""
    opened(files).close()
    journal = files.folders[FOLDER].names["0000000000000001.notes"]
    journal.data += encode_note(salt_of_first(files), NoteKind.ACKED, 1)
    with opened(files) as spool:
        assert spool.put(b"0") == 1
    with opened(files) as spool:
        assert names(spool.lease_many(5)) == [0]


def salt_of_first(files: CrashFiles) -> int:
    header = decode_header(bytes(files.folders[FOLDER].names["0000000000000001.seg"].data), 1)
    assert header is not None
    return header.salt


def test_a_durable_record_is_leased_only_when_it_is_on_disk(files: CrashFiles) -> None:
    """Otherwise it could be delivered, be lost in a power loss, and be counted twice when it is put again."""
    spool = opened(files)
    seen: list[SpoolRecord | None] = []
    sync = files.sync

    def look_then_sync(handle: int) -> None:
        seen.append(spool.lease())
        sync(handle)

    files.sync = look_then_sync  # type: ignore[method-assign]
    spool.put(b"0")
    assert seen == [None]
    assert leased(spool).payload == b"0"


# Two processes


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from headrace.spool.options import SpoolOptions;"
        " from headrace.spool.spool import Spool;"
        f"Spool.open(SpoolOptions(path=Path({str(tmp_path)!r})));"
        "print('open', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(SpoolBusy, match=f"Process {child.pid} "):
            Spool.open(SpoolOptions(path=tmp_path))
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    with Spool.open(SpoolOptions(path=tmp_path)) as spool:
        assert spool.stats().size == 0
