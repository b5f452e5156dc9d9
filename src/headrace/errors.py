"""All errors that Headrace raises: one root class, and one class per kind of failure.

The docstring of a class is its default message. A message states what failed, what was kept, and what to do next.
Imports only the standard library.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence


class HeadraceError(Exception):
    """The operation failed."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class SettingsError(HeadraceError):
    """A setting is unknown or has an invalid value."""

    exit_code = 3


class MissingExtra(HeadraceError):
    """A package of an optional extra is not installed."""

    exit_code = 4


class InvalidName(HeadraceError):
    """A name is empty, longer than 128 bytes, or contains a control character. Nothing was written."""


class InvalidJob(HeadraceError):
    """A job has an invalid field. Nothing was written."""


class InvalidLimit(HeadraceError):
    """A limit is out of range. Nothing was changed."""


class TaskInvalid(HeadraceError, TypeError):
    """A task cannot run as it is defined."""

    exit_code = 3


class ArgumentsInvalid(HeadraceError, TypeError):
    """The arguments of a job do not match its task. Nothing was written."""


class TaskNotBound(HeadraceError):
    """The task belongs to no app. Call `app.include(tasks)`. Nothing was written."""


class NoEnvironment(HeadraceError):
    """No environment is given. Nothing was written. Use `task.using(env="org/project/env")`, `with app.tenant(...)`, or
    a default: `Headrace(env="org/project/env")`."""


class NoJob(HeadraceError, LookupError):
    """No job runs in this context. A thread that a task starts has a context of its own."""


class DependencyMissing(HeadraceError, TypeError):
    """A task was called directly without one of its dependencies."""


class LifespanFailed(HeadraceError):
    """The lifespan of the app failed. No job was taken."""


class JobFailed(HeadraceError):
    """The job failed, and will not be retried."""

    def __init__(self, message: str | None = None, *, error: str = "", attempts: int = 0) -> None:
        super().__init__(message)
        self.error = error  # the error of the last attempt, with its traceback
        self.attempts = attempts


class ResultUnknown(HeadraceError, LookupError):
    """The result is not known: the task keeps none (`result_ttl`), it is no longer kept, or the job was cancelled."""


class ResultInsideJob(HeadraceError, RuntimeError):
    """Waiting for the result of a job could block its worker for ever. Enqueue a job that continues instead, or allow
    it with `allow=True`."""


class ServiceUnavailable(HeadraceError):
    """A required server does not respond."""

    exit_code = 4


class QueueUnavailable(ServiceUnavailable):
    """Valkey is not responding. The last command may or may not have been applied. Retry with the same job id; an id is
    accepted only once."""


class NotPermitted(HeadraceError):
    """The Valkey user of this connection lacks a permission. `headrace acl` prints the rules that each role needs."""


class CheckpointMismatch(HeadraceError):
    """The pipeline's checkpoint and spool belong to different queries. Nothing was changed. See --from in `headrace
    pipeline --help`."""


class LeaseFenced(HeadraceError):
    """Another process holds the lease. Nothing was written."""


class PipelineFenced(LeaseFenced):
    """Another pipeline reads these streams. Events that were not yet in this pipeline's spool were not counted by
    it."""


class ImpossibleEntry(HeadraceError):
    """A metric stream contains an entry with an invalid id."""


class SparkGone(ServiceUnavailable):
    """Spark's Java process exited. No data was lost: events already read are in the spool, the rest are in the streams.
    Restart the pipeline; if it exits again, increase pipeline.driver_memory."""


class DatabaseUnavailable(ServiceUnavailable):
    """PostgreSQL is not responding or timed out. Nothing was written; stored data is unchanged. Retry; if the error
    persists, start PostgreSQL or check HEADRACE_POSTGRES_URL."""


class CommitUnclear(DatabaseUnavailable):
    """The connection to PostgreSQL was lost during COMMIT. Either everything was written or nothing. Check which, or
    retry with the same ids."""


class DatabaseFull(HeadraceError):
    """PostgreSQL is out of disk space or memory. Nothing was written; stored data is kept. Add capacity, or try again
    when the backlog is smaller."""


