"""Everything Headrace raises on purpose.

One root, one class per failure. The docstring of a class is its default message, so an error
that is raised without words still says what happened. A message tells what happened, what was
kept, and what to do next. Imports nothing but the standard library.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence


class HeadraceError(Exception):
    """Headrace could not do what was asked."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class SettingsError(HeadraceError):
    """A setting is unknown or has a value that is not allowed."""

    exit_code = 3


class MissingExtra(HeadraceError):
    """A library of one of the optional parts is not installed."""

    exit_code = 4


class InvalidName(HeadraceError):
    """A name is empty, longer than 128 bytes, or holds a control character. Nothing was written."""


class InvalidJob(HeadraceError):
    """A job's fields are out of bounds. Nothing was written."""


class InvalidLimit(HeadraceError):
    """A limit is out of bounds. Nothing was changed."""


class ServiceUnavailable(HeadraceError):
    """A server Headrace needs does not answer."""

    exit_code = 4


class QueueUnavailable(ServiceUnavailable):
    """Valkey does not answer. Whether the last command was applied is unknown; enqueue again with
    the same job id: it is accepted once."""


class NotPermitted(HeadraceError):
    """The user of this connection may not do this in Valkey. `headrace acl` prints the rules that each role needs."""


class CheckpointMismatch(HeadraceError):
    """The pipeline's checkpoint and its spool do not belong together. Nothing was touched; see `headrace pipeline
    --help` on --from."""


class AnotherPipeline(HeadraceError):
    """Another pipeline reads these streams. What this one had not put into its spool was not counted."""


class ImpossibleEntry(HeadraceError):
    """A metric stream holds an entry whose id no event can have."""


class SparkGone(ServiceUnavailable):
    """Spark's Java process ended. Nothing is lost: what was read is in the spool, what was not is in the streams. Start
    the pipeline again; if it ends again, give it more memory (pipeline.driver_memory)."""


class DatabaseUnavailable(ServiceUnavailable):
    """PostgreSQL does not answer, or not in time. Nothing was written and what it holds is kept. Try again; if it
    stays so, start PostgreSQL or correct HEADRACE_POSTGRES_URL."""


class CommitUnclear(DatabaseUnavailable):
    """The connection to PostgreSQL was lost during a commit: everything was written, or nothing. Look which, or write
    it again under the same ids."""


class DatabaseFull(HeadraceError):
    """PostgreSQL has no disk space or memory left. Nothing was written and what it holds is kept. Give it more, or try
    again when the backlog is smaller."""


class WrongDatabase(HeadraceError):
    """The queue's jobs wait in another PostgreSQL than the one that postgres.url leads to. Nothing was written. Correct
    postgres.url (HEADRACE_POSTGRES_URL); if PostgreSQL was replaced on purpose, run `headrace tiers adopt`."""


class DatabaseRestored(DatabaseUnavailable):
    """PostgreSQL was restored to an earlier point or replaced since this process last asked it. Nothing was written.
    Try again: what was remembered of it is dropped."""


class SettingsNotRestored(HeadraceError):
    """Valkey restarted, failed over or lost its data, and limits and pauses are not restored from PostgreSQL yet. No
    job was taken. A worker or mover with PostgreSQL restores them."""


class QueueClosed(HeadraceError):
    """The queue is closed: it accepts no jobs until somebody opens it again. Nothing was written."""


class QueueFull(HeadraceError):
    """The queue holds as many jobs, or bytes, as Valkey may hold of it, and this program has no PostgreSQL where more
    could wait. Nothing was written. Set postgres.url, raise the cap, or try again when the backlog is smaller."""


class DeadJobsFull(QueueFull):
    """The dead jobs of the queue leave no room in the bytes that Valkey may hold of it, and this program has no
    PostgreSQL where they could be kept. Nothing was written. Redrive or remove dead jobs (`headrace redrive`, `headrace
    discard`), or set postgres.url."""


class QueueCold(HeadraceError):
    """Jobs of this queue wait in PostgreSQL, and new ones must wait behind them; this program has no PostgreSQL.
    Nothing was written. Set postgres.url."""


class QuotaExceeded(HeadraceError):
    """A quota that an operator has set is used up. Nothing was written."""

    def __init__(self, quota: str = "", where: str = "", limit: int = 0, used: int = 0, message: str = "") -> None:
        super().__init__(message or (self.describe(quota, where, limit, used) if quota else None))
        self.quota = quota  # its name, such as warm_jobs
        self.where = where  # whose it is, in words
        self.limit = limit
        self.used = used

    @staticmethod
    def describe(quota: str, where: str, limit: int, used: int) -> str:
        return (
            f"The quota {quota} of {where} is {limit}, and {used} are used. Nothing was written. Remove what is not "
            "needed, try again when jobs are done, or ask an operator to raise the quota (`headrace quotas`)."
        )


