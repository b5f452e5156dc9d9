"""Render alert messages: rule, environment, value and threshold, start time, and a link to the chart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from headrace.alerts.rules import HEALTH, Rule, RuleMetric, rule_from_document

MAX_QUEUES_SHOWN = 10
"""Queues listed in a message; the rest is given as a number."""

CHART_RANGES_S = {"30m": 1800, "2h": 7200, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, "90d": 90 * 86_400}
"""Ranges of the dashboard's charts in seconds; a link opens the shortest one that shows two windows."""


@dataclass(frozen=True)
class MessageTransition:
    """Transition of one queue in a message."""

    id: str
    incident: str | None
    queue: str
    value: float | None
    at_ms: int
    since_ms: int
    reason: str | None


@dataclass(frozen=True)
class AlertMessage:
    id: str
    kind: str  # firing, resolved or test
    rule: Rule
    transitions: Sequence[MessageTransition]

    @property
    def title(self) -> str:
        """Single line for an email subject or a pager."""
        if self.kind == "test":
            return f"[test] Headrace can reach this channel ({_format_env(self.rule)})"
        word = self.rule.severity if self.kind == "firing" else "resolved"
        what = f"[{word}] {self.rule.name}"
        if self.rule.metric == RuleMetric.NO_DATA:
            return f"{what}: {_format_env(self.rule)}"
        if len(self.transitions) == 1 and (self.transitions[0].queue or self.rule.metric != HEALTH):
            return f"{what}: {_to_single_line(self.transitions[0].queue)}"
        return what if self.rule.metric == HEALTH else f"{what}: {len(self.transitions)} queues"

    def render_text(self, public_url: str | None) -> str:
        return "\n".join([self.title, "", *self.render_lines(public_url)])

    def render_lines(self, public_url: str | None) -> list[str]:
        if self.kind == "test":
            return ["This is a test message; no action is needed."]
        lines = [] if self.rule.metric == HEALTH else [f"{_format_env(self.rule)}: {self.rule.format_condition()}"]
        for each in self.transitions[:MAX_QUEUES_SHOWN]:
            lines.append(self._format_transition(each))
            if link := build_chart_link(self.rule, each, public_url):
                lines.append(f"  {link}")
        if len(self.transitions) > MAX_QUEUES_SHOWN:
            lines.append(f"… and {len(self.transitions) - MAX_QUEUES_SHOWN} more queues")
        return lines

    def render_document(self, public_url: str | None) -> dict[str, Any]:
        """Return the JSON body of a webhook."""
        rule = self.rule
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "text": self.render_text(public_url),
            "rule": {
                **{"id": rule.id, "name": rule.name, "severity": rule.severity, "metric": rule.metric},
                **{"operator": rule.operator, "threshold": rule.threshold, "percentile": rule.percentile},
                **{"window_s": rule.window_s, "org": rule.org, "project": rule.project, "env": rule.env},
            },
            "transitions": [
                {
                    **{"id": each.id, "incident": each.incident, "queue": each.queue or None, "value": each.value},
                    **{"at": _format_iso(each.at_ms), "since": _format_iso(each.since_ms), "reason": each.reason},
                    "link": build_chart_link(rule, each, public_url),
                }
                for each in self.transitions
            ],
        }

    def _format_transition(self, each: MessageTransition) -> str:
        is_own = self.rule.metric in (HEALTH, RuleMetric.NO_DATA)
        what = "" if is_own and not each.queue else f"{_to_single_line(each.queue)}: "
        value = "" if self.rule.metric == HEALTH else f"{self.rule.format_measured(each.value)}, "
        if self.kind == "firing":
            return f"{what}{value}since {_format_time(each.since_ms)}"
        because = f" ({each.reason})" if each.reason else ""
        return f"{what}{value}from {_format_time(each.since_ms)} to {_format_time(each.at_ms)}{because}"


def message_from_document(document: Mapping[str, Any]) -> AlertMessage:
    """Build a message from its stored document in the outbox."""
    transitions = [MessageTransition(**each) for each in document["transitions"]]
    return AlertMessage(document["id"], document["kind"], rule_from_document(document["rule"]), transitions)


def build_chart_link(rule: Rule, transition: MessageTransition, public_url: str | None) -> str | None:
    """Return a link to the queue's page, relative without `public_url`; None if the alert is about no queue."""
    if rule.metric == HEALTH or not transition.queue:
        return None
    shown = next(name for name, seconds in CHART_RANGES_S.items() if 2 * rule.window_s <= seconds)
    where = {"org": rule.org, "project": rule.project, "env": rule.env, "range": shown}
    path = f"/queues/{quote(transition.queue, safe='')}?{urlencode(where, quote_via=quote)}"
    return (public_url or "").rstrip("/") + path


def _format_env(rule: Rule) -> str:
    return " / ".join(map(_to_single_line, (rule.org, rule.project, rule.env)))


def _to_single_line(name: str) -> str:
    """Collapse whitespace, so that a tenant's name cannot add lines to the message."""
    return " ".join(name.split()) or "''"


def _format_iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
