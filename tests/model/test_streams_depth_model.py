"""Depth against a model: whatever happened to a stream and its groups, depth is what a full look at them counts.

The server is a real one. Its own `lag` is wrong in some of these states (see decision 0011), and missing in many.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.streams.depth import read_depth
from headrace.valkey.connect import Valkey

STREAM = "model"
GROUPS = ("one", "two")
CONSUMERS = ("a", "b")

SETTINGS = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

group = st.sampled_from(GROUPS)
consumer = st.sampled_from(CONSUMERS)
number = st.integers(0, 40)


class Pending:
    def __init__(self, owner: str) -> None:
        self.owner = owner


class StreamMachine(RuleBasedStateMachine):
    """Entries are numbered; entry n has the id n-0. The model knows which exist, and what each group was given."""

    client: Valkey

    def __init__(self) -> None:
        super().__init__()
        self.client.delete(STREAM)
        self.entries: list[int] = []
        self.last = 0
        self.position: dict[str, int] = {}
        self.pending: dict[str, dict[int, Pending]] = {}

    @initialize()
    def begin(self) -> None:
        for name in GROUPS:
            self.client.xgroup_create(STREAM, name, id="0", mkstream=True)
            self.position[name], self.pending[name] = 0, {}

    @rule(gap=st.integers(1, 2))
    def add(self, gap: int) -> None:
        self.last += gap
        self.client.xadd(STREAM, {"json": "{}"}, id=f"{self.last}-0")
        self.entries.append(self.last)

    @rule(name=group, by=consumer, count=st.integers(1, 4), noack=st.booleans())
    def read(self, name: str, by: str, count: int, noack: bool) -> None:
        answer: Any = self.client.xreadgroup(name, by, {STREAM: ">"}, count=count, noack=noack)
        given = [int(entry_id.split(b"-")[0]) for _, entries in answer for entry_id, _ in entries]
        expected = [entry for entry in self.entries if entry > self.position[name]][:count]
        assert given == expected
        if given:
            self.position[name] = given[-1]
        if not noack:
            self.pending[name] |= {entry: Pending(by) for entry in given}

    @rule(name=group, entry=number)
    def ack(self, name: str, entry: int) -> None:
        self.client.xack(STREAM, name, f"{entry}-0")
        self.pending[name].pop(entry, None)

    @rule(name=group, by=consumer, entry=number)
    def claim(self, name: str, by: str, entry: int) -> None:
        self.client.xclaim(STREAM, name, by, 0, [f"{entry}-0"])
        if entry in self.pending[name]:
            if entry in self.entries:
                self.pending[name][entry].owner = by
            else:
                del self.pending[name][entry]  # the server forgets a pending entry that no longer exists

    @rule(name=group, by=consumer)
    def delete_consumer(self, name: str, by: str) -> None:
        self.client.xgroup_delconsumer(STREAM, name, by)
        self.pending[name] = {entry: held for entry, held in self.pending[name].items() if held.owner != by}

    @rule(entry=number)
    def delete(self, entry: int) -> None:
        self.client.xdel(STREAM, f"{entry}-0")
        self.entries = [each for each in self.entries if each != entry]

    @rule(length=st.integers(0, 6))
    def trim_to_length(self, length: int) -> None:
        self.client.xtrim(STREAM, maxlen=length, approximate=False)
        self.entries = self.entries[len(self.entries) - length :] if length < len(self.entries) else self.entries

    @rule(entry=number)
    def trim_before(self, entry: int) -> None:
        self.client.xtrim(STREAM, minid=f"{entry}-0", approximate=False)
        self.entries = [each for each in self.entries if each >= entry]

    @rule(name=group, back=st.integers(0, 12))
    def set_group(self, name: str, back: int) -> None:
        self.position[name] = max(0, self.last - back)
        self.client.xgroup_setid(STREAM, name, f"{self.position[name]}-0")

    @rule(name=group, back=st.integers(0, 12))
    def make_group_anew(self, name: str, back: int) -> None:
        self.client.xgroup_destroy(STREAM, name)
        self.position[name], self.pending[name] = max(0, self.last - back), {}
        self.client.xgroup_create(STREAM, name, id=f"{self.position[name]}-0")

    @rule(ahead=st.integers(0, 3))
    def set_last_id(self, ahead: int) -> None:
        self.last += ahead
        self.client.execute_command("XSETID", STREAM, f"{self.last}-0")

    @invariant()
    def depth_is_what_is_there(self) -> None:
        for name in self.position:
            undelivered = [entry for entry in self.entries if entry > self.position[name]]
            depth = read_depth(self.client, STREAM, name)
            assert (depth.undelivered, depth.pending) == (len(undelivered), len(self.pending[name])), name
            assert depth.load == len(undelivered) + len(self.pending[name])
            assert (depth.longest_idle_ms is None) == (not self.pending[name])

    @invariant()
    def with_little_to_count_it_is_right_or_unknown(self) -> None:
        for name in self.position:
            undelivered = len([entry for entry in self.entries if entry > self.position[name]])
            depth = read_depth(self.client, STREAM, name, count_bound=1)
            assert depth.undelivered in (undelivered, None)
            assert (depth.undelivered is None) == bool(depth.reason) == (depth.load is None)

    def teardown(self) -> None:
        self.client.delete(STREAM)


def test_depth_is_undelivered_plus_pending(valkey: Valkey) -> None:
    class Machine(StreamMachine):
        client = valkey

    run_state_machine_as_test(Machine, settings=SETTINGS)
