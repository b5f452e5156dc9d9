"""Slots that the limits of environments leave to the queues of a worker type, and what it costs to compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from headrace.autoscale.observer import LiveQueues, compute_env_slots
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.state import EnvLimits, QueueState

T = TypeVar("T")


class CountedList(list[T]):
    """A list that counts the elements read from it."""

    reads = 0

    def __iter__(self) -> Iterator[T]:
        for each in super().__iter__():
            self.reads += 1
            yield each


class CountedSet(set[T]):
    """A set that counts the elements read by iteration."""

    reads = 0

    def __iter__(self) -> Iterator[T]:
        for each in super().__iter__():
            self.reads += 1
            yield each


def make_state(ref: QueueRef, running: int = 0) -> QueueState:
    return QueueState(
        ref,
        depth=0,
        warm=0,
        cold=0,
        scheduled=0,
        running=running,
        limit=None,
        paused=False,
        closed=False,
        epoch_ms=0,
        oldest_ms=None,
        bytes=0,
        cold_bytes=0,
        cold_mode=False,
        dead=0,
        odometers={},
    )


def make_live(states: Sequence[QueueState], limits: dict[EnvRef, EnvLimits]) -> LiveQueues:
    return LiveQueues(states, limits, {}, {}, {})


def make_refs(environments: int, queues: int) -> list[QueueRef]:
    return [
        QueueRef("acme", "shop", f"env-{env}", f"queue-{queue}")
        for env in range(environments)
        for queue in range(queues)
    ]


def test_an_environment_leaves_what_its_other_queues_do_not_use() -> None:
    mail, other, unlimited, foreign = (
        QueueRef("acme", "shop", env, queue)
        for env, queue in (("prod", "mail"), ("prod", "other"), ("free", "mail"), ("foreign", "other"))
    )
    states = [make_state(mail, 7), make_state(other, 5), make_state(unlimited, 3), make_state(foreign, 1)]
    limits = {
        mail.environment: EnvLimits(20, 1.5),
        unlimited.environment: EnvLimits(None, None),
        foreign.environment: EnvLimits(10, None),
    }
    assert compute_env_slots(make_live(states, limits), {mail, unlimited}) == {"acme / shop / prod": 25}


def test_an_environment_beyond_its_limit_leaves_nothing() -> None:
    mail, other = (QueueRef("acme", "shop", "prod", queue) for queue in ("mail", "other"))
    states = [make_state(mail), make_state(other, 30)]
    live = make_live(states, {mail.environment: EnvLimits(20, None)})
    assert compute_env_slots(live, {mail}) == {"acme / shop / prod": 0}


def test_each_queue_is_read_once_however_many_environments_have_limits() -> None:
    refs = make_refs(environments=200, queues=5)
    states = CountedList(make_state(ref, 1) for ref in refs)
    ours = CountedSet(ref for ref in refs if ref.queue != "queue-0")
    limits = {ref.environment: EnvLimits(10, None) for ref in refs}
    slots = compute_env_slots(make_live(states, limits), ours)
    assert set(slots.values()) == {9}
    assert len(slots) == 200
    assert (states.reads, ours.reads) == (len(states), len(ours))
