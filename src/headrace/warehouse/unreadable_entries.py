"""Stream entries that the pipeline could not decode: `pipeline_set_aside_v1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

TABLE = "pipeline_set_aside_v1"


@dataclass(frozen=True)
class UnreadableEntry:
    shard: int
    entry_id: str
    reason: str
    sample: bytes  # first bytes of the entry


def to_arrow(found: Sequence[UnreadableEntry]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema(
        [("shard", pa.int32()), ("entry_id", pa.string()), ("reason", pa.string()), ("sample", pa.binary())]
    )
    return pa.Table.from_pylist([asdict(each) for each in found], schema=schema)
