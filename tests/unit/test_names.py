"""Names: what is legal round-trips everywhere, what is not is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidName
from headrace.model.names import EnvRef, QueueRef, find_name_problem
from headrace.queue import keys
from headrace.queue.validate import check_queue

legal_names = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=128).filter(
    lambda name: len(name.encode()) <= 128
)


@given(legal_names)
def test_every_text_without_control_characters_is_a_name(name: str) -> None:
    assert find_name_problem(name) is None
    assert keys.decode(keys.encode(name)) == name


@given(st.tuples(*[legal_names] * 4), st.tuples(*[legal_names] * 4))
def test_two_queues_never_share_a_key(one: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> None:
    same_key = keys.queue(0, QueueRef(*one)) == keys.queue(0, QueueRef(*other))
    assert same_key == (one == other)


@pytest.mark.parametrize("bad", ["", "a\tb", "a\nb", "\x7f", "a\u2028b", "ü" * 65, "\ud800"])
def test_other_names_are_refused(bad: str) -> None:
    with pytest.raises(InvalidName, match="Nothing was written"):
        check_queue(QueueRef("org", "project", "env", bad))


@pytest.mark.parametrize(("env", "shard"), [("prod", 664), ("staging", 352), ("ü", 949)])
def test_an_environment_stays_in_its_shard(env: str, shard: int) -> None:
    """These numbers are where data lives: they may never change."""
    assert EnvRef("acme", "shop", env).shard(1024) == shard
