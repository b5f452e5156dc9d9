"""Evaluate all rules once: read history in few queries, compare, write.

Environments whose rules need the same windows are read together, so the cost depends on environments and windows, not
on rules. Rules whose history could not be read keep their state.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from headrace.alerts.lease import EvaluatorLease
from headrace.alerts.meta_rules import FAILING_AFTER, LOSS_WINDOW_S, META_RULES, compute_meta_rule_values
from headrace.alerts.problems import list_recent_problems, list_recent_server_events
from headrace.alerts.records import Silence, list_enabled_rules, list_failing_channels, list_silences, read_revision
from headrace.alerts.rule_values import (
    COARSE_TIER,
    EnvironmentMeasurements,
    TierReadPlan,
    choose_tier,
    compute_no_data_values,
    is_lag_acceptable,
    plan_tier_reads,
)
from headrace.alerts.rules import Rule, RuleMetric
from headrace.alerts.state_machine import Phase, Values, evaluate, resolve_state
from headrace.alerts.state_store import (
    AlertChanges,
    States,
    load_incident_rule,
    lock_orphans,
    lock_states,
    write_changes,
)
from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.postgres.connect import Connection, Pool, transaction
from headrace.warehouse import alert_samples
from headrace.warehouse.alert_samples import PipelineProgress, UnknownPeriod
from headrace.warehouse.connect import Client
from headrace.warehouse.query_runner import Columns, HistoryTooSlow, QueryRunner

log = logging.getLogger(__name__)

ENVIRONMENTS_AT_ONCE = 100
ORPHANS_AT_ONCE = 1000
ORPHAN_REASON = "the rule was deleted or disabled"


@dataclass(frozen=True)
class EvaluatorOptions:
    max_lag_s: float = 120.0  # rules are not evaluated while history lags more than this
    query_timeout_s: float = 10.0


@dataclass
class EvaluationReport:
    rules: int = 0
    environments: int = 0
    queries: int = 0
    unknown: int = 0  # rules that kept their state because their values are unknown
    transitions: int = 0
    lag_ms: int | None = None
    failures: list[str] = field(default_factory=list[str])
    unreachable: bool = False  # ClickHouse does not answer; further queries are skipped


class CountingQueryRunner(QueryRunner):
    def __init__(self, client: Client, timeout_s: float, report: EvaluationReport) -> None:
        super().__init__(client, timeout_s)
        self._report = report

    def run(self, query: str, parameters: Mapping[str, Any], threads: int = 0) -> Columns:
        self._report.queries += 1
        return super().run(query, parameters, threads)


@dataclass
class EnvironmentRules:
    """Enabled rules of one environment, grouped by the values they need."""

    ref: EnvRef
    rules: list[Rule]

    def __post_init__(self) -> None:
        self.read_plans = plan_tier_reads(self.rules)
        groups: dict[tuple[Any, ...], list[Rule]] = {}
        for rule in self.rules:
            measured = (rule.metric, rule.percentile, rule.window_s, rule.within_ms, rule.objective)
            groups.setdefault(measured, []).append(rule)
        self.groups = list(groups.values())  # the rules of a group are compared with the same values


class Evaluator:
    """Evaluates all rules. `connect` opens a ClickHouse client on first use and again after a failure."""

    def __init__(
        self, pool: Pool, lease: EvaluatorLease, connect: Callable[[], Client], options: EvaluatorOptions | None = None
    ) -> None:
        self._pool = pool
        self._lease = lease
        self._connect = connect
        self._options = options or EvaluatorOptions()
        self._client: Client | None = None
        self._revision: int | None = None
        self._environments: list[EnvironmentRules] = []
        self._started_ms: int | None = None  # time of the first evaluation

    def run_once(self, now_ms: int) -> EvaluationReport:
        """Evaluate all rules and write the changes.

        Raises EvaluatorFenced, or ServiceUnavailable without PostgreSQL. A ClickHouse failure is part of the report.
        """
        done = EvaluationReport()
        self._started_ms = now_ms if self._started_ms is None else self._started_ms
        silences = self._load_rules_and_silences(datetime.fromtimestamp(now_ms / 1000, UTC))
        progress = self._read_progress(done, now_ms)
        watermark_ms = progress.watermark_ms if progress else None
        done.lag_ms = None if watermark_ms is None else max(0, now_ms - watermark_ms)
        for batch in _batch_environments(self._environments):
            self._evaluate_batch(done, batch, self._measure(done, batch, now_ms, progress), now_ms, progress, silences)
        self._evaluate_meta_rules(done, progress, now_ms)
        self._resolve_orphans(done, now_ms)
        return done

    def _load_rules_and_silences(self, now: datetime) -> dict[EnvRef, list[Silence]]:
        """Reload the rules if any has changed, and return the current silences by environment."""
        by_environment = attrgetter("environment")
        with transaction(self._pool) as conn:
            newest = read_revision(conn)
            if newest != self._revision:
                self._environments = [
                    EnvironmentRules(ref, list(every))
                    for ref, every in groupby(list_enabled_rules(conn), by_environment)
                ]
                self._revision = newest
            silences = list_silences(conn, at=now)
        return {ref: list(every) for ref, every in groupby(sorted(silences, key=by_environment), by_environment)}

    def _make_query_runner(self, done: EvaluationReport) -> QueryRunner:
        self._client = self._client or self._connect()
        return CountingQueryRunner(self._client, self._options.query_timeout_s, done)

    def _read_progress(self, done: EvaluationReport, now_ms: int) -> PipelineProgress | None:
        """Return the pipeline's progress; None if ClickHouse does not answer."""
        try:
            return alert_samples.read_progress(self._make_query_runner(done), now_ms - LOSS_WINDOW_S * 1000)
        except Exception as error:  # any failure leaves the values unknown and must be reported
            self._record_failure(done, error)
            return None

    def _measure(
        self,
        done: EvaluationReport,
        batch: Sequence[EnvironmentRules],
        now_ms: int,
        progress: PipelineProgress | None,
    ) -> dict[tuple[EnvRef, str], EnvironmentMeasurements] | None:
        """Return what the rules of the batch need, by environment and tier; None if history is unknown or too old."""
        if done.unreachable or progress is None or done.lag_ms is None:
            return None
        if not is_lag_acceptable(done.lag_ms, self._options.max_lag_s):
            return None
        horizon_ms = now_ms - done.lag_ms
        envs = [each.ref for each in batch]
        try:
            unknown = self._read_unknown_periods(done, batch[0].read_plans, horizon_ms, progress)
            return {
                key: measured
                for cut in batch[0].read_plans
                for key, measured in self._read_tier(done, cut, envs, horizon_ms, unknown).items()
            }
        except Exception as error:  # any failure leaves the values unknown and must be reported
            self._record_failure(done, error)
            return None

    def _read_unknown_periods(
        self, done: EvaluationReport, cuts: Sequence[TierReadPlan], horizon_ms: int, progress: PipelineProgress
    ) -> list[UnknownPeriod]:
        """Return the unknown periods of the longest window, if some rule needs them."""
        longest_s = max((cut.windows_s[0] for cut in cuts if cut.slo), default=0)
        if not longest_s:
            return []
        reads = self._make_query_runner(done)
        start_ms = horizon_ms - (longest_s + COARSE_TIER.seconds) * 1000
        return alert_samples.read_unknown_periods(reads, start_ms, horizon_ms, progress.reported_since_ms)

    def _read_tier(
        self,
        done: EvaluationReport,
        cut: TierReadPlan,
        envs: Sequence[EnvRef],
        horizon_ms: int,
        unknown: Sequence[UnknownPeriod],
    ) -> dict[tuple[EnvRef, str], EnvironmentMeasurements]:
        reads, end_s = self._make_query_runner(done), cut.compute_end_s(horizon_ms)
        starts_s = [end_s - window_s for window_s in cut.windows_s]
        pieces_by_queue = alert_samples.read_window_pieces(
            reads, cut.tier, envs, starts_s, end_s, histograms=cut.histograms, slo=cut.slo, unknown=unknown
        )
        left = alert_samples.read_carried_gauges(reads, envs, starts_s[0]) if cut.gauges else {}
        pieces: dict[EnvRef, dict[str, list[alert_samples.WindowPiece]]] = {env: {} for env in envs}
        carried: dict[EnvRef, dict[str, alert_samples.CarriedGauges | None]] = {env: {} for env in envs}
        for ref, each in pieces_by_queue.items():
            pieces[ref.environment][ref.queue] = each
        for ref, each in left.items():
            carried[ref.environment][ref.queue] = each
        return {
            (env, cut.tier.name): EnvironmentMeasurements(cut, end_s, pieces[env], carried[env], unknown)
            for env in envs
        }

    def _evaluate_batch(
        self,
        done: EvaluationReport,
        batch: Sequence[EnvironmentRules],
        measured: dict[tuple[EnvRef, str], EnvironmentMeasurements] | None,
        now_ms: int,
        progress: PipelineProgress | None,
        silences: Mapping[EnvRef, Sequence[Silence]],
    ) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        rules = [rule for each in batch for rule in each.rules]
        with self._decide(done) as (conn, decided):
            states = lock_states(conn, [rule.id for rule in rules])
            for each in batch:
                env_silences = silences.get(each.ref, ())
                for group in each.groups:
                    values = _compute_values(group[0], each.ref, measured, now_ms, progress)
                    done.unknown += len(group) if values is None else 0
                    for rule in _select_rules_to_evaluate(group, values, states):
                        is_silenced = _make_silence_check(rule, env_silences, now)
                        decided.add(rule, *evaluate(rule, values, states.get(rule.id, {}), now_ms, is_silenced))
        done.rules += len(rules)
        done.environments += len(batch)

    def _evaluate_meta_rules(self, done: EvaluationReport, progress: PipelineProgress | None, now_ms: int) -> None:
        with self._decide(done) as (conn, decided):
            problems = list_recent_problems(conn)
            events = list_recent_server_events(conn)
            values = compute_meta_rule_values(
                answers=progress is not None and not done.failures,
                lag_ms=done.lag_ms,
                max_lag_ms=int(self._options.max_lag_s * 1000),
                losses=progress.losses if progress else 0,
                watched_ms=now_ms - (now_ms if self._started_ms is None else self._started_ms),
                failing_channels=list_failing_channels(conn, FAILING_AFTER),
                failing_exporters=problems,
                server_events=events,
            )
            states = lock_states(conn, [rule.id for rule in META_RULES])
            for rule in META_RULES:
                decided.add(rule, *evaluate(rule, values[rule.id], states.get(rule.id, {}), now_ms))
        _log_health(decided, {**problems, **events})

    def _resolve_orphans(self, done: EvaluationReport, now_ms: int) -> None:
        with self._decide(done) as (conn, decided):
            for rule_id, states in lock_orphans(conn, ORPHANS_AT_ONCE).items():
                for queue, state in states.items():
                    rule = load_incident_rule(conn, state.incident, rule_id)
                    after, transitions = resolve_state(rule, queue, state, now_ms, ORPHAN_REASON)
                    decided.add(rule, {queue: after}, transitions)

    @contextmanager
    def _decide(self, done: EvaluationReport) -> Generator[tuple[Connection, AlertChanges]]:
        """Run a transaction under the lease that ends by writing the changes which the block adds."""
        decided = AlertChanges()
        with transaction(self._pool) as conn:
            self._lease.fence(conn)
            yield conn, decided
            write_changes(conn, decided)
        done.transitions += len(decided.transitions)

    def _record_failure(self, done: EvaluationReport, error: Exception) -> None:
        """Record a failed query. After a timeout other environments are still read; after any other error none is."""
        if not isinstance(error, HistoryTooSlow):
            done.unreachable = True
            self._client = None  # reconnect: the next server may be another one
        done.failures.append(str(error))
        log.warning(
            "could not read history, rule states unchanged: %s",
            error,
            exc_info=None if isinstance(error, HeadraceError) else error,
            extra={"action": "history_unknown"},
        )


