"""Rows that a mover placed in Valkey are deleted in PostgreSQL only when their copy is safe."""

from __future__ import annotations

from headrace.cold.placed import PlacedRows
from headrace.queue.scripts import PlacedRow

FIRST, SECOND = PlacedRow(1, "a"), PlacedRow(2, "b")


def test_a_row_that_was_lost_and_placed_again_is_as_safe_as_its_new_copy() -> None:
    placed = PlacedRows()
    placed.add([FIRST, SECOND], placed_at=0.0)
    placed.keep_only({SECOND.seq})
    placed.add([FIRST], placed_at=10.0)
    assert placed.take_safe(before=5.0, limit=100) == [SECOND]
    placed.remove([SECOND])
    assert placed.take_safe(before=11.0, limit=100) == [FIRST]


def test_a_row_that_could_not_be_deleted_and_was_lost_is_as_safe_as_its_new_copy() -> None:
    placed = PlacedRows()
    placed.add([FIRST], placed_at=0.0)
    placed.put_back(placed.take_safe(before=1.0, limit=100))
    placed.keep_only(set())
    placed.add([FIRST], placed_at=10.0)
    assert placed.take_safe(before=5.0, limit=100) == []
    assert placed.take_safe(before=11.0, limit=100) == [FIRST]


def test_rows_that_valkey_still_has_keep_their_time() -> None:
    placed = PlacedRows()
    placed.add([FIRST, SECOND], placed_at=0.0)
    placed.keep_only({FIRST.seq, SECOND.seq})
    placed.add([FIRST, SECOND], placed_at=10.0)
    assert placed.take_safe(before=5.0, limit=100) == [FIRST, SECOND]
