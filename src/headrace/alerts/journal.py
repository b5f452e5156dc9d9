"""What an evaluator writes: states, incidents, transitions and the messages about them, in one transaction.

A message is written with the transition that it tells of. So a crash before the commit leaves nothing, and the next
round decides again; a crash after it leaves the message, which is sent until somebody took it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString
from uuid import NAMESPACE_OID, uuid5

from headrace.alerts.health import PREFIX
from headrace.alerts.machine import FRESH, Phase, State, Transition
from headrace.alerts.queries import QUERIES
from headrace.alerts.rules import Rule, rule_document, rule_of
from headrace.postgres.connect import Connection, dict_row

States = dict[str, dict[str, State]]
"""Rule → queue → state."""

MOST_IN_A_MESSAGE = 50


@dataclass
class Decided:
    """What one transaction is to write. Rules are taken as they were when they were judged."""

    states: list[tuple[Rule, str, State]] = field(default_factory=list[tuple[Rule, str, State]])
    transitions: list[tuple[Rule, Transition]] = field(default_factory=list[tuple[Rule, Transition]])

    def add(self, rule: Rule, changed: Mapping[str, State], made: Iterable[Transition]) -> None:
        self.states += [(rule, queue, state) for queue, state in changed.items()]
        self.transitions += [(rule, transition) for transition in made]

    @property
    def is_empty(self) -> bool:
        return not self.states and not self.transitions


def lock_states(conn: Connection, rules: Sequence[str]) -> States:
    return _states(conn, QUERIES["lock_states"], {"rules": list(rules)})


def lock_orphans(conn: Connection, limit: int) -> States:
    """Of rules that are gone or switched off."""
    return _states(conn, QUERIES["lock_orphaned_states"], {"limit": limit})


def rule_of_incident(conn: Connection, incident: str | None, rule_id: str) -> Rule:
    """The rule as it was when the incident began, with the channels that were told."""
    found = conn.execute(QUERIES["find_incident_rule"], {"id": incident}).fetchone()
    if found is None:
        return Rule(rule_id, "", "", "", "", "")
    return replace(rule_of(found[0]), channels=tuple(found[1]))


def write(conn: Connection, decided: Decided) -> None:
    cursor = conn.cursor()
    forgotten = [_key(rule, queue) for rule, queue, state in decided.states if state == FRESH]
    kept = [_state_row(rule, queue, state) for rule, queue, state in decided.states if state != FRESH]
    if forgotten:
        cursor.executemany(QUERIES["delete_state"], forgotten)
    if kept:
        cursor.executemany(QUERIES["put_state"], kept)
    if not decided.transitions:
        return
    live = _live_channels(conn)
    told = _choose_channels(conn, decided.transitions, live)
    for rule, transition in decided.transitions:
        if transition.kind == Phase.FIRING:
            cursor.execute(QUERIES["open_incident"], _incident_row(rule, transition, told[transition.id]))
        elif transition.kind == Phase.RESOLVED:
            over = {"id": transition.incident, "at_ms": transition.at_ms, "reason": transition.reason}
            cursor.execute(QUERIES["close_incident"], over)
    cursor.executemany(QUERIES["add_transition"], [_transition_row(*each) for each in decided.transitions])
    messages = _messages(decided.transitions, told, live)
    if messages:
        cursor.executemany(QUERIES["add_message"], messages)


def _live_channels(conn: Connection) -> dict[str, bool]:
    """Id → wants to hear of Headrace's own health."""
    return {str(row[0]): bool(row[1]) for row in conn.execute(QUERIES["list_enabled_channels"]).fetchall()}


def _choose_channels(
    conn: Connection, transitions: Sequence[tuple[Rule, Transition]], live: Mapping[str, bool]
) -> dict[str, list[str]]:
    """Return the channels of each transition, by its id. A channel that was sent the beginning of an incident is sent
    its end; of Headrace's own health only if the operator still allows that."""
    over = [made.incident for _, made in transitions if made.kind == Phase.RESOLVED]
    found = conn.execute(QUERIES["list_incident_channels"], {"ids": over}).fetchall()
    before = {str(row[0]): [str(channel) for channel in row[1]] for row in found}
    told: dict[str, list[str]] = {}
    for rule, made in transitions:
        is_health = rule.id.startswith(PREFIX)
        if made.kind == Phase.RESOLVED:
            told[made.id] = [each for each in before.get(made.incident or "", []) if not is_health or live.get(each)]
        elif is_health:
            told[made.id] = [channel for channel, health in live.items() if health]
        else:
            told[made.id] = list(rule.channels)
    return told


def _messages(
    transitions: Sequence[tuple[Rule, Transition]], told: Mapping[str, Sequence[str]], live: Mapping[str, bool]
) -> list[dict[str, Any]]:
    """One per rule, kind and channel, however many queues it is about; a very long one is cut into several."""
    groups: dict[tuple[str, str, str], list[tuple[Rule, Transition]]] = {}
    for rule, made in transitions:
        if made.told:
            for channel in dict.fromkeys(told[made.id]):
                if channel in live:
                    groups.setdefault((rule.id, made.kind, channel), []).append((rule, made))
    return [
        _message(channel, kind, every[start : start + MOST_IN_A_MESSAGE])
        for (_, kind, channel), every in groups.items()
        for start in range(0, len(every), MOST_IN_A_MESSAGE)
    ]


def _message(channel: str, kind: str, every: Sequence[tuple[Rule, Transition]]) -> dict[str, Any]:
    rule = every[0][0]
    ids = [made.id for _, made in every]
    message_id = str(uuid5(NAMESPACE_OID, "\x1f".join([channel, *ids])))
    message = {
        "id": message_id,
        "kind": kind,
        "rule": rule_document(rule),
        "transitions": [
            {
                "id": made.id,
                "incident": made.incident,
                "queue": made.queue,
                "value": made.value,
                "at_ms": made.at_ms,
                "since_ms": made.since_ms,
                "reason": made.reason,
            }
            for _, made in every
        ],
    }
    return {"id": message_id, "channel_id": channel, "message": json.dumps(message)}


def _states(conn: Connection, query: LiteralString, asked: Mapping[str, Any]) -> States:
    found: States = {}
    for row in conn.cursor(row_factory=dict_row).execute(query, asked):
        rule_id, queue = row.pop("rule_id"), row.pop("queue")
        row["phase"], row["fired_ms"] = Phase(row["phase"]), tuple(row["fired_ms"])
        found.setdefault(rule_id, {})[queue] = State(**row)
    return found


def _key(rule: Rule, queue: str) -> dict[str, Any]:
    return {"rule_id": rule.id, "queue": queue}


def _state_row(rule: Rule, queue: str, state: State) -> dict[str, Any]:
    return {**_key(rule, queue), **vars(state), "fired_ms": list(state.fired_ms)}


def _incident_row(rule: Rule, made: Transition, channels: Sequence[str]) -> dict[str, Any]:
    where = {"org": rule.org, "project": rule.project, "env": rule.env, "queue": made.queue}
    what = {"rule_id": rule.id, "rule": json.dumps(rule_document(rule)), "severity": rule.severity}
    return {
        **where,
        **what,
        "id": made.incident,
        "channels": list(channels),
        "value": made.value,
        "at_ms": made.at_ms,
    }


def _transition_row(rule: Rule, made: Transition) -> dict[str, Any]:
    return {**_key(rule, made.queue), **vars(made)}
