"""Stored rules, channels, silences and incidents. One function per statement.

The caller controls the transaction, so that an audit log entry can be part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, LiteralString, TypeVar
from uuid import uuid4

from headrace.alerts.queries import QUERIES
from headrace.alerts.rules import HEALTH, EnvironmentRecord, InvalidRule, Rule, rule_from_document
from headrace.cold.quota_records import EffectiveQuota, find_and_lock_quotas, raise_if_exceeded
from headrace.model.names import EnvRef
from headrace.model.quotas import Quota, TenantRef
from headrace.postgres.connect import Connection, class_row, dict_row, scalar_row

T = TypeVar("T", bound=EnvironmentRecord)

ANY_ENVIRONMENT: Mapping[str, str | None] = {"org": None, "project": None, "env": None}


def generate_id(kind: str) -> str:
    """Generate an id such as `rule_…`, `channel_…` or `silence_…`."""
    return f"{kind}_{uuid4().hex[:20]}"


@dataclass(frozen=True)
class RuleRecord:
    """A stored rule with the times that users see."""

    rule: Rule
    created_at: datetime
    updated_at: datetime
    last_fired_at: datetime | None  # None: never, or before this time was stored

    @property
    def environment(self) -> EnvRef:
        return self.rule.environment


@dataclass(frozen=True)
class Channel(EnvironmentRecord):
    name: str
    type: str
    config: dict[str, Any] = field(repr=False)
    target: str
    health: bool = False
    enabled: bool = True
    failures: int = 0
    retry_at: datetime | None = None
    last_error: str | None = None
    last_sent: datetime | None = None


@dataclass(frozen=True)
class Silence(EnvironmentRecord):
    rule_id: str | None
    queue: str | None
    reason: str
    made_by: str
    starts_at: datetime
    ends_at: datetime

    def matches(self, rule: Rule, queue: str, now: datetime) -> bool:
        return (
            self.environment == rule.environment
            and self.rule_id in (None, rule.id)
            and self.queue in (None, queue)
            and self.starts_at <= now < self.ends_at
        )


@dataclass(frozen=True)
class Incident(EnvironmentRecord):
    rule_id: str
    rule: dict[str, Any]
    queue: str
    severity: str
    channels: list[str]
    value: float | None
    fired_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    resolved_at: datetime | None
    reason: str | None
    current_value: float | None = None  # of the last evaluation with a known value; None if resolved or not measured
    current_at: datetime | None = None  # time of that evaluation; None if resolved or unknown

    @property
    def condition(self) -> str | None:
        """Readable condition of the rule; None for incidents about Headrace's own health."""
        known = rule_from_document(self.rule)
        return None if known.metric == HEALTH else known.format_condition()

    @property
    def state(self) -> str:
        if self.resolved_at is not None:
            return "resolved"
        return "firing" if self.acknowledged_at is None else "acknowledged"


def list_rules(conn: Connection, where: Mapping[str, str | None] = ANY_ENVIRONMENT) -> list[Rule]:
    return [rule_from_document(row) for row in _fetch_rows(conn, QUERIES["list_rules"], where)]


def list_enabled_rules(conn: Connection) -> list[Rule]:
    return [rule_from_document(row) for row in _fetch_rows(conn, QUERIES["list_enabled_rules"], {})]


def list_rule_records(conn: Connection, where: Mapping[str, str | None] = ANY_ENVIRONMENT) -> list[RuleRecord]:
    return [_make_rule_record(row) for row in _fetch_rows(conn, QUERIES["list_rules"], where)]


def find_rule_record(conn: Connection, rule_id: str) -> RuleRecord | None:
    return next(map(_make_rule_record, _fetch_rows(conn, QUERIES["find_rule"], {"id": rule_id})), None)


def _make_rule_record(row: dict[str, Any]) -> RuleRecord:
    return RuleRecord(rule_from_document(row), row["created_at"], row["updated_at"], row["last_fired_at"])


def find_rule(conn: Connection, rule_id: str) -> Rule | None:
    return next(map(rule_from_document, _fetch_rows(conn, QUERIES["find_rule"], {"id": rule_id})), None)


def lock_rule(conn: Connection, rule_id: str) -> Rule | None:
    """Select a rule FOR UPDATE; None if it does not exist."""
    return next(map(rule_from_document, _fetch_rows(conn, QUERIES["lock_rule"], {"id": rule_id})), None)


def put_rule(conn: Connection, rule: Rule) -> None:
    """Insert or update a rule by id. Its channels must belong to its environment.

    Raises InvalidRule or QuotaExceeded. Callers that update must lock the rule first, or a concurrently deleted rule
    would be re-created.
    """
    quotas = _hold_quotas_if_new(conn, find_rule(conn, rule.id), rule.environment, Quota.RULES)
    known = {channel.id for channel in list_channels(conn, asdict(rule.environment))}
    if foreign := [channel for channel in rule.channels if channel not in known]:
        raise InvalidRule(f"Channel {foreign[0]!r} does not exist in this environment. Nothing was changed.")
    if any(each.name == rule.name and each.id != rule.id for each in list_rules(conn, asdict(rule.environment))):
        raise InvalidRule(f"A rule named {rule.name!r} already exists in this environment. Nothing was changed.")
    conn.execute(QUERIES["put_rule"], {**asdict(rule), "channels": list(rule.channels)})
    raise_if_exceeded(quotas, partial(count_rules_and_channels, conn), {Quota.RULES: 1})
    conn.execute(QUERIES["increment_revision"])


