"""The metric stream, folded in plain Python: what anyone who reads every event can know.

Used by the model test and by the chaos run; both compare the result with the queue's own numbers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from headrace.model.event import COLUMNS, COUNT_COLUMN, FIELD, RESYNC, SEPARATOR, TICK
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.state import QueueState
from headrace.valkey.connect import Valkey

PAGE = 10_000
NAMES = tuple(column.name for column in COLUMNS)
NUMBERS = frozenset(column.name for column in COLUMNS if column.kind == "int")


@dataclass(frozen=True)
class Event:
    ref: QueueRef
    op: str
    numbers: dict[str, int | None]
    waits: list[int]
    runs: list[int]
    odometers: list[int]

    def __getitem__(self, name: str) -> int | None:
        return self.numbers[name]


def read_events(client: Valkey, shard: int) -> Iterator[Event]:
    """Every event of a shard, oldest first."""
    after = "-"
    while page := cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(keys.metrics(shard), after, count=PAGE)):
        for _, fields in page:
            yield parse(fields[FIELD.encode()].decode())
        after = f"({page[-1][0].decode()}"


def parse(packed: str) -> Event:
    values = dict(zip(NAMES, packed.split(SEPARATOR), strict=True))
    return Event(
        ref=QueueRef(values["org"], values["project"], values["env"], values["queue"]),
        op=values["op"],
        numbers={name: int(values[name]) if values[name] else None for name in NUMBERS},
        waits=_ints(values["waits"]),
        runs=_ints(values["runs"]),
        odometers=_ints(values["odometers"]),
    )


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


@dataclass
class Fold:
    """The sums and last values of one shard's events."""

    bursts: dict[EnvRef, float] = field(default_factory=dict[EnvRef, float])  # 1 for those not named
    events: int = 0
    gaps: int = 0
    over_limit: int = 0  # events with more running jobs than the limit they carry
    odometer_breaks: int = 0  # events whose odometers are not the sums of n so far
    samples_missing: int = 0  # dequeues without a wait for each job, acks without a run time
    counts: dict[QueueRef, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    last: dict[QueueRef, Event] = field(default_factory=dict[QueueRef, Event])
    last_of_env: dict[EnvRef, Event] = field(default_factory=dict[EnvRef, Event])

    def add(self, events: Iterable[Event]) -> Fold:
        for event in events:
            self._add(event)
        return self

    def _add(self, event: Event) -> None:
        self.events += 1
        self.gaps += event["seq"] != self.events
        if event.op == TICK:
            return
        counts = self.counts[event.ref]
        if event.op == RESYNC:
            totals = [counts[op] for op in COUNT_COLUMN]  # earlier releases do not have the last verbs
            self.odometer_breaks += not event.odometers or event.odometers != totals[: len(event.odometers)]
        else:
            counts[event.op] += event["n"] or 0
            self.odometer_breaks += event["odometer"] != counts[event.op] or event.odometers != []
        self.samples_missing += event.op == "dequeue" and len(event.waits) != event["n"]
        self.samples_missing += event.op == "ack" and len(event.runs) != event["n"]
        self.over_limit += self._too_many(event)
        self.last[event.ref] = event
        self.last_of_env[event.ref.environment] = event

    def _too_many(self, event: Event) -> bool:
        most = event["env_limit"]
        if most is not None:
            most = math.floor(most * self.bursts.get(event.ref.environment, 1.0))
        return (
            _above(event["running"], event["limit"])
            or _above(event["running"], event["env_limit"])
            or _above(event["env_running"], most)
        )


def _above(running: int | None, limit: int | None) -> bool:
    return limit is not None and running is not None and running > limit


def differences(fold: Fold, states: Iterable[QueueState], envs: dict[EnvRef, dict[str, int | None]]) -> list[str]:
    """Where the folded stream of a shard and the queue's own numbers disagree; empty if it is true."""
    found: list[str] = []

    def compare(what: str, folded: Any, own: Any) -> None:
        if folded != own:
            found.append(f"{what}: folded {folded!r}, own {own!r}")

    compare("gaps", fold.gaps, 0)
    compare("odometers", fold.odometer_breaks, 0)
    compare("samples", fold.samples_missing, 0)
    for state in states:
        compare(f"{state.ref} counts", dict(fold.counts[state.ref]), dict(state.odometers))
        if last := fold.last.get(state.ref):
            for name in ("depth", "scheduled", "running", "limit", "bytes", "oldest_ms"):
                compare(f"{state.ref} {name}", last[name], getattr(state, name))
            compare(f"{state.ref} cold", last["cold_depth"], state.cold)
            compare(f"{state.ref} cold bytes", last["cold_bytes"], state.cold_bytes)
            compare(f"{state.ref} epoch", last["epoch"], state.epoch_ms)
    for env, own in envs.items():
        if last := fold.last_of_env.get(env):
            compare(f"{env}", {name: last[f"env_{name}"] for name in own}, own)
    return found


def read_envs(client: Valkey, shard: int, envs: Iterable[EnvRef]) -> dict[EnvRef, dict[str, int | None]]:
    names = ("depth", "running", "limit")
    found: dict[EnvRef, dict[str, int | None]] = {}
    for env in envs:
        values = cast("list[bytes | None]", client.hmget(keys.env(shard, env), names))
        found[env] = {name: None if value is None else int(value) for name, value in zip(names, values, strict=True)}
    return found
