"""The process that is killed: two threads put, one leases, and each writes to a file what it is about to do and what it
has done. A note is one write, so that notes written before the kill are complete."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from random import Random

from headrace.spool.options import SpoolOptions
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.spool.spool import Spool

PRODUCERS = 2
MANY = 10**9


def options(path: Path) -> SpoolOptions:
    """Return small limits, so that segments rotate, memory overflows and segments are deleted within a tenth of a
    second."""
    return SpoolOptions(
        path=path, max_size=500, segment_size=16_384, inmemory_blocks=8, meta_sync=0.02, stale_flush=0.02, group_ms=1.0
    )


def payload(name: str) -> bytes:
    return name.encode() + b" " + Random(name).randbytes(Random(name).choice([0, 20, 300, 3000]))


class Notes:
    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._handle, (" ".join(map(str, words)) + "\n").encode())


def produce(spool: Spool, notes: Notes, producer: int, first: int, random: Random) -> None:
    for number in range(first, first + MANY):
        name = f"{producer}-{number}"
        durable = random.random() < 0.7
        notes.write("putting", name)
        id = spool.put(payload(name), token=name, marks={str(producer): str(number)}, durable=durable)
        notes.write("put" if durable else "taken", name, id)


def consume(spool: Spool, notes: Notes, random: Random, *, drain: bool) -> None:
    held: list[SpoolRecord] = []
    while True:
        record = spool.lease(timeout=0 if drain else 0.05)
        if record is None and drain:
            return
        if record is not None:
            right = record.payload == payload(record.token)
            notes.write("leased" if right else "wrong", record.token, record.id, record.attempts)
            held.append(record)
        if held and (drain or random.random() < 0.7):
            finish(spool, notes, held.pop(random.randrange(len(held))), 0.0 if drain else random.random())


def finish(spool: Spool, notes: Notes, record: SpoolRecord, chance: float) -> None:
    if chance > 0.95 and record.token.count(".") < 2:
        tokens = [f"{record.token}.{number}" for number in range(2)]
        notes.write("replacing", record.token, *tokens)
        ids = spool.replace(record.id, [NewRecord(payload(token), token) for token in tokens])
        notes.write("replaced", record.token, *tokens, *ids)
    elif chance > 0.85:
        notes.write("nacked", record.token)
        spool.nack(record.id)
    else:
        notes.write("acking", record.token)
        spool.ack(record.id)
        notes.write("acked", record.token)


def main() -> None:
    folder, notes_path, seed, first, drain = sys.argv[1:]
    random = Random(int(seed))
    notes = Notes(Path(notes_path))
    spool = Spool.open(options(Path(folder)))
    stats = spool.stats()
    marks = spool.read_marks()
    notes.write(
        "opened", stats.corrupt, stats.torn, int(stats.conserved), *(marks.get(str(p), -1) for p in range(PRODUCERS))
    )
    if drain == "drain":
        consume(spool, notes, random, drain=True)
        spool.close()
        notes.write("drained", spool.stats().size)
        return
    for producer in range(PRODUCERS):
        own = Random(random.random())
        threading.Thread(target=produce, args=(spool, notes, producer, int(first), own), daemon=True).start()
    print("ready", flush=True)
    consume(spool, notes, random, drain=False)


if __name__ == "__main__":
    main()
