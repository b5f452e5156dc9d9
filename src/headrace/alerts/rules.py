"""Rules: what is watched, and what is allowed to be. Pure.

A rule that could never fire, or would always, is refused when it is made, with the reason: nobody looks for it later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.names import EnvRef, name_problem

TIER_5S_MAX_S = 7200
MAX_WINDOW_S = 30 * 86_400
"""What the minutes are kept for, less a day to be sure."""
MAX_COOLDOWN_S = 7 * 86_400
MAX_FOR_S = 7 * 86_400
MAX_CHANNELS = 20


class InvalidRule(HeadraceError):
    """A rule, channel or silence is not possible. Nothing was changed."""


class Metric(StrEnum):
    BACKLOG = "BACKLOG"  # jobs that wait; the highest within the window
    LATENCY = "LATENCY"  # ms that jobs waited before they were started within the window
    ERROR_RATE = "ERROR_RATE"  # failed / started, 0 to 1
    OLDEST_AGE = "OLDEST_AGE"  # ms that the longest-waiting job has waited; the highest within the window
    NO_DATA = "NO_DATA"  # nothing new came into history for the window


HEALTH = "HEALTH"
"""Of Headrace's own rules, which nobody makes: see health.py."""


class Operator(StrEnum):
    GREATER_THAN = "GREATER_THAN"
    LESS_THAN = "LESS_THAN"


SIGN = {Operator.GREATER_THAN: ">", Operator.LESS_THAN: "<"}
UNIT = {"BACKLOG": "jobs", "LATENCY": "ms", "ERROR_RATE": "", "OLDEST_AGE": "ms", "NO_DATA": "s", HEALTH: ""}
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
AVERAGE = "avg"
SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True)
class Rule:
    id: str
    org: str
    project: str
    env: str
    name: str
    metric: str
    operator: str = Operator.GREATER_THAN
    threshold: float = 0.0
    queue: str | None = None  # None: each queue of the environment by itself
    percentile: str = AVERAGE  # of LATENCY
    window_s: int = 300
    cooldown_s: int = 900  # after it fired, it does not fire again for this long
    for_s: int = 0  # it fires when the condition has held for this long
    severity: str = "warning"
    enabled: bool = True
    auto_resolve: bool = True
    channels: tuple[str, ...] = ()  # ids
    created_ms: int = 0

    @property
    def environment(self) -> EnvRef:
        return EnvRef(self.org, self.project, self.env)

    @property
    def settle_s(self) -> int:
        """How long samples must stay clean until a whole window is. A maximum over the window says so at once."""
        is_maximum = self.metric in (Metric.BACKLOG, Metric.OLDEST_AGE) and self.operator == Operator.GREATER_THAN
        return 0 if is_maximum or self.metric == HEALTH else self.window_s

    def is_met(self, value: float | None) -> bool:
        """None: there was nothing to measure, which is clean."""
        if value is None:
            return False
        limit = self.window_s if self.metric == Metric.NO_DATA else self.threshold
        return value > limit if self.operator == Operator.GREATER_THAN else value < limit

    def condition(self) -> str:
        """For people: `LATENCY p95 > 250 ms over 5 min`."""
        if self.metric == Metric.NO_DATA:
            return f"NO_DATA for {span_text(self.window_s)}"
        what = f"{self.metric} {self.percentile}" if self.metric == Metric.LATENCY else self.metric
        value = value_text(self.metric, self.threshold)
        return f"{what} {SIGN[Operator(self.operator)]} {value} over {span_text(self.window_s)}"


RULE_FIELDS = frozenset(each.name for each in fields(Rule)) - {"id", "org", "project", "env", "created_ms"}
"""What a person chooses."""


def make_rule(rule_id: str, tenant: EnvRef, given: dict[str, Any], created_ms: int = 0) -> Rule:
    """The rule of these fields, or InvalidRule with every reason against it."""
    if unknown := given.keys() - RULE_FIELDS:
        raise InvalidRule(f"A rule has no {', '.join(sorted(unknown))}. It has: {', '.join(sorted(RULE_FIELDS))}.")
    if missing := {"name", "metric"} - given.keys():
        raise InvalidRule(f"A rule needs {' and '.join(sorted(missing))}. Nothing was changed.")
    if "threshold" not in given and given["metric"] != Metric.NO_DATA:
        raise InvalidRule("A rule needs a threshold, unless its metric is NO_DATA. Nothing was changed.")
    rule = Rule(rule_id, tenant.org, tenant.project, tenant.env, **_tidied(given), created_ms=created_ms)
    if problems := list(_problems(rule, given)):
        raise InvalidRule(f"The rule {rule.name!r} is not possible: {'; '.join(problems)}. Nothing was changed.")
    return rule


