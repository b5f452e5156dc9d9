"""Metrics of `headrace alerts run`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.alerts.evaluator import Round
from headrace.vitals.figures import Metric, Numbers
from headrace.vitals.rounds import LoopFigures, Rounds

RULES = Metric("headrace_alerts_rules", "gauge", "Rules in the last evaluation.")
UNKNOWN = Metric(
    "headrace_alerts_unknown_rules", "gauge", "Rules left unchanged in the last evaluation because history was unknown."
)
LAG = Metric(
    "headrace_alerts_history_lag_seconds",
    "gauge",
    "History lag in the last evaluation; absent if unknown.",
)
TRANSITIONS = Metric(
    "headrace_alerts_transitions_total",
    "counter",
    "State changes of rules (pending, firing, resolved, ok).",
)
MESSAGES = Metric("headrace_alerts_send_attempts_total", "counter", "Delivery attempts started.")
METRICS = (RULES, UNKNOWN, LAG, TRANSITIONS, MESSAGES)


class AlertFigures(LoopFigures):
    """Metrics of the three loops of the alert service: evaluation, outbox and lease.

    `leads` returns whether this process holds the lease.
    """

    def __init__(self, leads: Callable[[], bool]) -> None:
        self.evaluating = Rounds("alerts", leads)
        self.sending = Rounds("alerts_outbox", leads)
        self.lease = Rounds("alerts_lease")
        self._rules, self._unknown, self._lag = Numbers(RULES), Numbers(UNKNOWN), Numbers(LAG)
        self._transitions, self._messages = Numbers(TRANSITIONS, ()), Numbers(MESSAGES, ())
        numbers = [self._rules, self._unknown, self._lag, self._transitions, self._messages]
        super().__init__([self.evaluating, self.sending, self.lease], numbers)

    def evaluated(self, done: Round) -> None:
        self._rules.put(done.rules)
        self._unknown.put(done.unknown)
        self._transitions.add(done.transitions)
        if done.lag_ms is None:
            self._lag.forget()
        else:
            self._lag.put(done.lag_ms / 1000)

    def began_to_send(self, messages: int) -> None:
        self._messages.add(messages)
