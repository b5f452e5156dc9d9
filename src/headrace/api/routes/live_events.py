"""Live queue state as server-sent events: a snapshot, then changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from headrace.api.access import Caller
from headrace.api.deps import CurrentCaller, EnvironmentFilterDep, ServicesDep
from headrace.api.environment_filter import EnvironmentFilter
from headrace.api.live_feed import FeedSnapshot, LiveFeed
from headrace.api.schemas.queues import present_live_queue
from headrace.api.services import Services
from headrace.model.time import format_iso_ms

router = APIRouter(prefix="/api/v1", tags=["queues"])

CHECK_S = 1.0
"""Interval in seconds at which a stream checks that its key and session are still valid."""
HEARTBEAT_S = 15.0
SEND_TIMEOUT_S = 30.0
"""A client that receives nothing for this long is disconnected."""
MAX_STREAM_S = 3600.0
"""Maximum duration of a stream; the client then reconnects and authenticates again."""
RETRY_MS = 2000

EXAMPLE = (
    f"retry: {RETRY_MS}\n\n"
    'id: 1\nevent: snapshot\ndata: {"queues": […], "truncated": false, "timestamp": "2026-01-31T12:00:03.638Z"}\n\n'
    'id: 2\nevent: change\ndata: {"queues": […], "gone": [], "timestamp": "2026-01-31T12:00:04.640Z"}\n\n'
    ": heartbeat\n\n"
)


class EventStream(StreamingResponse):
    """Response that is subscribed to a feed from before its first byte until the client disconnects."""

    def __init__(self, services: Services, where: EnvironmentFilter, caller: Caller) -> None:
        # The body is set when the stream is subscribed. The media type is not a class attribute, because OpenAPI would
        # use it for this route's errors too.
        super().__init__((), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._services = services
        self._where = where
        self._by = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_timeout(message: Message) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        services, where = self._services, self._where
        async with services.feed_hub.subscribe(where, self._by.key_id, lambda: services.list_states(where)) as feed:
            first = await feed.wait_for_newer(0)
            if first.error is not None:
                raise first.error
            self.body_iterator = self._iterate_events(feed, first)
            try:
                await super().__call__(scope, receive, send_with_timeout)
            except TimeoutError:
                pass  # the client does not read, so there is no point in sending a reason

    async def _iterate_events(self, feed: LiveFeed, sent: FeedSnapshot) -> AsyncGenerator[bytes]:
        began = sent_at = time.monotonic()
        yield f"retry: {RETRY_MS}\n\n".encode() + self._make_snapshot_event(sent)
        while time.monotonic() - began < MAX_STREAM_S:
            try:
                async with asyncio.timeout(CHECK_S):
                    newest = await feed.wait_for_newer(sent.number)
            except TimeoutError:
                newest = sent
            if not self._services.key_ring.is_live(self._by):
                yield format_event("end", {"detail": "The key or session is no longer valid. Sign in again."})
                return
            if newest is not sent:
                yield self._make_change_event(sent, newest)
                sent, sent_at = newest, time.monotonic()
            elif time.monotonic() - sent_at >= HEARTBEAT_S:
                yield b": heartbeat\n\n"
                sent_at = time.monotonic()

    def _make_snapshot_event(self, reading: FeedSnapshot) -> bytes:
        now_ms = self._services.now_ms()
        queues = [present_live_queue(state, now_ms).model_dump() for state in reading.states.values()]
        body = {"queues": queues, "truncated": reading.truncated, "timestamp": format_iso_ms(now_ms)}
        return format_event("snapshot", body, reading.number)

    def _make_change_event(self, before: FeedSnapshot, newest: FeedSnapshot) -> bytes:
        if newest.error is not None:
            detail = "Live state is unavailable: Valkey does not answer. Updates resume when it does."
            return format_event("unavailable", {"detail": detail}, newest.number)
        now_ms = self._services.now_ms()
        body = {
            "queues": [present_live_queue(state, now_ms).model_dump() for state in newest.list_changed_since(before)],
            "gone": [vars(ref) for ref in newest.list_gone_since(before)],
            "timestamp": format_iso_ms(now_ms),
        }
        return format_event("change", body, newest.number)


@router.get(
    "/stream",
    response_class=EventStream,
    status_code=200,
    responses={
        200: {
            "description": "Events, until the client disconnects or the key becomes invalid.",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}},
        }
    },
)
async def stream_queues(caller: CurrentCaller, where: EnvironmentFilterDep, services: ServicesDep) -> EventStream:
    """Stream live queue state as server-sent events.

    First `snapshot` with the queues as in `GET /queues` (at most 5,000); then `change` with changed queues, at most
    once a second; `unavailable` while Valkey does not answer; `end` when the key is revoked. A comment is sent every
    15 s if nothing else is. A stream ends after an hour, and a client that reconnects gets a new snapshot. Open streams
    are limited per key and in total: 429.
    """
    return EventStream(services, where, caller)


def format_event(name: str, body: dict[str, Any], number: int | None = None) -> bytes:
    """Format a server-sent event. The JSON is a single line, because a line break ends the data."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(body)}\n\n".encode()