def rule_document(rule: Rule) -> dict[str, Any]:
    return {**asdict(rule), "channels": list(rule.channels)}


def rule_of(document: dict[str, Any]) -> Rule:
    """From `rule_document`, of this release or one before."""
    known = {each.name for each in fields(Rule)}
    kept: dict[str, Any] = {key: value for key, value in document.items() if key in known}
    kept["channels"] = tuple(document.get("channels", ()))
    return Rule(**kept)


def _tidied(given: dict[str, Any]) -> dict[str, Any]:
    signs = {sign: operator.value for operator, sign in SIGN.items()}
    tidied: dict[str, Any] = {**given, "channels": tuple(given.get("channels") or ())}
    if "operator" in given:
        tidied["operator"] = signs.get(given["operator"], given["operator"])
    return tidied


def _problems(rule: Rule, given: dict[str, Any]) -> Iterator[str]:
    for what in ("name", "queue"):
        name: Any = getattr(rule, what)
        if what == "queue" and name is None:
            continue
        if not isinstance(name, str):
            yield f"{what} must be text"
        elif problem := name_problem(name):
            yield f"{what} {problem}"
    yield from _choice_problems(rule)
    yield from _threshold_problems(rule)
    yield from _span_problems(rule)
    for what in ("enabled", "auto_resolve"):
        if not isinstance(getattr(rule, what), bool):
            yield f"{what} must be true or false"
    named: tuple[Any, ...] = rule.channels
    if not all(isinstance(channel, str) for channel in named) or len(rule.channels) > MAX_CHANNELS:
        yield f"channels must be at most {MAX_CHANNELS} names or ids"
    if rule.percentile != AVERAGE and rule.metric != Metric.LATENCY:
        yield "percentile belongs to LATENCY"
    if rule.metric == Metric.NO_DATA:
        if rule.queue is not None:
            yield "NO_DATA is about history as a whole: leave queue out"
        if {"threshold", "operator"} & given.keys() and (rule.threshold, rule.operator) != (0, Operator.GREATER_THAN):
            yield "NO_DATA has neither operator nor threshold: its window says how long nothing may come"


def _choice_problems(rule: Rule) -> Iterator[str]:
    choices = {
        "metric": tuple(Metric),
        "operator": tuple(Operator),
        "percentile": (AVERAGE, *PERCENTILES),
        "severity": SEVERITIES,
    }
    for what, allowed in choices.items():
        if getattr(rule, what) not in allowed:
            yield f"{what} must be one of {', '.join(allowed)}, not {getattr(rule, what)!r}"


def _threshold_problems(rule: Rule) -> Iterator[str]:
    value: Any = rule.threshold
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        yield "threshold must be a finite number"
    elif value < 0:
        yield "threshold must not be negative: nothing that is measured is"
    elif rule.operator == Operator.LESS_THAN and value == 0:
        yield "nothing is less than 0, so it could never fire"
    elif rule.metric == Metric.ERROR_RATE and value > 1:
        yield "the threshold of ERROR_RATE is a share, from 0 to 1"


def _span_problems(rule: Rule) -> Iterator[str]:
    limits = {"window_s": (5, MAX_WINDOW_S), "cooldown_s": (0, MAX_COOLDOWN_S), "for_s": (0, MAX_FOR_S)}
    for what, (low, high) in limits.items():
        value: Any = getattr(rule, what)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            yield f"{what} must be a whole number from {low} to {high}"
            return
    step = 5 if rule.window_s <= TIER_5S_MAX_S else 60
    if rule.window_s % step:
        yield f"window_s must be a multiple of {step}: history is counted in pieces of that length"


def value_text(metric: str, value: float | None) -> str:
    """With its unit: `1,200 jobs`, `250 ms`, `12.5 %`."""
    if value is None:
        return "nothing measured"
    if metric == Metric.ERROR_RATE:
        return f"{100 * value:.3g} %"
    if metric in (Metric.OLDEST_AGE, Metric.LATENCY) and value >= 10_000:
        return span_text(round(value / 1000))
    shown = f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"
    return f"{shown} {UNIT.get(metric, '')}".strip()


def span_text(seconds: int) -> str:
    """Two units at most: `90 s`, `5 min`, `2 h 10 min`."""
    if seconds < 120:
        return f"{seconds} s"
    for size, unit, small, small_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    raise AssertionError("120 s are 2 min")
