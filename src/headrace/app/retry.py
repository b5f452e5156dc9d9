"""When a failed job is retried."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from headrace.app.duration import Seconds, is_integer, to_seconds
from headrace.queue.validate import MAX_ATTEMPTS
from headrace.runtime.backoff import Backoff


@dataclass(frozen=True)
class Retry:
    """The retry policy of a task.

    The number of attempts is stored with a job when it is enqueued. Delays are computed by the worker, so a changed
    policy applies to jobs that wait."""

    attempts: int = 5  # all of them, including the first
    base: Seconds = 1.0  # longest delay before the second attempt
    factor: float = 2.0  # by which the longest delay grows with each attempt
    longest: Seconds = 300.0
    jitter: bool = True  # True: the delay is random between 0 and the longest, so that jobs do not retry together
    never: tuple[type[Exception], ...] = ()  # errors that bury the job at once
    only: tuple[type[Exception], ...] = (Exception,)  # any other error buries the job at once
    # Given the error and the number of the failed attempt, returns the delay; None: bury the job.
    delay: Callable[[Exception, int], Seconds | None] | None = None

    def __post_init__(self) -> None:
        if not is_integer(self.attempts) or not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise ValueError(f"Retry(attempts={self.attempts}) is no integer from 1 to {MAX_ATTEMPTS}.")
        if not (to_seconds(self.base) >= 0 and to_seconds(self.longest) >= 0 and self.factor >= 1):  # also NaN
            raise ValueError("Retry needs a base and a longest delay of at least 0, and a factor of at least 1.")

    def choose_delay_s(self, error: BaseException, attempt: int) -> float | None:
        """Return the seconds until the next attempt after attempt number `attempt` failed; None: bury the job."""
        if isinstance(error, self.never) or not (isinstance(error, self.only) or not isinstance(error, Exception)):
            return None
        if self.delay is not None and isinstance(error, Exception):
            chosen = self.delay(error, attempt)
            return None if chosen is None else to_seconds(chosen)
        backoff = Backoff(to_seconds(self.base), self.factor, to_seconds(self.longest))
        longest_s = backoff.full_delay_s(attempt)
        return random.uniform(0, longest_s) if self.jitter else longest_s
