"""What a destination is, and the four ways in which it can fail.

A new destination is one class: `prepare` does the work that needs a processor (decode, cut, compress), `send` the work
that waits for others, and both raise one of the errors below. The exporter does the rest: retries, backoff, breaker,
splitting, dead letters. A destination must bound its own waiting: a `send` without a timeout can hold a worker forever.

Every error says whether the fate of what was sent is *unclear*: the destination may have applied it (a timeout, a
connection that broke before the answer). Such a record is sent again as it is, never cut differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from headrace.errors import HeadraceError
from headrace.spool.record import NewRecord, Record


class SendError(HeadraceError):
    """A destination did not take a record."""

    kind: ClassVar[str] = "retryable"  # the label `error_type` in metrics

    def __init__(
        self,
        message: str | None = None,
        *,
        unclear: bool = False,
        retry_after_s: float | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.unclear = unclear
        self.retry_after_s = retry_after_s
        self.label = kind or self.kind

    @property
    def means_down(self) -> bool:
        """Whether it says that the destination is down, which is what the breaker counts."""
        return False


class Retryable(SendError):
    """The destination could not take the record now. It is kept and sent again."""

    def __init__(
        self,
        message: str | None = None,
        *,
        unclear: bool = False,
        retry_after_s: float | None = None,
        kind: str | None = None,
        refused: bool = False,  # it answered and asks for patience (429): busy, not down
    ) -> None:
        super().__init__(message, unclear=unclear, retry_after_s=retry_after_s, kind=kind)
        self._refused = refused

    @property
    def means_down(self) -> bool:
        return not self._refused


class Permanent(SendError):
    """The record itself is bad: it will never be taken, and goes to the dead letters."""

    kind = "permanent"


class TooLarge(SendError):
    """The destination refused the record for its size, before it read it (a clean 413)."""

    kind = "too_large"


class Auth(SendError):
    """The destination does not accept our credentials. Nothing is wrong with the record: it is kept and sent again."""

    kind = "auth"


@dataclass(frozen=True)
class Batch:
    """What goes over in one request and is applied as a whole; `token` is how the destination knows it again."""

    body: Any  # the destination's own
    token: str
    bytes: int


class Destination(Protocol):
    @property
    def name(self) -> str:
        """For logs and the label `destination` of metrics."""
        ...

    @property
    def window_blocks(self) -> int | None:
        """Among how many of its newest blocks a repeated token is recognised (a batch is one); None: it never is."""
        ...

    def prepare(self, record: Record) -> Sequence[Batch]:
        """The record in batches. The same record must give the same batches with the same tokens, in any process: a
        retry is only recognised if it is the same. Nothing to send is an empty sequence."""
        ...

    def send(self, batch: Batch) -> None:
        """Returns when the destination has it for good."""
        ...

    def split(self, record: Record, batches: Sequence[Batch], refused: int) -> Sequence[NewRecord]:
        """The record as several, because batch number `refused` was too large: the other batches as they are, with
        their own tokens (some may have been applied), and this one cut. Empty if it cannot be cut further."""
        ...

    def close(self) -> None: ...
