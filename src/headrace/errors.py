"""Errors that Headrace raises on purpose: one root, one class per failure.

The docstring of a class is its default message. A message states what happened, what was kept, and what to do next.
Imports nothing but the standard library.
"""

from __future__ import annotations

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
    """A library of an optional extra is not installed."""

    exit_code = 4


class InvalidName(HeadraceError):
    """A name is empty, longer than 128 bytes, or contains a control character. Nothing was written."""


class InvalidJob(HeadraceError):
    """A field of a job is out of range. Nothing was written."""


class InvalidLimit(HeadraceError):
    """A limit is out of range. Nothing was changed."""


class ServiceUnavailable(HeadraceError):
    """A server that Headrace needs is not responding."""

    exit_code = 4


class QueueUnavailable(ServiceUnavailable):
    """Valkey is not responding. The last command may or may not have been applied. Retry with the same job id; an id is
    accepted only once."""


class NotPermitted(HeadraceError):
    """The Valkey user of this connection is not permitted to do this. `headrace acl` prints the rules that each role
    needs."""


class CheckpointMismatch(HeadraceError):
    """The pipeline's checkpoint and its spool do not belong together. Nothing was changed; see --from in `headrace
    pipeline --help`."""


class AnotherPipeline(HeadraceError):
    """Another pipeline reads these streams. Events that this one had not written to its spool were not counted."""


class ImpossibleEntry(HeadraceError):
    """A metric stream contains an entry with an id that no event can have."""


class SparkGone(ServiceUnavailable):
    """Spark's Java process ended. Nothing is lost: events that were read are in the spool, the others are in the
    streams. Start the pipeline again; if it ends again, give it more memory (pipeline.driver_memory)."""


class DatabaseUnavailable(ServiceUnavailable):
    """PostgreSQL is not responding or timed out. Nothing was written; stored data is unchanged. Retry; if the error
    persists, start PostgreSQL or check HEADRACE_POSTGRES_URL."""


class CommitUnclear(DatabaseUnavailable):
    """The connection to PostgreSQL was lost during COMMIT. Either everything was written or nothing. Check which, or
    retry with the same ids."""


class DatabaseFull(HeadraceError):
    """PostgreSQL has no disk space or memory left. Nothing was written; stored data is unchanged. Give it more, or
    retry when the backlog is smaller."""


class WrongDatabase(HeadraceError):
    """The queue's jobs wait in another PostgreSQL database than the one in postgres.url. Nothing was written. Correct
    postgres.url (HEADRACE_POSTGRES_URL); if PostgreSQL was replaced on purpose, run `headrace tiers adopt`."""


class DatabaseRestored(DatabaseUnavailable):
    """PostgreSQL was restored to an earlier point or replaced since this process last used it. Nothing was written.
    Cached ids were dropped. Retry."""


class SettingsNotRestored(HeadraceError):
    """Valkey restarted, failed over or lost its data, and limits and pauses are not yet restored from PostgreSQL. No
    job was dequeued. A worker or mover with PostgreSQL restores them."""


class QueueClosed(HeadraceError):
    """The queue is closed and accepts no jobs until it is reopened. Nothing was written."""


class QueueFull(HeadraceError):
    """The queue has reached its limit of jobs or bytes in Valkey, and this client has no PostgreSQL for the overflow.
    Nothing was written. Set postgres.url, raise the limit, or retry when the backlog is smaller."""


class DeadJobsFull(QueueFull):
    """The queue's dead jobs use up its limit of bytes in Valkey, and this client has no PostgreSQL to store them.
    Nothing was written. Redrive or remove dead jobs (`headrace redrive`, `headrace discard`), or set postgres.url."""


class QueueCold(HeadraceError):
    """The queue is in cold mode: new jobs must wait in PostgreSQL behind older ones, but this client has no PostgreSQL.
    Nothing was written. Set postgres.url."""


class QuotaExceeded(HeadraceError):
    """A quota that an operator has set is used up. Nothing was written."""

    def __init__(self, quota: str = "", where: str = "", limit: int = 0, used: int = 0, message: str = "") -> None:
        super().__init__(message or (self.describe(quota, where, limit, used) if quota else None))
        self.quota = quota  # name, such as warm_jobs
        self.where = where  # description of the tenant that the quota belongs to
        self.limit = limit
        self.used = used

    @staticmethod
    def describe(quota: str, where: str, limit: int, used: int) -> str:
        return (
            f"The quota {quota} of {where} is {limit}, and {used} are used. Nothing was written. Remove what is not "
            "needed, retry when jobs are done, or ask an operator to raise the quota (`headrace quotas`)."
        )