class EnqueueRateExceeded(QuotaExceeded):
    """Jobs are enqueued faster than an operator allows. Nothing was written. Enqueue again later."""

    def __init__(
        self, where: str = "", limit: float = 0, burst: float = 0, jobs: int = 0, retry_after_s: float = 1.0
    ) -> None:
        said = f"The quota enqueue_rate of {where} is {limit:g} jobs per second, and {burst:g} at once. "
        self.is_too_large = burst < jobs  # this call would be refused at any time
        if self.is_too_large:
            said += f"A call with {jobs} jobs is always more than that. Nothing was written. Send fewer jobs per call."
        else:
            said += f"Nothing was written. Enqueue again in {retry_after_s:.1f} s, or ask an operator for more."
        super().__init__("enqueue_rate", where, int(limit), int(limit), said if where else "")
        self.burst = burst
        self.retry_after_s = retry_after_s


class SpillRefused(ServiceUnavailable):
    """Jobs that do not fit into Valkey could not be kept in PostgreSQL and were refused."""

    def __init__(self, message: str | None = None, accepted: Sequence[bool] = ()) -> None:
        super().__init__(message)
        self.accepted = accepted  # for each job of the call: it was accepted, and will run


class ColdFull(HeadraceError):
    """The queue holds as many jobs, or bytes, as PostgreSQL may hold of it (cold.max_items, cold.max_bytes)."""


class MoverFenced(HeadraceError):
    """Another process moves the jobs of this shard now. Nothing was written."""


class UnknownQueue(HeadraceError):
    """There is no such queue. A queue comes into being with its first job."""


class UnknownJob(HeadraceError):
    """There is no such job: it never was there, was cancelled or expired, or is done."""


class JobNotWaiting(HeadraceError):
    """Only a job that waits can be cancelled. The job was left as it is."""


class StreamsUnavailable(QueueUnavailable):
    """The server of the streams does not answer. Whether the last command was applied is unknown; a job that is
    published again may be there twice."""


class NoSuchGroup(HeadraceError):
    """There is no such stream, or it has no such group. Nothing was changed."""


class NotAStream(HeadraceError):
    """The key does not hold a stream. Nothing was changed."""


class StreamFull(HeadraceError):
    """The stream holds as many entries as it may (streams.hard_maxlen), and none of them is done with. Nothing was
    written. Publish again when its workers have caught up."""


class SeveralGroups(HeadraceError):
    """The stream has other groups, and each of them would run the jobs again. Nothing was changed."""


class MemoryFull(HeadraceError):
    """Valkey has reached its maxmemory and accepts no new jobs; workers go on. Nothing was written. Give it more
    memory, or try again when the backlog is smaller."""


class LeaseLost(HeadraceError):
    """The job's lease is no longer ours: another worker may hold it. The result was not applied."""


class ShardMismatch(HeadraceError):
    """The queue was created with another number of shards."""

    exit_code = 3


class EmbeddedError(HeadraceError):
    """An embedded server could not be started, or died."""

    exit_code = 4


class PortTaken(EmbeddedError):
    """A port named in the settings is in use by another process."""


class DataDirectoryError(EmbeddedError):
    """The data directory cannot be used."""

    exit_code = 5


class JavaNotFound(EmbeddedError):
    """Spark needs Java 17 or newer and none was found."""


class MigrationError(HeadraceError):
    """A schema migration could not be applied."""


class InvalidPeriod(HeadraceError):
    """A period or window cannot be answered as asked."""


class SpoolError(HeadraceError):
    """The spool could not do what was asked."""


class SpoolBusy(SpoolError):
    """Another process has this spool open. Nothing was touched; stop that process, or use another directory."""

    exit_code = 5


class SpoolFull(SpoolError):
    """The spool holds as many records or bytes as it may, and none left in time. The record was not accepted; put it
    again when the destination has caught up."""


class SpoolDiskFull(SpoolFull):
    """The spool's disk is full. The record was not accepted; what was accepted before is kept and goes on being
    delivered. Free some space and put it again."""


class SpoolWriteFailed(SpoolError):
    """The spool's disk could not write or sync. The record was not accepted; what was accepted before is kept. Look at
    the disk, then put it again."""


class SpoolReadFailed(SpoolError):
    """The spool's disk, or the system, could not read a record. It is kept, and comes again. Look at the disk and at
    the number of open files."""


class SpoolFormatError(SpoolError):
    """The spool's directory holds files of a newer version. Nothing was touched; use that version."""

    exit_code = 5


class SpoolClosed(SpoolError):
    """The spool was closed. Nothing was done."""


class RecordTooLarge(SpoolError):
    """The record is larger than the spool accepts. Nothing was written; cut it into smaller ones."""


class UnknownRecord(SpoolError):
    """No such record is in flight: it was never leased, or is finished already. Nothing was changed."""
