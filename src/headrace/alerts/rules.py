"""Alert rules and their validation. Pure.

A rule that could never fire, or would always fire, is refused with the reason when it is created.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.names import EnvRef, find_name_problem

TIER_5S_MAX_S = 7200
MAX_WINDOW_S = 30 * 86_400
"""Retention of the minute tier, minus one day as a margin."""
MAX_COOLDOWN_S = 7 * 86_400
MAX_FOR_S = 7 * 86_400
MAX_CHANNELS = 20
MAX_WITHIN_MS = 7 * 86_400_000


class InvalidRule(HeadraceError):
    """A rule, channel or silence is invalid. Nothing was changed."""


class RuleMetric(StrEnum):
    BACKLOG = "BACKLOG"  # waiting jobs; maximum within the window
    LATENCY = "LATENCY"  # wait in ms of the jobs started within the window
    ERROR_RATE = "ERROR_RATE"  # failed / started attempts, 0 to 1
    OLDEST_AGE = "OLDEST_AGE"  # age of the oldest waiting job in ms; maximum within the window
    NO_DATA = "NO_DATA"  # no new history for the length of the window
    SLO = "SLO"  # burn rate: share of jobs that started too late, divided by the share that the objective allows


HEALTH = "HEALTH"
"""Metric of the built-in rules, see meta_rules.py."""


class Operator(StrEnum):
    GREATER_THAN = "GREATER_THAN"
    LESS_THAN = "LESS_THAN"


SIGN = {Operator.GREATER_THAN: ">", Operator.LESS_THAN: "<"}
UNIT = {"BACKLOG": "jobs", "LATENCY": "ms", "ERROR_RATE": "", "OLDEST_AGE": "ms", "NO_DATA": "s", "SLO": "", HEALTH: ""}
SLO_FIELDS = ("within_ms", "objective")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
AVERAGE = "avg"
SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True)
class EnvironmentRecord:
    """A record that belongs to an environment."""

    id: str
    org: str
    project: str
    env: str

    @property
    def environment(self) -> EnvRef:
        return EnvRef(self.org, self.project, self.env)


@dataclass(frozen=True)
class Rule(EnvironmentRecord):
    name: str
    metric: str
    operator: str = Operator.GREATER_THAN
    threshold: float = 0.0
    queue: str | None = None  # None: every queue of the environment, each separately
    percentile: str = AVERAGE  # LATENCY only
    window_s: int = 300
    cooldown_s: int = 900  # minimum time between two firings
    for_s: int = 0  # how long the condition must hold before the rule fires
    severity: str = "warning"
    enabled: bool = True
    auto_resolve: bool = True
    channels: tuple[str, ...] = ()  # ids
    created_ms: int = 0
    within_ms: int | None = None  # SLO only: longest wait of a job that started in time
    objective: float | None = None  # SLO only: share of the jobs that should start in time, between 0 and 1

    @property
    def clean_window_s(self) -> int:
        """Seconds of clean samples that make the whole window clean.

        0 if one sample already covers the window: a maximum compared with >, or a built-in health rule.
        """
        is_maximum = (
            self.metric in (RuleMetric.BACKLOG, RuleMetric.OLDEST_AGE) and self.operator == Operator.GREATER_THAN
        )
        return 0 if is_maximum or self.metric == HEALTH else self.window_s

    def is_met(self, value: float | None) -> bool:
        """Return True if the value meets the condition. None (nothing to measure) never does."""
        if value is None:
            return False
        limit = self.window_s if self.metric == RuleMetric.NO_DATA else self.threshold
        return value > limit if self.operator == Operator.GREATER_THAN else value < limit

    def format_condition(self) -> str:
        """Format the condition: `LATENCY p95 > 250 ms over 5 min`."""
        if self.metric == RuleMetric.NO_DATA:
            return f"NO_DATA for {format_span(self.window_s)}"
        what = f"{self.metric} {self.percentile}" if self.metric == RuleMetric.LATENCY else self.metric
        if self.metric == RuleMetric.SLO and self.within_ms is not None and self.objective is not None:
            what = f"SLO {format_share(self.objective)} within {format_wait(self.within_ms)}: burn rate"
        value = format_value(self.metric, self.threshold)
        return f"{what} {SIGN[Operator(self.operator)]} {value} over {format_span(self.window_s)}"

    def format_measured(self, value: float | None) -> str:
        """Format a measured value: `1,200 jobs`, `burn rate 3.2, 96.8 % within 5 s`."""
        if self.metric != RuleMetric.SLO or value is None or self.within_ms is None or self.objective is None:
            return format_value(self.metric, value)
        share = 100 * compute_share_in_time(value, self.objective)
        return f"burn rate {format_value(self.metric, value)}, {share:.4g} % within {format_wait(self.within_ms)}"


RULE_FIELDS = frozenset(each.name for each in fields(Rule)) - {"id", "org", "project", "env", "created_ms"}
"""Fields that users set."""


def make_rule(rule_id: str, tenant: EnvRef, given: dict[str, Any], created_ms: int = 0) -> Rule:
    """Return the rule with these fields. Raises InvalidRule with all problems."""
    if unknown := given.keys() - RULE_FIELDS:
        raise InvalidRule(
            f"Unknown rule field(s): {', '.join(sorted(unknown))}. Allowed: {', '.join(sorted(RULE_FIELDS))}. "
            "Nothing was changed."
        )
    if missing := {"name", "metric"} - given.keys():
        raise InvalidRule(f"A rule requires {' and '.join(sorted(missing))}. Nothing was changed.")
    if given["metric"] == RuleMetric.SLO:
        given = {"threshold": 1.0, **given}  # fire when less than the objective started in time
    if "threshold" not in given and given["metric"] != RuleMetric.NO_DATA:
        raise InvalidRule("A rule requires a threshold, unless its metric is NO_DATA or SLO. Nothing was changed.")
    rule = Rule(rule_id, tenant.org, tenant.project, tenant.env, **_normalize_fields(given), created_ms=created_ms)
    if problems := list(_find_problems(rule, given)):
        raise InvalidRule(f"Invalid rule {rule.name!r}: {'; '.join(problems)}. Nothing was changed.")
    return rule


def rule_from_document(document: dict[str, Any]) -> Rule:
    """Build a rule from its row, or from its JSON of this or an earlier release. Unknown fields are ignored."""
    kept: dict[str, Any] = {each.name: document[each.name] for each in fields(Rule) if each.name in document}
    kept["channels"] = tuple(kept.get("channels", ()))
    return Rule(**kept)


def _normalize_fields(given: dict[str, Any]) -> dict[str, Any]:
    signs = {sign: operator.value for operator, sign in SIGN.items()}
    fields: dict[str, Any] = {**given, "channels": tuple(given.get("channels") or ())}
    if "operator" in given:
        fields["operator"] = signs.get(given["operator"], given["operator"])
    return fields


def _find_problems(rule: Rule, given: dict[str, Any]) -> Iterator[str]:
    names: dict[str, Any] = {"name": rule.name} if rule.queue is None else {"name": rule.name, "queue": rule.queue}
    for what, name in names.items():
        if problem := find_name_problem(name) if isinstance(name, str) else "must be text":
            yield f"{what} {problem}"
    yield from _find_choice_problems(rule)
    yield from _find_threshold_problems(rule)
    yield from _find_span_problems(rule)
    for what in ("enabled", "auto_resolve"):
        if not isinstance(getattr(rule, what), bool):
            yield f"{what} must be true or false"
    named: tuple[Any, ...] = rule.channels
    if not all(isinstance(channel, str) for channel in named) or len(rule.channels) > MAX_CHANNELS:
        yield f"channels must be at most {MAX_CHANNELS} names or ids"
    if rule.percentile != AVERAGE and rule.metric != RuleMetric.LATENCY:
        yield "percentile applies only to LATENCY"
    yield from _find_slo_problems(rule)
    if rule.metric == RuleMetric.NO_DATA:
        if rule.queue is not None:
            yield "NO_DATA applies to all history: omit queue"
        if {"threshold", "operator"} & given.keys() and (rule.threshold, rule.operator) != (0, Operator.GREATER_THAN):
            yield "NO_DATA takes no operator or threshold; window_s is the longest allowed time without data"


def _find_choice_problems(rule: Rule) -> Iterator[str]:
    choices = {
        "metric": tuple(RuleMetric),
        "operator": tuple(Operator),
        "percentile": (AVERAGE, *PERCENTILES),
        "severity": SEVERITIES,
    }
    for what, allowed in choices.items():
        if getattr(rule, what) not in allowed:
            yield f"{what} must be one of {', '.join(allowed)}, not {getattr(rule, what)!r}"


def _find_threshold_problems(rule: Rule) -> Iterator[str]:
    value: Any = rule.threshold
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        yield "threshold must be a finite number"
    elif value < 0:
        yield "threshold must not be negative"
    elif rule.operator == Operator.LESS_THAN and value == 0:
        yield "a threshold of 0 with LESS_THAN can never fire"
    elif rule.metric == RuleMetric.ERROR_RATE and value > 1:
        yield "the ERROR_RATE threshold is a ratio from 0 to 1"


def _find_slo_problems(rule: Rule) -> Iterator[str]:
    if rule.metric != RuleMetric.SLO:
        if named := [each for each in SLO_FIELDS if getattr(rule, each) is not None]:
            yield f"{' and '.join(named)} applies only to SLO"
        return
    within_ms: Any = rule.within_ms
    if not isinstance(within_ms, int) or isinstance(within_ms, bool) or not 1 <= within_ms <= MAX_WITHIN_MS:
        yield f"SLO requires within_ms, a whole number from 1 to {MAX_WITHIN_MS}"
    if rule.operator != Operator.GREATER_THAN:
        yield "SLO compares the burn rate, which is above the threshold when jobs start too late: use GREATER_THAN"
    objective: Any = rule.objective
    if not isinstance(objective, int | float) or isinstance(objective, bool) or not 0 < objective < 1:
        yield "SLO requires objective, a share above 0 and below 1"
        return
    highest = compute_burn_rate(1.0, objective)
    threshold: Any = rule.threshold
    if isinstance(threshold, int | float) and threshold >= highest:
        yield f"the burn rate is {highest:g} if every job starts too late: a threshold of {highest:g} can never fire"


def compute_burn_rate(late: float, objective: float) -> float:
    """Return how many times faster than allowed the error budget is used, if this share of the jobs is late."""
    return round(late / (1 - objective), 9)  # rounded: a share equal to the objective is exactly 1


def compute_share_in_time(burn_rate: float, objective: float) -> float:
    """Return the share of the jobs that started in time, from the burn rate."""
    return 1 - burn_rate * (1 - objective)


def _find_span_problems(rule: Rule) -> Iterator[str]:
    limits = {"window_s": (5, MAX_WINDOW_S), "cooldown_s": (0, MAX_COOLDOWN_S), "for_s": (0, MAX_FOR_S)}
    for what, (low, high) in limits.items():
        value: Any = getattr(rule, what)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            yield f"{what} must be a whole number from {low} to {high}"
            return
    step = 5 if rule.window_s <= TIER_5S_MAX_S else 60
    if rule.window_s % step:
        yield f"window_s must be a multiple of {step}, the length of a history bucket"


def format_value(metric: str, value: float | None) -> str:
    """Format a value with its unit: `1,200 jobs`, `250 ms`, `12.5 %`."""
    if value is None:
        return "nothing measured"
    if metric == RuleMetric.ERROR_RATE:
        return f"{100 * value:.3g} %"
    if metric in (RuleMetric.OLDEST_AGE, RuleMetric.LATENCY) and value >= 10_000:
        return format_wait(value)
    shown = f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"
    return f"{shown} {UNIT.get(metric, '')}".strip()


def format_share(share: float) -> str:
    """Format a share without rounding it up: `99.95 %`."""
    return f"{100 * share:.12g} %"


def format_wait(ms: float) -> str:
    """Format a wait: `250 ms`, `5 s`, `2 min 30 s`."""
    if ms >= 10_000 or (ms >= 1000 and ms % 1000 == 0):
        return format_span(round(ms / 1000))
    return f"{ms:g} ms"


def format_span(seconds: int) -> str:
    """Format a duration with at most two units: `90 s`, `5 min`, `2 h 10 min`."""
    if seconds < 120:
        return f"{seconds} s"
    for size, unit, small, small_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    raise AssertionError("120 s are 2 min")