class EnqueueRateExceeded(QuotaExceeded):
    """Jobs are enqueued faster than the quota enqueue_rate allows. Nothing was written. Retry later."""

    def __init__(
        self, where: str = "", limit: float = 0, burst: float = 0, jobs: int = 0, retry_after_s: float = 1.0
    ) -> None:
        text = f"The quota enqueue_rate of {where} is {limit:g} jobs per second, and {burst:g} at once. "
        self.is_too_large = burst < jobs  # this call would be refused at any time
        if self.is_too_large:
            text += f"A call with {jobs} jobs always exceeds that. Nothing was written. Send fewer jobs per call."
        else:
            text += f"Nothing was written. Retry in {retry_after_s:.1f} s, or ask an operator to raise the quota."
        super().__init__("enqueue_rate", where, int(limit), int(limit), text if where else "")
        self.burst = burst
        self.retry_after_s = retry_after_s


class SpillRefused(ServiceUnavailable):
    """Jobs that did not fit into Valkey could not be stored in PostgreSQL and were refused."""

    def __init__(self, message: str | None = None, accepted: Sequence[bool] = ()) -> None:
        super().__init__(message)
        self.accepted = accepted  # for each job of the call: whether it was accepted and will run


class ColdFull(HeadraceError):
    """The queue has reached its limit of jobs or bytes in PostgreSQL (cold.max_items, cold.max_bytes)."""


class MoverFenced(HeadraceError):
    """Another mover has taken over this shard. Nothing was written."""


class UnknownQueue(HeadraceError):
    """Queue not found. A queue is created by its first job."""


class UnknownJob(HeadraceError):
    """Job not found: it never existed, was cancelled, removed or expired, or finished longer than queue.keep_done
    ago."""


class JobNotWaiting(HeadraceError):
    """Only a waiting job can be cancelled. The job was not changed."""


class StreamsUnavailable(QueueUnavailable):
    """The streams server is not responding. The last command may or may not have been applied; a job that is published
    again may exist twice."""


class NoSuchGroup(HeadraceError):
    """The stream does not exist or has no such group. Nothing was changed."""


class NotAStream(HeadraceError):
    """The key does not hold a stream. Nothing was changed."""


class StreamFull(HeadraceError):
    """The stream has reached streams.hard_maxlen entries, and none can be trimmed because a group still needs them.
    Nothing was written. Retry when the workers have caught up."""


class SeveralGroups(HeadraceError):
    """The stream has other groups, and each of them would run the jobs again. Nothing was changed."""


class MemoryFull(HeadraceError):
    """Valkey has reached its maxmemory and accepts no new jobs; workers continue. Nothing was written. Give it more
    memory, or retry when the backlog is smaller."""


class LeaseLost(HeadraceError):
    """The job's lease is no longer valid; another worker may be running the job. The result was not applied."""


class ShardMismatch(HeadraceError):
    """The queue was created with a different number of shards."""

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
    """Spark needs Java 17 or newer, and none was found."""


class MigrationError(HeadraceError):
    """A schema migration could not be applied."""


class InvalidPeriod(HeadraceError):
    """A period or window is invalid."""


class SpoolError(HeadraceError):
    """The spool operation failed."""


class SpoolBusy(SpoolError):
    """Another process has this spool open. Nothing was changed; stop that process, or use another directory."""

    exit_code = 5


class SpoolFull(SpoolError):
    """The spool is full and no record left it before the timeout. The record was not accepted. Retry when the
    destination has caught up."""


class SpoolDiskFull(SpoolFull):
    """The spool's disk is full. The record was not accepted; records accepted before are kept and still delivered. Free
    some space and retry."""


class SpoolWriteFailed(SpoolError):
    """The spool could not write or sync to disk. The record was not accepted; records accepted before are kept. Check
    the disk, then retry."""


class SpoolReadFailed(SpoolError):
    """A spool record could not be read. It is kept and will be retried. Check the disk and the open-file limit."""


class SpoolFormatError(SpoolError):
    """The spool's directory contains files of a newer version. Nothing was changed; use that version."""

    exit_code = 5


class SpoolClosed(SpoolError):
    """The spool was closed. Nothing was done."""


class RecordTooLarge(SpoolError):
    """The record is larger than the spool accepts. Nothing was written; split it into smaller records."""


class UnknownRecord(SpoolError):
    """The record is not in flight: it was never leased, or is already finished. Nothing was changed."""
