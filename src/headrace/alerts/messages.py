"""Render alert messages: rule, environment, value and threshold, start time, and a link to the chart. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from headrace.alerts.rules import HEALTH, Metric, Rule, rule_of, value_text

SHOWN = 10
"""Queues listed in a message; the rest is given as a number."""

RANGES = {"30m": 1800, "2h": 7200, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, "90d": 90 * 86_400}
"""Ranges of the dashboard's charts in seconds; a link opens the shortest one that shows two windows."""


@dataclass(frozen=True)
class Told:
    """Transition of one queue in a message."""

    id: str
    incident: str | None
    queue: str
    value: float | None
    at_ms: int
    since_ms: int
    reason: str | None


@dataclass(frozen=True)
class Message:
    id: str
    kind: str  # firing, resolved or test
    rule: Rule
    told: Sequence[Told]

    @property
    def title(self) -> str:
        """Single line for an email subject or a pager."""
        if self.kind == "test":
            return f"[test] Headrace can reach this channel ({_where(self.rule)})"
        word = self.rule.severity if self.kind == "firing" else "resolved"
        what = f"[{word}] {self.rule.name}"
        if self.rule.metric in (HEALTH, Metric.NO_DATA):
            return f"{what}{self._subject}" if self.rule.metric == HEALTH else f"{what}: {_where(self.rule)}"
        return f"{what}: {_named(self.told[0].queue) if len(self.told) == 1 else f'{len(self.told)} queues'}"

    def text(self, public_url: str | None) -> str:
        return "\n".join([self.title, "", *self.lines(public_url)])

    def lines(self, public_url: str | None) -> list[str]:
        if self.kind == "test":
            return ["This is a test message; no action is needed."]
        lines = [] if self.rule.metric == HEALTH else [f"{_where(self.rule)}: {self.rule.condition()}"]
        for each in self.told[:SHOWN]:
            lines.append(self._line(each))
            if link := chart_link(self.rule, each, public_url):
                lines.append(f"  {link}")
        if len(self.told) > SHOWN:
            lines.append(f"… and {len(self.told) - SHOWN} more queues")
        return lines

    def document(self, public_url: str | None) -> dict[str, Any]:
        """Return the JSON body of a webhook."""
        rule = self.rule
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "text": self.text(public_url),
            "rule": {
                **{"id": rule.id, "name": rule.name, "severity": rule.severity, "metric": rule.metric},
                **{"operator": rule.operator, "threshold": rule.threshold, "percentile": rule.percentile},
                **{"window_s": rule.window_s, "org": rule.org, "project": rule.project, "env": rule.env},
            },
            "transitions": [
                {
                    **{"id": each.id, "incident": each.incident, "queue": each.queue or None, "value": each.value},
                    **{"at": _iso(each.at_ms), "since": _iso(each.since_ms), "reason": each.reason},
                    "link": chart_link(rule, each, public_url),
                }
                for each in self.told
            ],
        }

    def html(self, public_url: str | None) -> str:
        return f"<pre>{html.escape(self.text(public_url))}</pre>"

    @property
    def _subject(self) -> str:
        """Suffix naming the affected part of Headrace, if the message is about a single one."""
        return f": {_named(self.told[0].queue)}" if len(self.told) == 1 and self.told[0].queue else ""

    def _line(self, each: Told) -> str:
        is_own = self.rule.metric in (HEALTH, Metric.NO_DATA)
        what = "" if is_own and not each.queue else f"{_named(each.queue)}: "
        value = "" if self.rule.metric == HEALTH else f"{value_text(self.rule.metric, each.value)}, "
        if self.kind == "firing":
            return f"{what}{value}since {_time(each.since_ms)}"
        because = f" ({each.reason})" if each.reason else ""
        return f"{what}{value}from {_time(each.since_ms)} to {_time(each.at_ms)}{because}"


def message_of(document: Mapping[str, Any]) -> Message:
    """Build a message from its stored document in the outbox."""
    transitions = [Told(**each) for each in document["transitions"]]
    return Message(document["id"], document["kind"], rule_of(document["rule"]), transitions)


def chart_link(rule: Rule, told: Told, public_url: str | None) -> str | None:
    """Return a link to the queue's page, relative without `public_url`; None if the alert is about no queue."""
    if rule.metric == HEALTH or not told.queue:
        return None
    shown = next(name for name, seconds in RANGES.items() if 2 * rule.window_s <= seconds)
    where = {"org": rule.org, "project": rule.project, "env": rule.env, "range": shown}
    return f"{(public_url or '').rstrip('/')}/queues/{quote(told.queue, safe='')}?{urlencode(where, quote_via=quote)}"


def _where(rule: Rule) -> str:
    return " / ".join(map(_named, (rule.org, rule.project, rule.env)))


def _named(name: str) -> str:
    """Collapse whitespace, so that a tenant's name cannot add lines to the message."""
    return " ".join(name.split()) or "''"


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