class WrongDatabase(HeadraceError):
    """The queue's jobs wait in another PostgreSQL than the one in postgres.url. Nothing was written. Correct
    postgres.url (HEADRACE_POSTGRES_URL); if PostgreSQL was replaced on purpose, run `headrace tiers adopt`."""


class DatabaseRestored(DatabaseUnavailable):
    """PostgreSQL was restored to an earlier point or replaced since this process last used it. Nothing was written.
    Retry: the process has discarded its cached state."""


class SettingsNotRestored(HeadraceError):
    """Valkey restarted, failed over or lost its data, and limits and pauses have not been restored from PostgreSQL yet.
    No job was leased. A worker or mover with PostgreSQL restores them."""


class QueueClosed(HeadraceError):
    """The queue is closed and accepts no jobs until it is reopened. Nothing was written."""


class QueueFull(HeadraceError):
    """The queue has reached its limit of jobs or bytes in Valkey, and this client has no PostgreSQL for the overflow.
    Nothing was written. Set postgres.url, raise the limit, or retry when the backlog is smaller."""


class DeadJobsFull(QueueFull):
    """The dead jobs of the queue have reached its limit of bytes in Valkey, and this client has no PostgreSQL for the
    overflow. Nothing was written. Redrive or remove dead jobs (`headrace redrive`, `headrace discard`), or set
    postgres.url."""


class QueueCold(HeadraceError):
    """The queue is in cold mode: new jobs must wait in PostgreSQL behind older ones, but this client has no PostgreSQL.
    Nothing was written. Set postgres.url."""


class IdPending(QueueCold):
    """A job with the same id is being stored in PostgreSQL, or was when its producer failed. Only PostgreSQL knows
    whether it exists, and this client has none. Nothing was written. Retry after some minutes, or set postgres.url."""


class QuotaExceeded(HeadraceError):
    """A quota set by an operator is exceeded. Nothing was written."""

    def __init__(self, quota: str = "", where: str = "", limit: int = 0, used: int = 0, message: str = "") -> None:
        super().__init__(message or (self.describe(quota, where, limit, used) if quota else None))
        self.quota = quota  # name of the quota, for example warm_jobs
        self.where = where  # description of the tenant
        self.limit = limit
        self.used = used

    @staticmethod
    def describe(quota: str, where: str, limit: int, used: int) -> str:
        return (
            f"The quota {quota} of {where} is {limit}, and {used} are used. Nothing was written. Remove what is not "
            "needed, retry when jobs have finished, or ask an operator to raise the quota (`headrace quotas`)."
        )


class EnqueueRateExceeded(QuotaExceeded):
    """Jobs are enqueued faster than the quota allows. Nothing was written. Enqueue again later."""

    def __init__(
        self, where: str = "", limit: float = 0, burst: float = 0, jobs: int = 0, retry_after_s: float = 1.0
    ) -> None:
        message = f"The quota enqueue_rate of {where} is {limit:g} jobs per second, and {burst:g} at once. "
        self.is_too_large = burst < jobs  # a call of this size is always refused
        if self.is_too_large:
            message += f"A call with {jobs} jobs always exceeds that. Nothing was written. Send fewer jobs per call."
        else:
            message += (
                f"Nothing was written. Enqueue again in {retry_after_s:.1f} s, or ask an operator to raise the quota."
            )
        super().__init__("enqueue_rate", where, int(limit), int(limit), message if where else "")
        self.burst = burst
        self.retry_after_s = retry_after_s


class SpillRefused(ServiceUnavailable):
    """Jobs that do not fit in Valkey could not be stored in PostgreSQL and were refused."""

    def __init__(self, message: str | None = None, accepted: Sequence[bool] = ()) -> None:
        super().__init__(message)
        self.accepted = accepted  # for each job of the call: whether it was accepted and will run


class ColdFull(HeadraceError):
    """The queue has reached its cap in PostgreSQL (cold.max_items, cold.max_bytes)."""


