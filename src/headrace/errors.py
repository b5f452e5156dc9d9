"""Everything Headrace raises on purpose.

One root, one class per failure. The docstring of a class is its default message, so an error
that is raised without words still says what happened. A message tells what happened, what was
kept, and what to do next. Imports nothing but the standard library.
"""

from __future__ import annotations

import inspect


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


class QueueClosed(HeadraceError):
    """The queue is closed: it accepts no jobs until somebody opens it again. Nothing was written."""


class UnknownQueue(HeadraceError):
    """There is no such queue. A queue comes into being with its first job."""


class UnknownJob(HeadraceError):
    """There is no such job: it never was there, was cancelled or expired, or is done."""


class JobNotWaiting(HeadraceError):
    """Only a job that waits can be cancelled. The job was left as it is."""


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
