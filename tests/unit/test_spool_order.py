"""Order of requeued records."""

from __future__ import annotations

from headrace.spool.requeued import RequeuedRecords


def test_the_oldest_place_goes_first() -> None:
    returned = RequeuedRecords()
    for place in [(5, 5), (2, 9), (2, 8), (7, 7)]:
        returned.add(place)
    found: list[tuple[int, int]] = []
    while (place := returned.next_ready(0.0)) is not None:
        found.append(place)
        returned.remove(place[1])
    assert found == [(2, 8), (2, 9), (5, 5), (7, 7)]


def test_a_delayed_record_blocks_no_other_and_then_goes_first() -> None:
    returned = RequeuedRecords()
    returned.add((1, 1), due=10.0)
    returned.add((2, 2))
    assert returned.next_ready(9.9) == (2, 2)
    assert returned.find_next_due() == 10.0
    assert returned.count_delayed(9.9) == 1
    assert returned.next_ready(10.0) == (1, 1)
    assert returned.count_delayed(10.0) == 0


def test_the_oldest_of_all_includes_delayed_ones() -> None:
    returned = RequeuedRecords()
    returned.add((3, 3))
    returned.add((1, 1), due=10.0)
    assert returned.find_oldest() == (1, 1)
    returned.remove(1)
    assert returned.find_oldest() == (3, 3)
    assert returned.find_next_due() is None


def test_coming_back_a_thousand_times_leaves_nothing_behind() -> None:
    returned = RequeuedRecords()
    for number in range(1000):
        returned.add((1, 1), due=float(number))
        assert returned.next_ready(float(number)) == (1, 1)
        returned.remove(1)
    assert len(returned) == 0
    assert len(vars(returned)["_all"]) < 100
    assert returned.find_oldest() is None
