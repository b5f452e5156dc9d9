"""Decisions of client calls that take several steps. Both clients share them and differ only in how they wait.

An object holds the state of one call: it builds the next script call, and `apply` takes the reply. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from headrace.errors import (
    ColdFull,
    CommitUnclear,
    DatabaseFull,
    DatabaseUnavailable,
    HeadraceError,
    MigrationError,
    QuotaExceeded,
    SpillRefused,
    UnknownQueue,
    WrongDatabase,
)
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.overflow import EpochClosed, SpillJob
from headrace.queue.scripts import DeadFilter, EnqueueResult, RedriveResult, Stubs, WarmCaps
from headrace.queue.validate import check_caps, check_environment, check_limits, check_queue
from headrace.runtime.backoff import Backoff
from headrace.valkey.scripts import ScriptCall

DEAD_JOBS_PAGE = 500

# PostgreSQL refuses a spill when the queue has just left cold mode; Valkey follows a moment later, so the client asks
# Valkey again. If Valkey is still in cold mode after SEND_EPOCH_AFTER tries (the mover died in between), the client
# passes PostgreSQL's epoch to the enqueue script, which adopts it and stays in cold mode.
EPOCH_BACKOFF = Backoff(base_s=0.005, longest_s=0.2)
SEND_EPOCH_AFTER = 6  # tries, about a third of a second
MAX_TRIES = 30

SPILL_ERRORS = (ColdFull, DatabaseFull, DatabaseUnavailable, MigrationError, QuotaExceeded, WrongDatabase)
"""Errors after which some jobs of a call may be accepted and others not."""


class EnqueueOperation:
    """State of one call of `enqueue_many` with an overflow tier. Without one, a call is a single script call.

    While jobs are `remaining`: run `build_call()` and `apply` its reply; then, if there are jobs `to_spill`, store them
    in the overflow tier and `apply_stored` its reply. After EpochClosed, wait for `retry_after_s` and continue. Pass
    any of SPILL_ERRORS to `raise_refused`."""

    def __init__(
        self, stubs: Stubs, ref: QueueRef, jobs: Sequence[NewJob], far_ms: int, cold_queues: set[QueueRef]
    ) -> None:
        """`far_ms` is that of the overflow tier. `cold_queues` are the queues that were in cold mode at the client's
        last enqueue: job bodies are not sent to Valkey first."""
        self.accepted = [False] * len(jobs)
        self.remaining: Sequence[int] = range(len(jobs))  # indexes of jobs without a result
        self.to_spill: Sequence[SpillJob] = ()  # the remaining jobs, once `apply` has found that none fits into Valkey
        self._stubs = stubs
        self._ref = ref
        self._jobs = jobs
        self._far_ms = far_ms
        self._cold_queues = cold_queues
        self._tries = 0
        self._cold_epoch = 0

    def build_call(self) -> ScriptCall[EnqueueResult]:
        """Build the call for the remaining jobs. Raises SpillRefused after MAX_TRIES calls."""
        if self._tries == MAX_TRIES:
            raise self._describe_refusal("the queue kept switching between warm and cold mode")
        self._tries += 1
        return self._stubs.enqueue(
            self._ref,
            self._jobs if self._tries == 1 else [self._jobs[i] for i in self.remaining],
            self._far_ms,
            self._cold_epoch,
            with_bodies=self._ref not in self._cold_queues,
            counted=self._tries > 1,
        )

    def apply(self, reply: EnqueueResult) -> None:
        indexes, answers = self.remaining, reply.answers
        if EnqueueResult.SEND_BODY in answers:
            self._cold_queues.discard(self._ref)
            again = (EnqueueResult.SEND_BODY, EnqueueResult.SPILL)
            self.remaining = [i for i, answer in zip(indexes, answers, strict=True) if answer in again]
            return
        for i, answer in zip(indexes, answers, strict=True):
            self.accepted[i] = answer == EnqueueResult.ACCEPTED
        if EnqueueResult.SPILL not in answers:
            self.remaining = ()
            return
        positions = [position for position, answer in enumerate(answers) if answer == EnqueueResult.SPILL]
        self.remaining = [indexes[position] for position in positions]
        self.to_spill = [self._make_spill_job(indexes[position], reply, position) for position in positions]
        if any(job.new.delay_ms < self._far_ms for job in self.to_spill):
            self._cold_queues.add(self._ref)

    def _make_spill_job(self, index: int, reply: EnqueueResult, position: int) -> SpillJob:
        job = self._jobs[index]
        due_ms = reply.now_ms + job.delay_ms + position / 4096  # the score that the script would have given it
        return SpillJob(job, int(reply.now_ms), due_ms, delayed=job.delay_ms > 0)

    def apply_stored(self, stored: Sequence[bool]) -> None:
        """Take the reply of the overflow tier: for each job to spill, whether it was stored."""
        for i, is_new in zip(self.remaining, stored, strict=True):
            self.accepted[i] = is_new
        self.remaining = self.to_spill = ()

    def retry_after_s(self, closed: EpochClosed) -> float:
        """Prepare another call for the jobs that the overflow tier did not store. Return the seconds to wait first."""
        self.to_spill = ()
        self._cold_epoch = closed.epoch if self._tries > SEND_EPOCH_AFTER else 0
        return EPOCH_BACKOFF.full_delay_s(self._tries)

    def raise_refused(self, error: HeadraceError) -> NoReturn:
        """Raise SpillRefused, which names the accepted jobs. A quota that refused all jobs is raised as it is."""
        if isinstance(error, QuotaExceeded) and not any(self.accepted):
            raise error
        raise self._describe_refusal(error) from error

    def _describe_refusal(self, reason: object) -> SpillRefused:
        count = f"{len(self.remaining)} of {len(self.accepted)} jobs did not fit into Valkey"
        if isinstance(reason, CommitUnclear):
            outcome = (
                f"{count}, and it is unknown whether PostgreSQL stored them: the connection was lost during COMMIT and "
                "has not been restored."
            )
        else:
            outcome = f"{count}, could not be stored in PostgreSQL, and were refused."
        return SpillRefused(
            f"{outcome} {sum(self.accepted)} were accepted. Retry with the same ids when PostgreSQL is available; "
            f"accepted jobs are not duplicated. ({reason})",
            self.accepted,
        )


class RedriveCount(int):
    """The number of redriven jobs. `remaining` is the number of matching jobs that stay dead, because the queue or its
    shard is full and there is no PostgreSQL where they could wait."""

    remaining: int

    def __new__(cls, redriven: int, remaining: int = 0) -> RedriveCount:
        count = super().__new__(cls, redriven)
        count.remaining = remaining
        return count


class DeadJobsOperation:
    """State of a call that redrives or removes the dead jobs in Valkey, page by page.

    `build_page` is that of the stubs: it takes the queue, the filter, the size of the page and the jobs to skip. At
    most `limit` jobs are processed (None: all); with ids, all of them are."""

    def __init__(
        self,
        ref: QueueRef,
        which: DeadFilter,
        build_page: Callable[[QueueRef, DeadFilter, int, int], ScriptCall[RedriveResult | None]],
        limit: int | None = None,
    ) -> None:
        self.is_done = False
        self._limit = limit
        self._ref = ref
        self._which = which
        self._build_page = build_page
        self._moved = self._skip = self._unmoved = 0

    def build_call(self) -> ScriptCall[RedriveResult | None]:
        return self._build_page(self._ref, self._which, self._page, self._skip)

    @property
    def _page(self) -> int:
        return DEAD_JOBS_PAGE if self._limit is None else min(DEAD_JOBS_PAGE, self._limit - self._moved)

    def apply(self, page: RedriveResult | None) -> None:
        """Raises UnknownQueue."""
        if page is None:
            raise _unknown_queue(self._ref)
        is_last = page.examined < self._page
        self._moved += page.moved
        self._unmoved += page.remaining
        self._skip += page.examined - page.moved  # these stay dead, ahead of the next page
        self.is_done = bool(self._which.ids) or is_last or self._moved == self._limit

    @property
    def count(self) -> RedriveCount:
        return RedriveCount(self._moved, self._unmoved)


class Unchanged:
    """Type of UNCHANGED: the setting keeps its value."""


UNCHANGED = Unchanged()


@dataclass(frozen=True)
class QueueChange:
    """New settings of a queue, applied atomically."""

    paused: bool | Unchanged = UNCHANGED
    closed: bool | Unchanged = UNCHANGED
    limit: int | Unchanged | None = UNCHANGED  # None: no limit
    caps: tuple[int | None, int | None] | Unchanged = UNCHANGED  # jobs and bytes; None: the bound of all queues

    def check(self) -> None:
        """Raises InvalidLimit."""
        if not isinstance(self.limit, Unchanged):
            check_limits(self.limit, None)
        if not isinstance(self.caps, Unchanged):
            check_caps(*self.caps)

    def build_fields(self, default_caps: WarmCaps) -> dict[str, str | None]:
        """Return the fields of the queue to set; None removes a field. If only one cap is given, the other is that of
        `default_caps`."""
        fields: dict[str, str | None] = {}
        if not isinstance(self.paused, Unchanged):
            fields["paused"] = "1" if self.paused else None
        if not isinstance(self.closed, Unchanged):
            fields["closed"] = "1" if self.closed else None
        if not isinstance(self.limit, Unchanged):
            fields["limit"] = None if self.limit is None else str(self.limit)
        if not isinstance(self.caps, Unchanged):
            items, size = self.caps
            both = f"{items or default_caps.items} {size or default_caps.bytes}"
            fields["caps"] = None if items is None and size is None else both
        return fields


def build_limit_fields(ref: QueueRef | EnvRef, limit: int | None, burst: float | None) -> dict[str, str | None]:
    """Return the fields of a queue or environment to set; None removes a field. Raises InvalidName, InvalidLimit."""
    check_limits(limit, burst)
    fields = {"limit": None if limit is None else str(limit)}
    if isinstance(ref, EnvRef):
        check_environment(ref)
        fields["burst"] = None if burst is None else repr(burst)
    else:
        check_queue(ref)
    return fields


def raise_if_unknown(ref: QueueRef | EnvRef, found: bool) -> None:
    if not found:
        assert isinstance(ref, QueueRef)
        raise _unknown_queue(ref)


def _unknown_queue(ref: QueueRef) -> UnknownQueue:
    return UnknownQueue(
        f"There is no queue {ref.queue!r} in {ref.org} / {ref.project} / {ref.env}. Nothing was changed. "
        "A queue is created by its first job."
    )
