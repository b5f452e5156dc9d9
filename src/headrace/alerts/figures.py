"""What the evaluator and the outbox did, for /metrics of `headrace alerts run`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.alerts.evaluator import Round
from headrace.vitals.figures import Metric, Numbers
from headrace.vitals.rounds import LoopFigures, Rounds

RULES = Metric("headrace_alerts_rules", "gauge", "Rules that the newest round looked at.")
UNKNOWN = Metric(
    "headrace_alerts_unknown_rules", "gauge", "Of these, rules whose state was kept because history was not known."
)
LAG = Metric(
    "headrace_alerts_history_lag_seconds",
    "gauge",
    "How far history was behind in the newest round; absent if nobody could tell.",
)
TRANSITIONS = Metric(
    "headrace_alerts_transitions_total",
    "counter",
    "Changes of the state of a rule: firing, resolved and so on.",
)
MESSAGES = Metric("headrace_alerts_send_attempts_total", "counter", "Messages that were begun to be sent.")
METRICS = (RULES, UNKNOWN, LAG, TRANSITIONS, MESSAGES)


class AlertFigures(LoopFigures):
    """`leads`: does this process hold the lease? Evaluating, sending and keeping the lease are a loop each."""

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
