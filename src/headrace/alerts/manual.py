"""What people do to incidents and channels beside the evaluator, in the same tables."""

from __future__ import annotations

import json
from uuid import uuid4

from headrace.alerts.journal import Decided, lock_states, rule_of_incident, write
from headrace.alerts.machine import Phase, resolve
from headrace.alerts.queries import QUERIES
from headrace.alerts.records import Channel, Incident
from headrace.alerts.rules import Rule, rule_document
from headrace.postgres.connect import Connection


def resolve_incident(conn: Connection, incident: Incident, by: str, now_ms: int) -> bool:
    """End it, whatever is measured; whoever was told of it is told so. False: it was over already. While the condition
    is met still, the rule fires again after its cooldown."""
    state = lock_states(conn, [incident.rule_id]).get(incident.rule_id, {}).get(incident.queue)
    if state is None or state.phase != Phase.FIRING or state.incident != incident.id:
        return False
    rule = rule_of_incident(conn, incident.id, incident.rule_id)
    after, made = resolve(rule, incident.queue, state, now_ms, f"resolved by {by}")
    decided = Decided()
    decided.add(rule, {incident.queue: after}, made)
    write(conn, decided)
    return True


def add_test_message(conn: Connection, channel: Channel) -> str:
    """Put it behind what waits for this channel; returns its id."""
    message_id = str(uuid4())
    rule = Rule("", channel.org, channel.project, channel.env, "", "")
    message = {"id": message_id, "kind": "test", "rule": rule_document(rule), "transitions": []}
    row = {"id": message_id, "channel_id": channel.id, "message": json.dumps(message)}
    conn.execute(QUERIES["add_message"], row)
    conn.execute(QUERIES["retry_channel"], {"id": channel.id})
    return message_id


def message_fate(conn: Connection, message_id: str) -> tuple[bool, str | None]:
    """Whether it was delivered, and why not yet."""
    row = conn.execute(QUERIES["find_message_result"], {"id": message_id}).fetchone()
    return (False, "the channel was removed") if row is None else (bool(row[0]), row[1])