def _log_health(decided: AlertChanges, problems: Mapping[str, str]) -> None:
    """Log incidents about Headrace's own health, because there may be no channel for them."""
    for rule, transition in decided.transitions:
        named = [part for part in (transition.queue, problems.get(transition.queue)) if part]
        about = f": {': '.join(named)}" if named else ""
        if transition.kind == Phase.FIRING:
            log.warning("%s%s", rule.name, about, extra={"action": "health_alert", "rule": rule.id})
        elif transition.kind == Phase.RESOLVED:
            log.info("resolved: %s%s", rule.name, about, extra={"action": "health_resolved", "rule": rule.id})


def _batch_environments(environments: Sequence[EnvironmentRules]) -> Iterator[list[EnvironmentRules]]:
    """Yield batches of at most ENVIRONMENTS_AT_ONCE environments that need the same reads."""
    by_cuts: dict[tuple[TierReadPlan, ...], list[EnvironmentRules]] = {}
    for each in environments:
        by_cuts.setdefault(each.read_plans, []).append(each)
    for alike in by_cuts.values():
        for start in range(0, len(alike), ENVIRONMENTS_AT_ONCE):
            yield alike[start : start + ENVIRONMENTS_AT_ONCE]


def _select_rules_to_evaluate(group: Sequence[Rule], values: Values | None, states: States) -> list[Rule]:
    """Return the rules that can change: those with a stored state, and those whose condition the highest or lowest
    value meets."""
    measured = [value for value in (values or {}).values() if value is not None and not math.isnan(value)]
    low, high = min(measured, default=None), max(measured, default=None)
    return [rule for rule in group if rule.id in states or rule.is_met(high) or rule.is_met(low)]


def _compute_values(
    rule: Rule,
    env: EnvRef,
    measured: dict[tuple[EnvRef, str], EnvironmentMeasurements] | None,
    now_ms: int,
    progress: PipelineProgress | None,
) -> Values | None:
    """Return the values that the rule is compared with; None if unknown."""
    if rule.metric == RuleMetric.NO_DATA:
        return None if progress is None else compute_no_data_values(rule, progress.watermark_ms, now_ms)
    if measured is None:
        return None
    return measured[env, choose_tier(rule.window_s).name].compute_values(rule)


def _make_silence_check(rule: Rule, silences: Sequence[Silence], now: datetime) -> Callable[[str], bool]:
    return lambda queue: any(silence.matches(rule, queue, now) for silence in silences)
