"""Entry ids of whole columns, as `model.entry_id` defines them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.entry_id import EXACT_SEQUENCES, OCTAVE_BITS, SEQUENCE_BITS, EntryId

Ints = npt.NDArray[np.int64]


def read_ids(events: pa.Table | pa.RecordBatch) -> tuple[Ints, Ints]:
    """Return the milliseconds and the sequence numbers of decoded events."""
    return events["at_ms"].to_numpy(), events["at_seq"].to_numpy()


def pack(ms: Ints, seq: Ints) -> Ints:
    """Return `EntryId.packed` of every entry."""
    high = seq >= EXACT_SEQUENCES
    if not high.any():
        return ms * 2**SEQUENCE_BITS + seq
    doubling = np.frexp(np.where(high, seq, EXACT_SEQUENCES).astype(np.float64))[1].astype(np.int64) - 1
    rest = (seq >> (doubling - OCTAVE_BITS)) & (2**OCTAVE_BITS - 1)
    first = EXACT_SEQUENCES.bit_length() - 1
    shared = EXACT_SEQUENCES + ((doubling - first) << OCTAVE_BITS) + rest
    return ms * 2**SEQUENCE_BITS + np.where(high, shared, seq)


def find_after(ms: Ints, seq: Ints, mark: EntryId) -> npt.NDArray[np.bool_]:
    """Return a mask of the entries that follow `mark` in their stream."""
    return (ms > mark.ms) | ((ms == mark.ms) & (seq > mark.seq))


def is_ascending(ms: Ints, seq: Ints) -> bool:
    """Return True if each entry follows the one before it."""
    steps = np.diff(ms)
    return bool(np.all((steps > 0) | ((steps == 0) & (np.diff(seq) > 0))))


def drop_up_to(events: pa.RecordBatch, mark: EntryId) -> pa.RecordBatch:
    """Return the events after `mark` of a batch, which must be in stream order."""
    return events.slice(int(np.count_nonzero(~find_after(*read_ids(events), mark))))
