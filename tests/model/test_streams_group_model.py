"""Every verb of a stream's workers, against a model: no entry is lost, none is in two hands, none is trimmed too early.

Two workers of one group, and another group that lags behind.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.errors import StreamFull
from headrace.model.job import NewJob
from headrace.streams.dead_letters import count_dead, redrive
from headrace.streams.depth import read_depth
from headrace.streams.scripts import FIRST_ID, EntryDeferral, GroupStubs, LeasedEntry
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, run
from tests.streams import GROUP, KEYS, STREAM, entry_ids, publish, stats

SETTINGS = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[phase for phase in Phase if phase is not Phase.explain],  # takes minutes and says little here
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
OTHER = "behind"
FAR_MS = 3_600_000
HARD = 12

worker = st.sampled_from(("headrace:a", "headrace:b"))
which = st.integers(0, 100)


class GroupMachine(RuleBasedStateMachine):
    """Model of a group. Jobs are identified by their payload. A job is always waiting, leased, done or dead."""

    client: Valkey

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.published = 0
        self.added = self.read_by_other = 0  # entries: a redriven job is a new one
        self.waiting: set[str] = set()  # new, returned, or failed and due
        self.later: set[str] = set()  # failed and not due for an hour
        self.hands: dict[str, tuple[str, LeasedEntry]] = {}  # job → worker, delivery
        self.old: list[tuple[str, LeasedEntry]] = []  # deliveries that were lost
        self.done: set[str] = set()
        self.dead: set[str] = set()

    @initialize()
    def begin(self) -> None:
        for name in (GROUP, OTHER):
            self.client.xgroup_create(STREAM, name, id="0", mkstream=True)
        self.publish(4)

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        names = [str(self.published + number) for number in range(count)]
        length = len(entry_ids(self.client))
        try:
            publish(self.client, *(NewJob("note", name.encode()) for name in names), maxlen=3, hard_maxlen=HARD)
        except StreamFull:
            assert length + count > HARD
            assert len(entry_ids(self.client)) <= length
            return
        self.published += count
        self.added += count
        self.waiting |= set(names)

    @rule(by=worker, n=st.integers(1, 4))
    def take(self, by: str, n: int) -> None:
        taken = run(self.client, GroupStubs(KEYS, by).dequeue(n))
        assert taken.deleted == 0
        assert len(taken.entries) == min(n, len(self.waiting))
        for held in taken.entries:
            name = json.loads(held.fields[b"json"])["payload"]
            assert name in self.waiting
            self.waiting.discard(name)
            self.hands[name] = (by, held)

    @rule(pick=which, how=st.sampled_from(("ack", "nack", "nack later", "bury", "give back", "defer", "defer later")))
    def end(self, pick: int, how: str) -> None:
        if not self.hands:
            return self.take("headrace:a", 2)
        name = sorted(self.hands)[pick % len(self.hands)]
        by, held = self.hands.pop(name)
        stubs = GroupStubs(KEYS, by)
        calls: dict[str, tuple[ScriptCall[Any], set[str]]] = {
            "ack": (stubs.ack([(held, 1)]), self.done),
            "nack": (stubs.nack([(held, 0)]), self.waiting),
            "nack later": (stubs.nack([(held, FAR_MS)]), self.later),
            "bury": (stubs.bury([(held, "why")]), self.dead),
            "give back": (stubs.requeue([held]), self.waiting),
            "defer": (stubs.defer([EntryDeferral(held, 0, 0)]), self.waiting),
            "defer later": (stubs.defer([EntryDeferral(held, FAR_MS, FAR_MS)]), self.later),
        }
        call, to = calls[how]
        assert run(self.client, call) == [True]
        to.add(name)
        self.old.append((by, held))

    @rule()
    def extend_all(self) -> None:
        for by in ("headrace:a", "headrace:b"):
            mine = [held for owner, held in self.hands.values() if owner == by]
            assert all(run(self.client, GroupStubs(KEYS, by).extend(mine))) if mine else True

    @rule(by=worker)
    def die_and_be_reclaimed(self, by: str) -> None:
        """Reclaim all leased entries, which were idle for long enough; entries that wait for a retry are left."""
        cursor, returned = FIRST_ID, 0
        while True:
            result = run(self.client, GroupStubs(KEYS, by).reclaim(0, cursor, 2))
            cursor, returned = result.cursor, returned + result.returned
            if cursor == FIRST_ID:
                break
        assert returned == len(self.hands)
        self.old += self.hands.values()
        self.waiting |= self.hands.keys()
        self.hands = {}

    @rule()
    def come_too_late(self) -> None:
        """Every delivery that is over, but for those that were given back and are held again under the same number."""
        held_now = {(by, held.id, held.delivery) for by, held in self.hands.values()}
        for by, held in self.old[-10:]:
            if (by, held.id, held.delivery) not in held_now:
                stubs = GroupStubs(KEYS, by)
                assert run(self.client, stubs.ack([(held, 1)])) == [False]
                assert run(self.client, stubs.extend([held])) == [False]

    @rule()
    def an_hour_passes(self) -> None:
        retries = KEYS.list_all()[1]
        entries: Any = self.client.zrange(retries, 0, -1)
        for entry in entries:
            self.client.zadd(retries, {entry: 0})
        self.waiting |= self.later
        self.later = set()

    @rule()
    def redrive(self) -> None:
        assert redrive(self.client, KEYS, every_group=True) == len(self.dead)
        self.added += len(self.dead)
        self.waiting |= self.dead
        self.dead = set()

    @rule(count=st.integers(1, 10))
    def other_group_reads(self, count: int) -> None:
        answer: Any = self.client.xreadgroup(OTHER, "x", {STREAM: ">"}, count=count, noack=True)
        self.read_by_other += sum(len(entries) for _, entries in answer)

    @rule(by=worker)
    def tidy(self, by: str) -> None:
        run(self.client, GroupStubs(KEYS, by).remove_consumers(0))

    @invariant()
    def every_job_is_somewhere(self) -> None:
        if not self.client.exists(STREAM):
            return  # not begun
        depth = read_depth(self.client, STREAM, GROUP)
        assert depth.load == len(self.waiting) + len(self.later) + len(self.hands)
        assert count_dead(self.client, KEYS) == len(self.dead)
        assert len(self.done) + len(self.dead) + (depth.load or 0) == self.published
        assert stats(self.client).get("ack", 0) == len(self.done)

    @invariant()
    def nothing_that_is_needed_was_trimmed(self) -> None:
        there = set(entry_ids(self.client))
        pending: Any = self.client.xpending_range(STREAM, GROUP, "-", "+", 1000) if there else []
        assert {entry["message_id"].decode() for entry in pending} <= there
        if there:
            unread = read_depth(self.client, STREAM, OTHER).undelivered
            assert unread == self.added - self.read_by_other

    def teardown(self) -> None:
        self.client.flushall()


def test_no_entry_is_lost_and_none_is_in_two_hands(valkey: Valkey) -> None:
    class Machine(GroupMachine):
        client = valkey

    run_state_machine_as_test(Machine, settings=SETTINGS)