def remove_rule(conn: Connection, rule_id: str) -> bool:
    """Delete a rule; its open incidents are resolved at the next evaluation. Return False if it does not exist."""
    return _remove(conn, QUERIES["delete_rule"], rule_id)


def list_channels(conn: Connection, where: Mapping[str, str | None] = ANY_ENVIRONMENT) -> list[Channel]:
    return conn.cursor(row_factory=class_row(Channel)).execute(QUERIES["list_channels"], where).fetchall()


def find_channel(conn: Connection, channel_id: str) -> Channel | None:
    return _find(conn, Channel, QUERIES["find_channel"], channel_id)


def lock_channel(conn: Connection, channel_id: str) -> Channel | None:
    """Select a channel FOR UPDATE; None if it does not exist."""
    return _find(conn, Channel, QUERIES["lock_channel"], channel_id)


def put_channel(conn: Connection, channel: Channel) -> None:
    """Insert or update a channel by id. Raises InvalidRule or QuotaExceeded."""
    quotas = _hold_quotas_if_new(conn, find_channel(conn, channel.id), channel.environment, Quota.CHANNELS)
    others = list_channels(conn, asdict(channel.environment))
    if any(each.name == channel.name and each.id != channel.id for each in others):
        raise InvalidRule(f"A channel named {channel.name!r} already exists in this environment. Nothing was changed.")
    conn.execute(QUERIES["put_channel"], {**asdict(channel), "config": json.dumps(channel.config)})
    raise_if_exceeded(quotas, partial(count_rules_and_channels, conn), {Quota.CHANNELS: 1})
    conn.execute(QUERIES["increment_revision"])


def count_rules_and_channels(conn: Connection, tenant: TenantRef) -> dict[str, int]:
    row = conn.execute(QUERIES["count_rules_and_channels"], vars(tenant)).fetchone()
    assert row is not None
    return {Quota.RULES: int(row[0]), Quota.CHANNELS: int(row[1])}


def _hold_quotas_if_new(conn: Connection, before: object | None, env: EnvRef, quota: Quota) -> list[EffectiveQuota]:
    """Lock and return the quotas for an insert; an update (`before` exists) needs none."""
    return find_and_lock_quotas(conn, TenantRef.from_environment(env), [quota]) if before is None else []


def remove_channel(conn: Connection, channel_id: str) -> bool:
    """Delete a channel and its undelivered messages. Return False if it does not exist."""
    return _remove(conn, QUERIES["delete_channel"], channel_id)


def add_silence(conn: Connection, silence: Silence) -> None:
    conn.execute(QUERIES["add_silence"], asdict(silence))


def list_silences(
    conn: Connection, where: Mapping[str, str | None] = ANY_ENVIRONMENT, at: datetime | None = None
) -> list[Silence]:
    """List the silences that have not ended at `at` (default now)."""
    return conn.cursor(row_factory=class_row(Silence)).execute(QUERIES["list_silences"], {**where, "at": at}).fetchall()


def find_silence(conn: Connection, silence_id: str) -> Silence | None:
    return _find(conn, Silence, QUERIES["find_silence"], silence_id)


def end_silence(conn: Connection, silence_id: str) -> bool:
    """End a silence now. Return False if it does not exist or has ended."""
    return conn.execute(QUERIES["end_silence"], {"id": silence_id}).fetchone() is not None


def list_incidents(
    conn: Connection,
    where: Mapping[str, str | None],
    *,
    is_open: bool | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 100,
) -> list[Incident]:
    """List incidents, newest first; `before` is (time, id) of the last one of the previous page."""
    before_at, before_id = before or (None, None)
    params = {**where, "open": is_open, "before_at": before_at, "before_id": before_id, "limit": limit}
    return conn.cursor(row_factory=class_row(Incident)).execute(QUERIES["list_incidents"], params).fetchall()


def find_incident(conn: Connection, incident_id: str) -> Incident | None:
    return _find(conn, Incident, QUERIES["find_incident"], incident_id)


def list_transitions(conn: Connection, incident_id: str) -> list[dict[str, Any]]:
    return _fetch_rows(conn, QUERIES["list_incident_transitions"], {"id": incident_id})


def list_deliveries(conn: Connection, incident_id: str) -> list[dict[str, Any]]:
    """Return the messages of an incident and their delivery state, oldest first."""
    return _fetch_rows(conn, QUERIES["list_incident_deliveries"], {"id": incident_id})


def list_failing_channels(conn: Connection, failures: int) -> list[str]:
    """Return enabled channels with at least `failures` consecutive failures, as "org / project / env / name"."""
    return [
        " / ".join(row.values()) for row in _fetch_rows(conn, QUERIES["list_failing_channels"], {"failures": failures})
    ]


def acknowledge(conn: Connection, incident_id: str, by: str) -> bool:
    """Acknowledge an incident. Return False if it is already acknowledged or resolved."""
    return conn.execute(QUERIES["acknowledge_incident"], {"id": incident_id, "by": by}).fetchone() is not None


def read_revision(conn: Connection) -> int:
    found = conn.cursor(row_factory=scalar_row).execute(QUERIES["read_revision"]).fetchone()
    return int(found or 0)


def _remove(conn: Connection, query: LiteralString, row_id: str) -> bool:
    removed = conn.execute(query, {"id": row_id}).fetchone() is not None
    if removed:
        conn.execute(QUERIES["increment_revision"])
    return removed


def _find(conn: Connection, kind: type[T], query: LiteralString, row_id: str) -> T | None:
    return conn.cursor(row_factory=class_row(kind)).execute(query, {"id": row_id}).fetchone()


def _fetch_rows(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    return conn.cursor(row_factory=dict_row).execute(query, params).fetchall()
