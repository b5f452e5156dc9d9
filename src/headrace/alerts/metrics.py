"""Metrics of `headrace alerts run`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.alerts.evaluator import EvaluationReport
from headrace.runtime.loop import LoopStats, ServiceMetrics
from headrace.runtime.metrics import MetricDeclaration, MetricValues

RULES = MetricDeclaration("headrace_alerts_rules", "gauge", "Rules in the last evaluation.")
UNKNOWN = MetricDeclaration(
    "headrace_alerts_unknown_rules", "gauge", "Rules left unchanged in the last evaluation because history was unknown."
)
LAG = MetricDeclaration(
    "headrace_alerts_history_lag_seconds",
    "gauge",
    "History lag in the last evaluation; absent if unknown.",
)
TRANSITIONS = MetricDeclaration(
    "headrace_alerts_transitions_total",
    "counter",
    "State changes of rules (pending, firing, resolved, ok).",
)
MESSAGES = MetricDeclaration("headrace_alerts_send_attempts_total", "counter", "Delivery attempts started.")
METRICS = (RULES, UNKNOWN, LAG, TRANSITIONS, MESSAGES)


class AlertServiceMetrics(ServiceMetrics):
    """Metrics of the three loops of the alert service: evaluation, outbox and lease.

    `leads` returns whether this process holds the lease.
    """

    def __init__(self, leads: Callable[[], bool]) -> None:
        self.evaluating = LoopStats("alerts", leads)
        self.sending = LoopStats("alerts_outbox", leads)
        self.lease = LoopStats("alerts_lease")
        self._rules, self._unknown, self._lag = MetricValues(RULES), MetricValues(UNKNOWN), MetricValues(LAG)
        self._transitions, self._messages = MetricValues(TRANSITIONS, ()), MetricValues(MESSAGES, ())
        numbers = [self._rules, self._unknown, self._lag, self._transitions, self._messages]
        super().__init__([self.evaluating, self.sending, self.lease], numbers)

    def record_evaluation(self, done: EvaluationReport) -> None:
        self._rules.set(done.rules)
        self._unknown.set(done.unknown)
        self._transitions.add(done.transitions)
        if done.lag_ms is None:
            self._lag.remove()
        else:
            self._lag.set(done.lag_ms / 1000)

    def record_send_attempts(self, messages: int) -> None:
        self._messages.add(messages)
