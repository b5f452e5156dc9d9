"""Scale workers run by another system: send the wanted number as a signed POST.

The number is absolute, so only the newest matters. A failed send is retried until a newer number replaces it, and the
current number is repeated every `repeat_s`.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from headrace.errors import HeadraceError
from headrace.runtime.backoff import Backoff
from headrace.webhook.guard import PUBLIC_ONLY, AddressPolicy
from headrace.webhook.signing import post_signed

log = logging.getLogger(__name__)

SEND_BACKOFF = Backoff(base_s=1.0, longest_s=60.0)


@dataclass(frozen=True)
class WebhookReceiver:
    url: str
    secret: str
    timeout_s: float = 10.0
    policy: AddressPolicy = PUBLIC_ONLY
    repeat_s: float = 60.0


@dataclass(frozen=True)
class _ScaleRequest:
    id: str  # the same for each attempt
    wanted: int
    sentence: str
    at_ms: int


class WebhookWorkers:
    """Workers of one type that a webhook receiver scales. Not thread-safe; requests are sent by a thread of its own,
    so that callers do not wait for the receiver."""

    def __init__(self, name: str, receiver: WebhookReceiver) -> None:
        self._name = name
        self._receiver = receiver
        self._sender = ThreadPoolExecutor(1, f"autoscale-{name}")
        self._request: _ScaleRequest | None = None
        self._sending: tuple[_ScaleRequest, Future[None]] | None = None
        self._failures = 0
        self._due = 0.0

    def count(self) -> None:
        """Return None: unknown, these workers run elsewhere."""

    def scale(self, wanted: int, sentence: str = "") -> None:
        if self._request is None or self._request.wanted != wanted:
            self._request = _ScaleRequest(f"scale_{uuid4().hex}", wanted, sentence, time.time_ns() // 1_000_000)
            self._failures, self._due = 0, time.monotonic()
        self.reconcile()

    def reconcile(self) -> None:
        """Send the wanted number if a send, retry or repetition is due."""
        self._check_last_send()
        if self._request is not None and self._sending is None and time.monotonic() >= self._due:
            self._sending = (self._request, self._sender.submit(self._post, self._request))

    def stand_down(self) -> None:
        """Stop sending: another process leads and sends instead."""
        self._request = None

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop sending and wait for the send in progress. The workers keep running."""
        self._request = None
        self._sender.shutdown(wait=True)

    def _check_last_send(self) -> None:
        if self._sending is None or not self._sending[1].done():
            return
        request, sent = self._sending
        self._sending = None
        if (error := sent.exception()) is None:
            self._failures = 0
            wait_s = self._receiver.repeat_s
        else:
            self._failures += 1
            wait_s = SEND_BACKOFF.full_delay_s(self._failures)
            log.warning(
                "could not notify the webhook of %s (wanted %d): %s; retrying in %.0f s",
                *(self._name, request.wanted, error, wait_s),
                extra={"action": "not_told"},
            )
        if request is self._request:  # otherwise a newer number is already due
            self._due = time.monotonic() + wait_s
        if error is not None and not isinstance(error, HeadraceError):
            raise error

    def _post(self, request: _ScaleRequest) -> None:
        receiver = self._receiver
        document: dict[str, Any] = {
            **{"id": request.id, "type": self._name, "wanted": request.wanted},
            **{"sentence": request.sentence, "at_ms": request.at_ms},
        }
        post_signed(
            receiver.url,
            receiver.secret,
            request.id,
            document,
            timeout_s=receiver.timeout_s,
            policy=receiver.policy,
        )
