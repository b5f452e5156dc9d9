"""Send the records of batches from a spool with several workers, in any order of completion, through failures, splits,
dead letters, process deaths and power losses at every step.

A batch has rows and one report, as the pipeline writes them. Invariant: when a report arrives, the rows of its batch
and of all earlier batches have arrived, or are dead letters; and so have earlier reports that vouch for data. At the
end everything has arrived: no record waits forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.errors import SpoolFull
from headrace.export.destination import SendOrder
from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.spool import Spool
from tests.model.spool_files import CrashFiles

OPTIONS = SpoolOptions(
    path=Path("/spool"), max_size=60, inmemory_blocks=5, segment_size=4096, block_timeout=0.0, group_ms=0.0
)
ROWS, REPORT, VOUCHING_REPORT = "rows", "report", "vouching report"
ORDERS = {
    ROWS: SendOrder.ANY,
    REPORT: SendOrder.AFTER_EARLIER,
    VOUCHING_REPORT: SendOrder.IN_SEQUENCE,
}

picks = st.randoms(use_true_random=False)


@dataclass(frozen=True)
class Content:
    """What a record carries: some rows of a batch, by number, or its report (no numbers)."""

    kind: str
    batch: int
    numbers: tuple[int, ...] = ()

    def encode(self) -> NewRecord:
        text = f"{self.kind}/{self.batch}/{','.join(map(str, self.numbers))}"
        return NewRecord(text.encode(), token=text, meta={"kind": self.kind})

    @classmethod
    def decode(cls, record: SpoolRecord) -> Content:
        kind, batch, numbers = record.payload.decode().split("/")
        return cls(kind, int(batch), tuple(int(each) for each in numbers.split(",") if each))


class ExportOrderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.batches: list[tuple[int, str]] = []  # number of rows, and the kind of its report
        self.arrived: set[tuple[int, int]] = set()  # rows as (batch, number), at least once
        self.dead: set[tuple[int, int]] = set()
        self.reports: set[int] = set()
        self.dead_reports: set[int] = set()
        self.sending: dict[int, Content] = {}

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        self.sending = {}
        self.spool = Spool.open(OPTIONS, files=self.files, background=False)

    @rule(records=st.integers(0, 3), kind=st.sampled_from([REPORT, REPORT, VOUCHING_REPORT]))
    def put_batch(self, records: int, kind: str) -> None:
        batch = len(self.batches)
        rows = [Content(ROWS, batch, (2 * number, 2 * number + 1)) for number in range(records)]
        try:
            self.spool.put_many([each.encode() for each in (*rows, Content(kind, batch))])
        except SpoolFull:
            return
        self.batches.append((2 * records, kind))

    # A worker

    @rule(count=st.integers(1, 5))
    def lease(self, count: int) -> None:
        for _ in range(count):
            self.lease_one()

    def lease_one(self) -> bool:
        """Lease a record as a worker does. Return False if there is none."""
        record = self.spool.lease()
        if record is None:
            return False
        order = ORDERS[record.meta["kind"]]
        if order is SendOrder.ANY or not self.spool.hold(record.id, holds_later=order is SendOrder.IN_SEQUENCE):
            self.sending[record.id] = Content.decode(record)
        return True

    @rule()
    def lease_before_declaring(self) -> None:
        """Two threads lease a record each; the one with the later record declares its order first."""
        records = [record for record in (self.spool.lease(), self.spool.lease()) if record is not None]
        for record in reversed(records):
            order = ORDERS[record.meta["kind"]]
            if order is SendOrder.ANY or not self.spool.hold(record.id, holds_later=order is SendOrder.IN_SEQUENCE):
                self.sending[record.id] = Content.decode(record)

    def choose(self, pick: Random) -> tuple[int, Content]:
        id = pick.choice(sorted(self.sending))
        return id, self.sending[id]

    def arrive(self, content: Content) -> None:
        """The destination stores a record."""
        if content.kind == ROWS:
            self.arrived |= {(content.batch, number) for number in content.numbers}
            return
        for batch, (rows, kind) in enumerate(self.batches[: content.batch + 1]):
            missing = {(batch, number) for number in range(rows)} - self.arrived - self.dead
            assert not missing, f"the report of batch {content.batch} arrived before rows {missing}"
            if kind == VOUCHING_REPORT and batch < content.batch:
                assert batch in self.reports | self.dead_reports, f"{content} arrived before that of batch {batch}"
        self.reports.add(content.batch)

    @precondition(lambda self: self.sending)
    @rule(pick=picks)
    def deliver(self, pick: Random) -> None:
        id, content = self.choose(pick)
        self.arrive(content)
        self.spool.ack(id)
        del self.sending[id]

    @precondition(lambda self: self.sending)
    @rule(pick=picks, applied=st.booleans(), delayed=st.booleans())
    def fail(self, pick: Random, applied: bool, delayed: bool) -> None:
        """The send fails; if it was applied, its response was lost."""
        id, content = self.choose(pick)
        if applied:
            self.arrive(content)
        self.spool.nack(id, delay=1000.0 if delayed else 0.0)
        del self.sending[id]

    @precondition(lambda self: self.sending)
    @rule(pick=picks)
    def put_back(self, pick: Random) -> None:
        id, _ = self.choose(pick)
        self.spool.release(id)
        del self.sending[id]

    @precondition(lambda self: self.sending)
    @rule(pick=picks)
    def bury(self, pick: Random) -> None:
        id, content = self.choose(pick)
        self.spool.reject(id, "bad")
        del self.sending[id]
        if content.kind == ROWS:
            self.dead |= {(content.batch, number) for number in content.numbers}
        else:
            self.dead_reports.add(content.batch)

    @precondition(lambda self: any(len(each.numbers) > 1 for each in self.sending.values()))
    @rule(pick=picks)
    def split(self, pick: Random) -> None:
        id, content = pick.choice([each for each in sorted(self.sending.items()) if len(each[1].numbers) > 1])
        self.spool.replace(id, [Content(ROWS, content.batch, (each,)).encode() for each in content.numbers])
        del self.sending[id]

    @rule()
    def end_delays(self) -> None:
        self.spool.end_delays()

    # Restarts

    @rule()
    def maintain(self) -> None:
        self.spool.maintain()

    @rule()
    def stop_and_start(self) -> None:
        self.spool.close()
        self.open()

    @rule()
    def die(self) -> None:
        self.files.kill()
        self.open()

    @rule(random=picks)
    def lose_power(self, random: Random) -> None:
        self.files.lose_power(random)
        self.open()

    def teardown(self) -> None:
        if not hasattr(self, "spool"):
            return
        self.spool.end_delays()
        while self.lease_one() or self.sending:
            if self.sending:
                id, content = self.choose(Random(len(self.sending)))
                self.arrive(content)
                self.spool.ack(id)
                del self.sending[id]
        assert self.spool.stats().size == 0, "records wait that nothing holds"
        assert self.reports | self.dead_reports == set(range(len(self.batches)))
        self.spool.close()
