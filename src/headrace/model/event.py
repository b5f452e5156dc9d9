"""The layout of a metric event: one definition for Lua, the pipeline and the tests.

An event is one stream entry with the single field `e`: the columns below, separated by tabs. Names
hold no control characters, so nothing needs escaping, and Arrow's CSV reader parses millions of
them in bulk. The Lua that packs an event is generated from this table (see `lua_pack`).

Gauges are the values *after* the operation. Times are the server's, in milliseconds. An empty
field is null: unknown, or not there (no limit, nothing waiting).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

VERSION = 1
FIELD = "e"
SEPARATOR = "\t"
LIST_SEPARATOR = ","


class Op(StrEnum):
    """The verbs of the state machine that are counted."""

    ENQUEUE = "enqueue"
    SPILL = "spill"
    REFILL = "refill"
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    BURY = "bury"
    EXPIRE = "expire"
    CANCEL = "cancel"
    RECLAIM = "reclaim"
    RELEASE = "release"
    REDRIVE = "redrive"


RESYNC = "resync"
"""An event that counts nothing: a queue's numbers, all its odometers among them, after its settings changed or after
events of its shard were lost."""

TICK = "tick"
"""An event that counts nothing and has no queue: the shard is alive."""


COUNT_COLUMN = {
    Op.ENQUEUE: "enqueue_count",
    Op.SPILL: "spill_count",
    Op.REFILL: "refill_count",
    Op.DEQUEUE: "dequeue_count",
    Op.ACK: "ack_count",
    Op.NACK: "nack_count",
    Op.BURY: "dlq_count",
    Op.EXPIRE: "ttl_expire_count",
    Op.CANCEL: "cancel_count",
    Op.RECLAIM: "reclaim_count",
    Op.RELEASE: "release_count",
    Op.REDRIVE: "redrive_count",
}
"""The warehouse column that each verb adds to. Its order is that of the odometers of a resync."""


@dataclass(frozen=True)
class Column:
    name: str
    kind: str  # "int", "text" or "ints" (a comma-separated list)
    meaning: str


COLUMNS = (
    Column("version", "int", "layout of this entry; an unknown one is set aside, never guessed at"),
    Column("seq", "int", "the shard's event number, without gaps: what is missing was lost"),
    Column("org", "text", "empty in a tick, as are all names"),
    Column("project", "text", ""),
    Column("env", "text", ""),
    Column("queue", "text", ""),
    Column("op", "text", "a verb, `resync` or `tick`"),
    Column("n", "int", "how many jobs this operation moved"),
    Column("odometer", "int", "total of this op for this queue since its epoch, this event included"),
    Column("epoch", "int", "when the queue's state was created: a new one means the odometers restarted"),
    Column("depth", "int", "jobs that wait and could run now, in both tiers"),
    Column("scheduled", "int", "jobs not yet due, in both tiers"),
    Column("running", "int", "jobs that a worker holds"),
    Column("limit", "int", "most that may run at once; null: no limit"),
    Column("env_depth", "int", ""),
    Column("env_running", "int", ""),
    Column("env_limit", "int", ""),
    Column("oldest_ms", "int", "when the longest-waiting job became eligible; null: nothing waits"),
    Column("bytes", "int", "payload bytes of jobs that wait or run, in both tiers"),
    Column("cold_depth", "int", "of `depth`: those that wait in PostgreSQL"),
    Column("cold_bytes", "int", "of `bytes`: those in PostgreSQL"),
    Column("waits", "ints", "eligible → dequeue of each job of a dequeue, in ms; 0 is a value"),
    Column("runs", "ints", "run time of each job of an ack, measured by the worker, in ms"),
    Column("odometers", "ints", "of a resync: the odometers of all verbs, in the order of the table of verbs"),
)


def lua_pack() -> str:
    """Lua source of `VERBS`, in the order of COUNT_COLUMN, and of `pack_event(e)`, which joins the fields of a table in
    the order of COLUMNS."""
    verbs = ", ".join(f"'{op}'" for op in COUNT_COLUMN)
    fields = ", ".join(f"e.{column.name} or ''" for column in COLUMNS if column.name != "version")
    return (
        f"local VERBS = {{{verbs}}}\n"
        "local function pack_event(e)\n"
        f"  return table.concat({{{VERSION}, {fields}}}, '{SEPARATOR.encode('unicode_escape').decode()}')\n"
        "end\n"
    )
