"""The protocol of a destination, and the four ways in which a send can fail.

A new destination is one class: `prepare` does the CPU-bound work (decode, split, compress), `send` the I/O, and both
raise one of the errors below. The exporter does the rest: retries, backoff, circuit breaker, splitting, dead letters. A
destination must use timeouts: a `send` without one can block a worker forever.

Every error states whether the outcome is *unknown*, that is, whether the destination may have applied the data (after a
timeout, or if the connection was lost before the response). A record with an unknown outcome is sent again unchanged,
never split differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

from headrace.errors import HeadraceError
from headrace.spool.record import NewRecord, SpoolRecord


class SendError(HeadraceError):
    """The destination did not accept a record."""

    kind: ClassVar[str] = "retryable"  # the label `error_type` in metrics
    is_outage = False  # True if the destination is down, which is what the circuit breaker counts

    def __init__(
        self,
        message: str | None = None,
        *,
        outcome_unknown: bool = False,
        retry_after_s: float | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        self.retry_after_s = retry_after_s
        self.label = kind or self.kind


class RetryableSendError(SendError):
    """The destination could not accept the record now. The record is kept and sent again."""

    def __init__(
        self,
        message: str | None = None,
        *,
        outcome_unknown: bool = False,
        retry_after_s: float | None = None,
        kind: str | None = None,
        refused: bool = False,  # the destination responded and asked to wait (429): busy, not down
    ) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown, retry_after_s=retry_after_s, kind=kind)
        self.is_outage = not refused


class PermanentSendError(SendError):
    """The record itself is invalid: it will never be accepted and moves to the dead letters."""

    kind = "bad_data"


class TooLargeSendError(SendError):
    """The destination refused the record because of its size, without applying it (a plain 413)."""

    kind = "too_large"


class AuthSendError(SendError):
    """The destination rejected the credentials. The record is fine: it is kept and sent again."""

    kind = "auth"


@dataclass(frozen=True)
class SendBatch:
    """The content of one request, applied atomically. `token` lets the destination recognise a repetition."""

    body: Any  # in the destination's own format
    token: str


class SendOrder(Enum):
    """When a record may be sent, relative to records that were put before it."""

    ANY = "any"
    AFTER_EARLIER = "after_earlier"  # when all earlier records are finished, except others of this order
    IN_SEQUENCE = "in_sequence"  # as AFTER_EARLIER, and later records of both these orders wait for it


class Destination(Protocol):
    @property
    def name(self) -> str:
        """Name in logs and in the metric label `destination`."""
        ...

    @property
    def dedup_window_blocks(self) -> int | None:
        """Number of newest blocks among which the destination recognises a repeated token (a batch is one block); None
        if it does not deduplicate."""
        ...

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        """Return the record as batches; an empty sequence if there is nothing to send. The same record must give the
        same batches with the same tokens in any process, or a retry is not recognised."""
        ...

    def send(self, batch: SendBatch) -> None:
        """Send a batch; return when the destination has stored it durably. Raises SendError."""
        ...

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        """Return records that replace this one, because batch number `refused` was too large: the other batches
        unchanged, with their own tokens (some may have been applied), and this batch split. Empty if it cannot be split
        further."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class OrderedDestination(Destination, Protocol):
    """A destination of which some records must not arrive before earlier ones, however many workers send."""

    def get_order(self, record: SpoolRecord) -> SendOrder:
        """Return when the record may be sent. Must be the same for the same record in any process."""
        ...
