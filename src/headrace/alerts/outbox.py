"""Deliver outbox messages: in order and one at a time per channel, channels independently.

`OutboxOptions` limits concurrent sends per tenant, so that slow channels delay only their own tenant.

At-least-once: a message is marked delivered after the receiver accepted it, and a retry carries the same id. A failing
channel backs off exponentially and keeps its order, so "resolved" never precedes "firing". A message that the receiver
rejects permanently is given up after three attempts, and the next one is sent at once.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Event, Lock
from typing import Any

from headrace.alerts.messages import message_from_document
from headrace.alerts.queries import QUERIES
from headrace.alerts.rules import EnvironmentRecord
from headrace.alerts.senders import SendOptions, send
from headrace.errors import HeadraceError
from headrace.model.tenant_slots import SlotLimits, TenantSlots
from headrace.postgres.connect import Pool, class_row, transaction
from headrace.runtime.backoff import Backoff
from headrace.webhook.post import DeliveryRejected

log = logging.getLogger(__name__)

MAX_ERROR = 500

SLOTS = SlotLimits(environment=6, organisation=8, total=64)
FAILING_SLOTS = SlotLimits(environment=2, organisation=3, total=16)
"""Failing channels have slots of their own, so that hanging channels do not block working ones."""


@dataclass(frozen=True)
class OutboxOptions:
    backoff: Backoff = field(default=Backoff(base_s=5.0, longest_s=900.0))
    give_up_s: float = 3 * 86_400.0
    rejections: int = 3  # attempts after which a permanently rejected message is given up
    slots: SlotLimits = SLOTS  # for working channels
    failing_slots: SlotLimits = FAILING_SLOTS


@dataclass(frozen=True)
class DueMessage(EnvironmentRecord):
    seq: int
    message: dict[str, Any]
    attempts: int
    channel_id: str
    type: str
    config: dict[str, Any] = field(repr=False)
    failures: int
    age_s: float


class _SendLane:
    """Threads for sending, and the slots that tenants occupy in them."""

    def __init__(self, limits: SlotLimits, name: str) -> None:
        self.slots = TenantSlots(limits)
        self.threads = ThreadPoolExecutor(limits.total, name)


class Outbox:
    def __init__(self, pool: Pool, send_options: SendOptions, options: OutboxOptions | None = None) -> None:
        self._pool = pool
        self._options = options or OutboxOptions()
        self._send_options = send_options
        self._working = _SendLane(self._options.slots, "alerts-send")
        self._failing = _SendLane(self._options.failing_slots, "alerts-retry")
        self._in_flight: dict[str, Future[None]] = {}
        self._lock = Lock()
        self.send_finished = Event()  # set when a send has succeeded or failed: more messages may be due

    def run_once(self) -> int:
        """Start sending due messages, oldest first, as far as tenants have free slots. Return how many were started."""
        with transaction(self._pool) as conn:
            with self._lock:
                in_hand = list(self._in_flight)
            cursor = conn.cursor(row_factory=class_row(DueMessage))
            due = cursor.execute(QUERIES["list_due_messages"], {"in_flight": in_hand}).fetchall()
        return sum(self._begin(each) for each in sorted(due, key=attrgetter("seq")))

    def _begin(self, due: DueMessage) -> bool:
        lane = self._failing if due.failures else self._working
        if not lane.slots.acquire(due.environment):
            return False
        with self._lock:
            self._in_flight[due.channel_id] = lane.threads.submit(self._deliver, due, lane.slots)
        return True

    def wait_idle(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the sends in progress."""
        with self._lock:
            under_way = list(self._in_flight.values())
        wait_for(under_way, timeout_s)

    def close(self) -> None:
        """Stop starting sends. Those in progress end by their own timeout; the rest is sent after the next start."""
        for lane in (self._working, self._failing):
            lane.threads.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, due: DueMessage, slots: TenantSlots) -> None:
        try:
            self._send_and_record(due)
        except HeadraceError as error:
            log.warning(
                "could not record a delivery result, the message will be sent again with the same id: %s",
                error,
                extra={"action": "note_failed"},
            )
        finally:
            with self._lock:
                self._in_flight.pop(due.channel_id, None)
            slots.release(due.environment)
            self.send_finished.set()

    def _send_and_record(self, due: DueMessage) -> None:
        try:
            note = send(due.type, due.config, message_from_document(due.message), self._send_options, due.org)
        except Exception as error:  # a failure of one channel must not affect the others
            self._record_failure(due, error)
        else:
            if note:
                log.warning("channel %s: %s", due.channel_id, note, extra={"action": "message_partly_delivered"})
            row = {"seq": due.seq, "channel_id": due.channel_id, "note": _remove_nul(note) if note else None}
            with transaction(self._pool) as conn:
                conn.execute(QUERIES["mark_delivered"], row)

    def _record_failure(self, due: DueMessage, error: Exception) -> None:
        text = _remove_nul(str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}")
        rejected = isinstance(error, DeliveryRejected)
        given_up = due.age_s > self._options.give_up_s or (rejected and due.attempts + 1 >= self._options.rejections)
        log.warning(
            "could not send a message to channel %s%s: %s",
            due.channel_id,
            ", giving up" if given_up else "",
            text,
            extra={"action": "message_given_up" if given_up else "message_not_taken"},
        )
        # Rejections count per message: the receiver may accept the next one.
        before = due.attempts if rejected else due.failures
        wait_s = 0.0 if rejected and given_up else self._options.backoff.full_delay_s(before + 1)
        row = {"seq": due.seq, "channel_id": due.channel_id, "error": text, "given_up": given_up}
        with transaction(self._pool) as conn:
            conn.execute(QUERIES["mark_failed"], {**row, "wait_s": wait_s})


def _remove_nul(text: str) -> str:
    """Truncate a receiver's text and remove NUL characters, which PostgreSQL cannot store."""
    return text[:MAX_ERROR].replace("\0", "")
