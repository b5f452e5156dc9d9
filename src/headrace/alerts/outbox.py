"""Sends what waits in the outbox: per channel in order, one at a time. A tenant has as many sends under way as
`OutboxOptions` allows, so that slow channels delay messages of their own tenant only.

A message is noted as delivered after its receiver took it. A process that dies in between leaves it to be sent again,
with the same id. A channel that fails is tried again later and later; until then its messages wait behind each other,
so that "resolved" never overtakes "firing". A message that the receiver rejects permanently is given up after three
tries, and the next one is tried at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Event, Lock
from typing import Any

from headrace.alerts.messages import Message, message_of
from headrace.alerts.queries import QUERIES
from headrace.alerts.senders import SendOptions, send
from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.model.tenant_slots import SlotLimits, TenantSlots
from headrace.postgres.connect import Pool, class_row, connection
from headrace.webhook.post import Rejected

log = logging.getLogger(__name__)

Send = Callable[[str, dict[str, Any], Message, str], str | None]

MAX_ERROR = 500

SLOTS = SlotLimits(environment=6, organisation=8, total=64)
FAILING_SLOTS = SlotLimits(environment=2, organisation=3, total=16)
"""Channels that failed before have slots of their own, so that those that hang leave the others alone."""


@dataclass(frozen=True)
class OutboxOptions:
    first_wait_s: float = 5.0  # after a failure; doubles with each in a row
    longest_wait_s: float = 900.0
    give_up_s: float = 3 * 86_400.0
    rejections: int = 3  # tries after which a message that is rejected permanently is given up
    slots: SlotLimits = SLOTS  # for channels that work
    failing_slots: SlotLimits = FAILING_SLOTS


@dataclass(frozen=True)
class Due:
    seq: int
    id: str
    message: dict[str, Any]
    attempts: int
    channel_id: str
    org: str
    project: str
    env: str
    type: str
    config: dict[str, Any] = field(repr=False)
    failures: int
    age_s: float

    @property
    def environment(self) -> EnvRef:
        return EnvRef(self.org, self.project, self.env)


class _Lane:
    """Threads for sending, and which tenants use them."""

    def __init__(self, limits: SlotLimits, name: str) -> None:
        self.slots = TenantSlots(limits)
        self.threads = ThreadPoolExecutor(limits.total, name)


class Outbox:
    def __init__(self, pool: Pool, send_options: SendOptions, options: OutboxOptions | None = None) -> None:
        self._pool = pool
        self._options = options or OutboxOptions()
        self._send: Send = lambda kind, config, message, org: send(kind, config, message, send_options, org)
        self._working = _Lane(self._options.slots, "alerts-send")
        self._failing = _Lane(self._options.failing_slots, "alerts-retry")
        self._in_hand: dict[str, Future[None]] = {}
        self._lock = Lock()
        self.done = Event()  # something was sent, or failed: there may be more to do

    def run_once(self) -> int:
        """Begin to send what is due, oldest first, as far as tenants have slots; returns how many messages."""
        with connection(self._pool) as conn:
            with self._lock:
                in_hand = list(self._in_hand)
            cursor = conn.cursor(row_factory=class_row(Due))
            due = cursor.execute(QUERIES["list_due_messages"], {"in_flight": in_hand}).fetchall()
        return sum(self._begin(each) for each in sorted(due, key=attrgetter("seq")))

    def _begin(self, due: Due) -> bool:
        lane = self._failing if due.failures else self._working
        if not lane.slots.take(due.environment):
            return False
        with self._lock:
            self._in_hand[due.channel_id] = lane.threads.submit(self._deliver, due, lane.slots)
        return True

    def settle(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        with self._lock:
            under_way = list(self._in_hand.values())
        wait_for(under_way, timeout_s)

    def close(self) -> None:
        """What is under way ends by its own time limit; what has not begun is sent after the next start."""
        for lane in (self._working, self._failing):
            lane.threads.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, due: Due, slots: TenantSlots) -> None:
        try:
            self._try(due)
        except HeadraceError as error:  # PostgreSQL is away: it will be sent again, with the same id
            log.warning("What became of a message could not be noted. %s", error, extra={"action": "note_failed"})
        finally:
            with self._lock:
                self._in_hand.pop(due.channel_id, None)
            slots.release(due.environment)
            self.done.set()

    def _try(self, due: Due) -> None:
        try:
            note = self._send(due.type, due.config, message_of(due.message), due.org)
        except Exception as error:  # whatever a channel does, it is this channel's trouble alone
            self._note_failed(due, error)
        else:
            if note:
                log.warning("channel %s: %s", due.channel_id, note, extra={"action": "message_partly_delivered"})
            noted = {"seq": due.seq, "channel_id": due.channel_id, "note": _clean(note) if note else None}
            with connection(self._pool) as conn:
                conn.execute(QUERIES["mark_delivered"], noted)

    def _note_failed(self, due: Due, error: Exception) -> None:
        said = _clean(str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}")
        rejected = isinstance(error, Rejected)
        given_up = due.age_s > self._options.give_up_s or (rejected and due.attempts + 1 >= self._options.rejections)
        log.warning(
            "A message could not be sent to channel %s%s. %s",
            due.channel_id,
            " and is given up" if given_up else "",
            said,
            extra={"action": "message_given_up" if given_up else "message_not_taken"},
        )
        # Rejections are counted per message: the next message may be one that the receiver takes.
        before = due.attempts if rejected else due.failures
        wait_s = min(self._options.first_wait_s * 2 ** min(before, 20), self._options.longest_wait_s)
        wait_s = 0.0 if rejected and given_up else wait_s
        noted = {"seq": due.seq, "channel_id": due.channel_id, "error": said, "given_up": given_up}
        with connection(self._pool) as conn:
            conn.execute(QUERIES["mark_failed"], {**noted, "wait_s": wait_s})


def _clean(text: str) -> str:
    """Return what PostgreSQL can keep of a receiver's words."""
    return text[:MAX_ERROR].replace("\0", "")
