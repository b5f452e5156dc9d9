"""Request and response models of `/api/v1/alerts`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, Field

from headrace.alerts.backtest import BacktestResult
from headrace.alerts.records import Channel, Incident, RuleRecord, Silence
from headrace.alerts.rules import Rule
from headrace.api.schemas.common import Name, PrintableText, RequestBody, Time

MetricName = Literal["BACKLOG", "LATENCY", "ERROR_RATE", "OLDEST_AGE", "NO_DATA", "SLO"]
OperatorName = Literal["GREATER_THAN", "LESS_THAN"]
PercentileName = Literal["avg", "p50", "p90", "p95", "p99"]
SeverityName = Literal["info", "warning", "critical"]
ChannelType = Literal["slack", "email", "webhook", "apprise"]

WINDOW = "Window in seconds: a multiple of 5 up to two hours, of 60 above."
COOLDOWN = "Minimum time in seconds between two firings."
FOR = "Seconds that the condition must hold before the rule fires."
THRESHOLD = "In jobs, ms, a ratio from 0 to 1, or a burn rate."
WITHIN = "SLO only: longest wait in ms of a job that started in time."
OBJECTIVE = "SLO only: share of the jobs that should start in time, between 0 and 1."

MAX_INCIDENTS_SHOWN = 100
"""Incidents in the result of a back-test; `fired` counts all of them."""


class EnvironmentRow(BaseModel):
    id: str
    org: str
    project: str
    env: str


class RuleFields(RequestBody):
    queue: Name | None = Field(
        None, description="Queue to watch; null: every queue of the environment, each separately."
    )
    operator: OperatorName | None = None
    threshold: float | None = Field(None, allow_inf_nan=False, description=THRESHOLD)
    percentile: PercentileName | None = Field(None, description="LATENCY only.")
    within_ms: int | None = Field(None, description=WITHIN)
    objective: float | None = Field(None, allow_inf_nan=False, description=OBJECTIVE)
    window_s: int | None = Field(None, description=WINDOW)
    cooldown_s: int | None = Field(None, description=COOLDOWN)
    for_s: int | None = Field(None, description=FOR)
    severity: SeverityName | None = None
    enabled: bool | None = None
    auto_resolve: bool | None = None
    channels: list[Name] | None = Field(None, description="Ids of channels of the same environment.")


class RuleChange(RuleFields):
    """Omitted fields are unchanged."""

    name: Name | None = None
    metric: MetricName | None = None


class NewRule(RuleFields):
    """Defaults: GREATER_THAN, all queues, window 300, cooldown 900, for 0, warning, enabled, auto_resolve."""

    name: Name
    metric: MetricName


class RuleToTest(RuleFields):
    """A rule, which need not exist. Defaults as for a new rule; name, severity and channels do not matter."""

    name: Name | None = None
    metric: MetricName


class RuleDocument(EnvironmentRow):
    name: str
    queue: str | None = Field(description="null: every queue of the environment, each separately.")
    metric: MetricName
    operator: OperatorName
    threshold: float = Field(description=THRESHOLD)
    percentile: PercentileName
    within_ms: int | None = Field(description=WITHIN)
    objective: float | None = Field(description=OBJECTIVE)
    window_s: int = Field(description=WINDOW)
    cooldown_s: int = Field(description=COOLDOWN)
    for_s: int = Field(description=FOR)
    severity: SeverityName
    enabled: bool
    auto_resolve: bool = Field(description="False: incidents must be resolved by hand.")
    channels: list[str]
    condition: str = Field(description="Readable condition.", examples=["LATENCY p95 > 250 ms over 5 min"])
    created_at: Time
    updated_at: Time
    last_fired_at: Time | None = Field(description="When the rule last opened an incident; null: never.")


class RuleList(BaseModel):
    rules: list[RuleDocument]


class BacktestIncident(BaseModel):
    queue: str | None = Field(description="null: not about a queue.")
    fired_at: Time
    value: float | None = Field(description="Value when the rule would have fired.")
    resolved_at: Time | None = Field(description="null: still open at the end.")


class BacktestDocument(BaseModel):
    condition: str = Field(description="Readable condition.")
    start_at: Time
    end_at: Time
    fired: int = Field(description="How often the rule would have fired.")
    queues: int = Field(description="Queues that were evaluated.")
    every_s: int = Field(description="Seconds between two evaluations.")
    evaluations: int
    unknown: int = Field(description="Evaluations that changed nothing because history was too far behind.")
    incidents: list[BacktestIncident] = Field(description="The newest incidents, at most 100, newest first.")


class ChannelFields(RequestBody):
    url: str | None = Field(None, description="For slack, webhook and apprise. Never returned.")
    to: list[PrintableText] | None = Field(None, description="For email: addresses.")
    secret: str | None = Field(None, description="Webhook signing secret; generated if omitted.")
    health: bool | None = Field(
        None,
        description="Also receives alerts about Headrace's own health. Only keys with global scope can set it.",
    )
    enabled: bool | None = None


class ChannelChange(ChannelFields):
    """Omitted fields are unchanged."""

    name: Name | None = None
    type: ChannelType | None = None


class NewChannel(ChannelFields):
    name: Name
    type: ChannelType


class ChannelDocument(EnvironmentRow):
    name: str
    type: ChannelType
    target: str = Field(description="Destination without secrets.", examples=["https://hooks.slack.com/***"])
    health: bool
    enabled: bool
    failures: int = Field(description="Consecutive failed deliveries.")
    last_error: str | None = Field(description="Error of the last failed delivery.")
    retry_at: Time | None = Field(description="Time of the next attempt.")
    last_sent_at: Time | None


class MadeChannel(ChannelDocument):
    secret: str | None = Field(description="Generated webhook secret; returned only once.")


class ChannelList(BaseModel):
    channels: list[ChannelDocument]


class Tested(BaseModel):
    id: str = Field(description="Message id, sent as header X-Headrace-Delivery.")
    delivered: bool
    error: str | None = Field(description="Why the message was not delivered, if known.")


class NewSilence(RequestBody):
    ends_at: AwareDatetime = Field(description="End of the silence (required).")
    starts_at: AwareDatetime | None = Field(None, description="null: now.")
    rule_id: Name | None = Field(None, description="Rule to silence; null: every rule of the environment.")
    queue: Name | None = Field(None, description="Queue to silence; null: every queue.")
    reason: str = Field("", max_length=500)


class SilenceDocument(EnvironmentRow):
    rule_id: str | None
    queue: str | None
    reason: str
    made_by: str
    starts_at: Time
    ends_at: Time


class SilenceList(BaseModel):
    silences: list[SilenceDocument]


class IncidentDocument(BaseModel):
    id: str
    rule_id: str
    rule: str = Field(description="Name of the rule when it fired.")
    condition: str | None = Field(description="Rule condition when it fired; null for Headrace's own health.")
    org: str
    project: str
    env: str
    queue: str | None = Field(description="null: not about a queue.")
    severity: SeverityName
    state: Literal["firing", "acknowledged", "resolved"]
    value: float | None = Field(description="Value when the rule fired.")
    current_value: float | None = Field(
        description="Value at the last evaluation, while the incident is open; null: nothing measured, or resolved."
    )
    current_at: Time | None = Field(description="Time of current_value; null: unknown, or resolved.")
    fired_at: Time
    acknowledged_at: Time | None
    acknowledged_by: str | None
    resolved_at: Time | None
    reason: str | None = Field(description="Why it was resolved, if not automatically.")


class TransitionDocument(BaseModel):
    id: str
    kind: Literal["pending", "ok", "firing", "resolved"]
    at: Time
    value: float | None
    told: bool = Field(description="True if channels were notified.")


class DeliveryDocument(BaseModel):
    """Delivery of a message about an incident to one channel."""

    id: str = Field(description="Message id, as sent to the receiver.")
    channel_id: str
    channel: str = Field(description="Name of the channel.")
    kind: Literal["firing", "resolved"]
    attempts: int
    created_at: Time
    delivered_at: Time | None
    given_up_at: Time | None
    error: str | None = Field(description="Error of the last attempt, or the rejected recipients.")


class IncidentDetail(IncidentDocument):
    transitions: list[TransitionDocument]
    deliveries: list[DeliveryDocument]


class IncidentList(BaseModel):
    incidents: list[IncidentDocument]
    next: str | None


def present_rule(record: RuleRecord) -> RuleDocument:
    rule = record.rule
    return RuleDocument.model_validate({**vars(record), **vars(rule), "condition": rule.format_condition()})


def present_backtest(rule: Rule, result: BacktestResult) -> BacktestDocument:
    incidents = [
        {
            "queue": each.queue or None,
            "fired_at": _from_ms(each.fired_ms),
            "value": each.value,
            "resolved_at": None if each.resolved_ms is None else _from_ms(each.resolved_ms),
        }
        for each in result.incidents[: -MAX_INCIDENTS_SHOWN - 1 : -1]
    ]
    fields = {**vars(result), "condition": rule.format_condition(), "fired": len(result.incidents)}
    return BacktestDocument.model_validate({**fields, "incidents": incidents})


def _from_ms(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def present_channel(channel: Channel) -> ChannelDocument:
    return ChannelDocument.model_validate({**vars(channel), "last_sent_at": channel.last_sent})


def present_created_channel(channel: Channel, secret: str | None) -> MadeChannel:
    return MadeChannel(**present_channel(channel).model_dump(), secret=secret)


def present_silence(silence: Silence) -> SilenceDocument:
    return SilenceDocument.model_validate(vars(silence))


def present_incident(incident: Incident) -> IncidentDocument:
    return IncidentDocument.model_validate(_make_incident_fields(incident))


def present_incident_detail(
    incident: Incident, transitions: list[dict[str, Any]], deliveries: list[dict[str, Any]]
) -> IncidentDetail:
    return IncidentDetail.model_validate(
        {**_make_incident_fields(incident), "transitions": transitions, "deliveries": deliveries}
    )


def _make_incident_fields(incident: Incident) -> dict[str, Any]:
    computed = {"condition": incident.condition, "state": incident.state}
    return {**vars(incident), **computed, "rule": incident.rule["name"], "queue": incident.queue or None}
