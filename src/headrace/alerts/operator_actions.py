"""Operator actions: resolve an incident by hand, send a test message, read its result."""

from __future__ import annotations

import json
from dataclasses import asdict
from uuid import uuid4

from headrace.alerts.queries import QUERIES
from headrace.alerts.records import Channel, Incident
from headrace.alerts.rules import Rule
from headrace.alerts.state_machine import Phase, resolve_state
from headrace.alerts.state_store import AlertChanges, load_incident_rule, lock_states, write_changes
from headrace.postgres.connect import Connection


def resolve_incident(conn: Connection, incident: Incident, by: str, now_ms: int) -> bool:
    """Resolve an incident by hand and notify the channels that were notified of it.

    Returns False if it was already resolved. If the condition still holds, the rule fires again after its cooldown.
    """
    state = lock_states(conn, [incident.rule_id]).get(incident.rule_id, {}).get(incident.queue)
    if state is None or state.phase != Phase.FIRING or state.incident != incident.id:
        return False
    rule = load_incident_rule(conn, incident.id, incident.rule_id)
    after, transitions = resolve_state(rule, incident.queue, state, now_ms, f"resolved by {by}")
    decided = AlertChanges()
    decided.add(rule, {incident.queue: after}, transitions)
    write_changes(conn, decided)
    return True


def add_test_message(conn: Connection, channel: Channel) -> str:
    """Append a test message to the channel's outbox and return its id. The channel is retried at once."""
    message_id = str(uuid4())
    rule = Rule("", channel.org, channel.project, channel.env, "", "")
    message = {"id": message_id, "kind": "test", "rule": asdict(rule), "transitions": []}
    conn.execute(QUERIES["add_message"], {"id": message_id, "channel_id": channel.id, "message": json.dumps(message)})
    conn.execute(QUERIES["retry_channel"], {"id": channel.id})
    return message_id


def read_message_result(conn: Connection, message_id: str) -> tuple[bool, str | None]:
    """Return whether the message was delivered, and the error of the last attempt or None."""
    row = conn.execute(QUERIES["find_message_result"], {"id": message_id}).fetchone()
    return (False, "the channel was deleted") if row is None else (bool(row[0]), row[1])
