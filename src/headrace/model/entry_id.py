"""Ids of stream entries: exact positions, and the number by which the warehouse sorts gauges.

An id is a pair: milliseconds, and a sequence number within the millisecond. Positions (entries read, stored or
archived) are compared as pairs, because a sequence number has no useful bound: while a clock that was set back catches
up with the stream, every new entry gets the same millisecond and the next sequence number.
"""

from __future__ import annotations

from typing import NamedTuple

SEQUENCE_BITS = 20
EXACT_SEQUENCES = 2**19
"""Sequence numbers below this are packed unchanged."""
OCTAVE_BITS = 14
"""Higher sequence numbers keep this many bits after the leading one bit, so that 21 doublings fit into the other
half."""
MAX_SEQUENCE = 2**40 - 1
FIRST_PLAUSIBLE_MS = 10**12
"""A time in 2001. A smaller number is not a time, but an id chosen by the producer."""
_FIRST_DOUBLING = EXACT_SEQUENCES.bit_length() - 1


class EntryId(NamedTuple):
    ms: int
    seq: int

    @classmethod
    def parse(cls, text: str) -> EntryId:
        ms, seq = text.split("-")
        return cls(int(ms), int(seq))

    @classmethod
    def from_linear(cls, number: int) -> EntryId:
        """Return the id whose `linear` is `number`. Wrong for ids with a sequence number of 2^20 or more."""
        return cls(number >> SEQUENCE_BITS, number & (2**SEQUENCE_BITS - 1))

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @property
    def linear(self) -> int:
        """Return milliseconds * 2^20 + sequence, the number of an id in marks and archive file names. With 2^20 or more
        entries in a millisecond it equals the number of an id of a later millisecond."""
        return (self.ms << SEQUENCE_BITS) + self.seq

    @property
    def packed(self) -> int:
        """Return a number of at most 62 bits that never decreases along a stream and never reaches the next
        millisecond. Equal to `linear` for up to 2^19 entries in a millisecond; beyond that, neighbours share
        numbers."""
        return (self.ms << SEQUENCE_BITS) + pack_sequence(self.seq)


START = EntryId(0, 0)
"""The position before the first entry of a stream."""


def pack_sequence(seq: int) -> int:
    """Return a number below 2^20 that never decreases as `seq` grows up to MAX_SEQUENCE."""
    if seq < EXACT_SEQUENCES:
        return seq
    doubling = seq.bit_length() - 1
    rest = (seq >> (doubling - OCTAVE_BITS)) & (2**OCTAVE_BITS - 1)
    return EXACT_SEQUENCES + ((doubling - _FIRST_DOUBLING) << OCTAVE_BITS) + rest


def parse_time_ms(entry_id: str) -> int | None:
    """Return when an entry was added, in ms; None if the id is empty or is not a time."""
    milliseconds = int(entry_id.partition("-")[0] or 0)
    return milliseconds if milliseconds >= FIRST_PLAUSIBLE_MS else None
