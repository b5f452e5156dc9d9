"""Positions in a stream, as pairs and as one number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.entry_id import MAX_SEQUENCE, EntryId, pack_sequence
from headrace.pipeline.decode import MAX_MS
from headrace.pipeline.entries import find_after, is_ascending, pack


def near_power(power: int, offset: int) -> int:
    return min(max(2**power + offset, 0), MAX_SEQUENCE)


def make_pair(one: EntryId, later_ms: int, other: EntryId) -> tuple[EntryId, EntryId]:
    return one, EntryId(one.ms + later_ms, other.seq)


near_powers = st.builds(near_power, st.integers(0, 40), st.integers(-3, 3))
ids = st.builds(EntryId, st.integers(0, MAX_MS), st.integers(0, MAX_SEQUENCE) | st.integers(0, 2**21) | near_powers)
neighbours = st.builds(make_pair, ids, st.integers(0, 3), ids)


@given(ids)
def test_text_and_linear_number_are_read_back(one: EntryId) -> None:
    assert EntryId.parse(str(one)) == one
    assert EntryId.from_linear(one.linear) == one or one.seq >= 2**20


@given(neighbours)
def test_packed_ids_never_go_back(pair: tuple[EntryId, EntryId]) -> None:
    low, high = sorted(pair)
    assert low.packed <= high.packed
    assert (low.packed < high.packed) or low.ms == high.ms
    assert high.packed >> 20 == high.ms
    assert 0 <= high.packed < 2**62


@given(neighbours)
def test_packed_ids_compare_with_those_of_older_releases(pair: tuple[EntryId, EntryId]) -> None:
    """They stored ms * 2^20 + sequence; an ordinary millisecond has far less than 2^19 entries."""
    for one in pair:
        assert one.packed == one.linear or one.seq >= 2**19


def test_numbers_are_shared_by_few_neighbours() -> None:
    """Gauges of entries that share a number cannot be distinguished: at most one in 2^14 of a millisecond's entries."""
    for power in range(19, 40):
        step = 2 ** (power - 14)
        assert pack_sequence(2**power) + 1 == pack_sequence(2**power + step)
        assert pack_sequence(2**power - 1) < pack_sequence(2**power)


@given(st.lists(ids, min_size=1), ids)
def test_columns_are_treated_as_single_ids_are(many: list[EntryId], mark: EntryId) -> None:
    for found in (many, sorted(set(many))):
        ms, seq = (np.array(column, np.int64) for column in zip(*found, strict=True))
        assert pack(ms, seq).tolist() == [one.packed for one in found]
        assert find_after(ms, seq, mark).tolist() == [one > mark for one in found]
        assert is_ascending(ms, seq) == (found == sorted(set(found)))