class ColdIdsFull(ColdFull):
    """The queue cannot accept this job: it would wait in PostgreSQL, and there is no memory left in Valkey to register
    the id that its caller chose, so its uniqueness could not be promised. Send jobs with generated ids in a call of
    their own, which is still accepted; raise cold.max_id_bytes; or retry when the backlog is smaller."""


class MoverFenced(LeaseFenced):
    """Another mover has taken over this shard. Nothing was written."""


class UnknownQueue(HeadraceError):
    """No such queue. A queue is created with its first job."""


class UnknownJob(HeadraceError):
    """Job not found: it never existed, was cancelled, removed or expired, or finished longer than queue.keep_done
    ago."""


class JobNotWaiting(HeadraceError):
    """Only a waiting job can be cancelled. Nothing was changed."""


class StreamsUnavailable(QueueUnavailable):
    """The streams server does not respond. The last command may or may not have been applied; publishing a job again
    may add it twice."""


class UnknownGroup(HeadraceError):
    """No such stream or consumer group. Nothing was changed."""


class NotAStream(HeadraceError):
    """The key is not a stream. Nothing was changed."""


class StreamFull(HeadraceError):
    """The stream has reached streams.hard_maxlen entries, and none can be trimmed because a group still needs them.
    Nothing was written. Retry when the workers have caught up."""


class SeveralGroups(HeadraceError):
    """The stream has other consumer groups, which would also run these jobs again. Nothing was changed."""


class MemoryFull(HeadraceError):
    """Valkey has reached maxmemory and accepts no new jobs; workers continue. Nothing was written. Add memory, or try
    again when the backlog is smaller."""


class LeaseLost(HeadraceError):
    """The job's lease is no longer valid; another worker may be running the job. The result was not applied."""


class ShardMismatch(HeadraceError):
    """The queue was created with a different number of shards."""

    exit_code = 3


class EmbeddedError(HeadraceError):
    """An embedded server could not start, or exited unexpectedly."""

    exit_code = 4


class PortTaken(EmbeddedError):
    """A port in the settings is in use by another process."""


class DataDirectoryError(EmbeddedError):
    """The data directory cannot be used."""

    exit_code = 5


class JavaNotFound(EmbeddedError):
    """Spark needs Java 17 or newer and none was found."""


class MigrationError(HeadraceError):
    """A schema migration could not be applied."""


class InvalidPeriod(HeadraceError):
    """The requested period or resolution is not available."""


class InvalidFields(HeadraceError):
    """A requested field of history does not exist."""


class SpoolError(HeadraceError):
    """A spool operation failed."""


class SpoolBusy(SpoolError):
    """Another process has this spool open. Nothing was changed. Stop that process, or use another directory."""

    exit_code = 5


class SpoolFull(SpoolError):
    """The spool is full and no record left it before the timeout. The record was not accepted. Retry when the
    destination has caught up."""


class SpoolDiskFull(SpoolFull):
    """The spool's disk is full. The record was not accepted; records accepted earlier are kept and still delivered.
    Free some space and put it again."""


class SpoolWriteFailed(SpoolError):
    """The spool could not write to or sync its disk. The record was not accepted; records accepted earlier are kept.
    Check the disk, then put it again."""


class SpoolReadFailed(SpoolError):
    """A spool record could not be read. It is kept and will be retried. Check the disk and the open-file limit."""


class SpoolFormatError(SpoolError):
    """The spool directory was written by a newer version. Nothing was changed. Use that version."""

    exit_code = 5


class SpoolClosed(SpoolError):
    """The spool is closed. Nothing was done."""


class RecordTooLarge(SpoolError):
    """The record exceeds the maximum record size. Nothing was written. Split it into smaller records."""


class UnknownRecord(SpoolError):
    """No such record is in flight: it was never leased, or is already finished. Nothing was changed."""


_FORMER_NAMES = {"AnotherPipeline": "PipelineFenced", "NoSuchGroup": "UnknownGroup"}
"""Names of errors up to 0.2. They are removed in 0.4."""


def __getattr__(name: str) -> object:
    if name not in _FORMER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"headrace.errors.{name} is now {_FORMER_NAMES[name]}", DeprecationWarning, stacklevel=2)
    return globals()[_FORMER_NAMES[name]]
