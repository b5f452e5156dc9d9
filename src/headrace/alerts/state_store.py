"""Write rule states, incidents, transitions and their messages in one transaction (transactional outbox).

After a crash before the commit the next evaluation decides again; after the commit the message is retried until it is
delivered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, LiteralString

from headrace.alerts.meta_rules import PREFIX
from headrace.alerts.queries import QUERIES
from headrace.alerts.rules import Rule, rule_from_document
from headrace.alerts.state_machine import INITIAL_STATE, Phase, RuleState, Transition, derive_id
from headrace.postgres.connect import Connection, dict_row

States = dict[str, dict[str, RuleState]]
"""States by rule id and queue."""

MAX_QUEUES_PER_MESSAGE = 50


@dataclass
class AlertChanges:
    """Changes to write in one transaction, with the rules as they were when evaluated."""

    states: list[tuple[Rule, str, RuleState]] = field(default_factory=list[tuple[Rule, str, RuleState]])
    transitions: list[tuple[Rule, Transition]] = field(default_factory=list[tuple[Rule, Transition]])

    def add(self, rule: Rule, changed: Mapping[str, RuleState], transitions: Iterable[Transition]) -> None:
        self.states += [(rule, queue, state) for queue, state in changed.items()]
        self.transitions += [(rule, transition) for transition in transitions]


def lock_states(conn: Connection, rules: Sequence[str]) -> States:
    return _load_states(conn, QUERIES["lock_states"], {"rules": list(rules)})


def lock_orphans(conn: Connection, limit: int) -> States:
    """Lock and return the states of deleted or disabled rules."""
    return _load_states(conn, QUERIES["lock_orphaned_states"], {"limit": limit})


def load_incident_rule(conn: Connection, incident: str | None, rule_id: str) -> Rule:
    """Return the rule as it was when the incident started, with the channels that were notified."""
    row = conn.execute(QUERIES["find_incident_rule"], {"id": incident}).fetchone()
    if row is None:
        return Rule(rule_id, "", "", "", "", "")
    return replace(rule_from_document(row[0]), channels=tuple(row[1]))


def write_changes(conn: Connection, decided: AlertChanges) -> None:
    cursor = conn.cursor()
    deleted = [_make_state_key(rule, queue) for rule, queue, state in decided.states if state == INITIAL_STATE]
    kept = [
        {**_make_state_key(rule, queue), **vars(state), "fired_ms": list(state.fired_ms)}
        for rule, queue, state in decided.states
        if state != INITIAL_STATE
    ]
    if deleted:
        cursor.executemany(QUERIES["delete_state"], deleted)
    if kept:
        cursor.executemany(QUERIES["put_state"], kept)
    if not decided.transitions:
        return
    enabled = _load_enabled_channels(conn)
    channels = _choose_channels(conn, decided.transitions, enabled)
    for rule, transition in decided.transitions:
        if transition.kind == Phase.FIRING:
            cursor.execute(QUERIES["open_incident"], _make_incident_row(rule, transition, channels[transition.id]))
        elif transition.kind == Phase.RESOLVED:
            cursor.execute(QUERIES["close_incident"], {**vars(transition), "id": transition.incident})
    rows = [{**_make_state_key(rule, each.queue), **vars(each)} for rule, each in decided.transitions]
    cursor.executemany(QUERIES["add_transition"], rows)
    messages = _build_messages(decided.transitions, channels, enabled)
    if messages:
        cursor.executemany(QUERIES["add_message"], messages)


def _load_enabled_channels(conn: Connection) -> dict[str, bool]:
    """Return the enabled channels by id; True if they receive alerts about Headrace's own health."""
    return {str(row[0]): bool(row[1]) for row in conn.execute(QUERIES["list_enabled_channels"]).fetchall()}


def _choose_channels(
    conn: Connection, transitions: Sequence[tuple[Rule, Transition]], enabled: Mapping[str, bool]
) -> dict[str, list[str]]:
    """Return the channels to notify, by transition id.

    A resolved incident notifies the channels that were notified when it fired; about Headrace's own health only if
    they still have `health`.
    """
    resolved = [each.incident for _, each in transitions if each.kind == Phase.RESOLVED]
    rows = conn.execute(QUERIES["list_incident_channels"], {"ids": resolved}).fetchall()
    notified = {str(row[0]): [str(channel) for channel in row[1]] for row in rows}
    channels: dict[str, list[str]] = {}
    for rule, transition in transitions:
        is_health = rule.id.startswith(PREFIX)
        if transition.kind == Phase.RESOLVED:
            before = notified.get(transition.incident or "", [])
            channels[transition.id] = [each for each in before if not is_health or enabled.get(each)]
        elif is_health:
            channels[transition.id] = [channel for channel, health in enabled.items() if health]
        else:
            channels[transition.id] = list(rule.channels)
    return channels


def _build_messages(
    transitions: Sequence[tuple[Rule, Transition]], channels: Mapping[str, Sequence[str]], enabled: Mapping[str, bool]
) -> list[dict[str, Any]]:
    """Return one message per rule, kind and channel; more if it covers more than MAX_QUEUES_PER_MESSAGE queues."""
    groups: dict[tuple[str, str, str], list[tuple[Rule, Transition]]] = {}
    for rule, transition in transitions:
        if transition.told:
            for channel in dict.fromkeys(channels[transition.id]):
                if channel in enabled:
                    groups.setdefault((rule.id, transition.kind, channel), []).append((rule, transition))
    return [
        _build_message(channel, kind, every[start : start + MAX_QUEUES_PER_MESSAGE])
        for (_, kind, channel), every in groups.items()
        for start in range(0, len(every), MAX_QUEUES_PER_MESSAGE)
    ]


def _build_message(channel: str, kind: str, every: Sequence[tuple[Rule, Transition]]) -> dict[str, Any]:
    rule = every[0][0]
    message_id = derive_id(channel, *(each.id for _, each in every))
    message = {
        "id": message_id,
        "kind": kind,
        "rule": asdict(rule),
        "transitions": [
            {
                "id": each.id,
                "incident": each.incident,
                "queue": each.queue,
                "value": each.value,
                "at_ms": each.at_ms,
                "since_ms": each.since_ms,
                "reason": each.reason,
            }
            for _, each in every
        ],
    }
    return {"id": message_id, "channel_id": channel, "message": json.dumps(message)}


def _load_states(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> States:
    states: States = {}
    for row in conn.cursor(row_factory=dict_row).execute(query, params):
        rule_id, queue = row.pop("rule_id"), row.pop("queue")
        row["phase"], row["fired_ms"] = Phase(row["phase"]), tuple(row["fired_ms"])
        states.setdefault(rule_id, {})[queue] = RuleState(**row)
    return states


def _make_state_key(rule: Rule, queue: str) -> dict[str, Any]:
    return {"rule_id": rule.id, "queue": queue}


def _make_incident_row(rule: Rule, transition: Transition, channels: Sequence[str]) -> dict[str, Any]:
    return {
        **asdict(rule.environment),
        **_make_state_key(rule, transition.queue),
        "id": transition.incident,
        "rule": json.dumps(asdict(rule)),
        "severity": rule.severity,
        "channels": list(channels),
        "value": transition.value,
        "at_ms": transition.at_ms,
    }
