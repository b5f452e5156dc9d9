"""Live state as server-sent events: a snapshot, then what changed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from headrace.api.auth import Caller, SignedIn
from headrace.api.feeds import Feed, Reading
from headrace.api.operating import Op, Operating
from headrace.api.queue_documents import live
from headrace.api.within import Where, Within
from headrace.history.presenter import iso

router = APIRouter(prefix="/api/v1", tags=["queues"])

CHECK_S = 1.0
"""How often a stream looks whether its key and its session are still valid."""
HEARTBEAT_S = 15.0
SEND_S = 30.0
"""A client that takes nothing for this long is gone."""
LIFE_S = 3600.0
"""Then the client asks again, and so shows its key again."""
RETRY_MS = 2000

EXAMPLE = (
    f"retry: {RETRY_MS}\n\n"
    'id: 1\nevent: snapshot\ndata: {"queues": […], "truncated": false, "timestamp": "2026-01-31T12:00:03.638Z"}\n\n'
    'id: 2\nevent: change\ndata: {"queues": […], "gone": [], "timestamp": "2026-01-31T12:00:04.640Z"}\n\n'
    ": heartbeat\n\n"
)


class EventStream(StreamingResponse):
    """Listens from before the first byte until the client has gone, so that nothing is held for clients that are not
    there."""

    def __init__(self, op: Operating, where: Within, by: Caller) -> None:
        # The type is not said at the class: OpenAPI would take it for the type of this route's problems too.
        super().__init__(_nothing(), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._op = op
        self._where = where
        self._by = by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient_send(message: Message) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)

        op, where = self._op, self._where
        async with op.hub.listen(where, self._by.key_id, lambda: op.states(where)) as feed:
            first = await feed.newer(0)
            if first.error is not None:
                raise first.error
            self.body_iterator = self._events(feed, first)
            try:
                await super().__call__(scope, receive, patient_send)
            except TimeoutError:
                pass  # whoever reads nothing is not told why it ended

    async def _events(self, feed: Feed, told: Reading) -> AsyncGenerator[bytes]:
        began = said = time.monotonic()
        yield f"retry: {RETRY_MS}\n\n".encode() + self._snapshot(told)
        while time.monotonic() - began < LIFE_S:
            try:
                async with asyncio.timeout(CHECK_S):
                    newest = await feed.newer(told.number)
            except TimeoutError:
                newest = told
            if not self._op.to.keys.is_live(self._by):
                yield event("end", {"detail": "The key or the session is not valid any more. Sign in again."})
                return
            if newest is not told:
                yield self._news(told, newest)
                told, said = newest, time.monotonic()
            elif time.monotonic() - said >= HEARTBEAT_S:
                yield b": heartbeat\n\n"
                said = time.monotonic()

    def _snapshot(self, reading: Reading) -> bytes:
        now_ms = self._op.to.now_ms()
        queues = [live(state, now_ms).model_dump() for state in reading.states.values()]
        body = {"queues": queues, "truncated": reading.truncated, "timestamp": iso(now_ms)}
        return event("snapshot", body, reading.number)

    def _news(self, before: Reading, newest: Reading) -> bytes:
        if newest.error is not None:
            detail = "The live state cannot be read now: Valkey does not answer. This goes on when it does."
            return event("unavailable", {"detail": detail}, newest.number)
        now_ms = self._op.to.now_ms()
        body = {
            "queues": [live(state, now_ms).model_dump() for state in newest.changed_since(before)],
            "gone": [vars(ref) for ref in newest.gone_since(before)],
            "timestamp": iso(now_ms),
        }
        return event("change", body, newest.number)


@router.get(
    "/stream",
    response_class=EventStream,
    status_code=200,
    responses={
        200: {
            "description": "Events, until the client closes the connection or the key ends.",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}},
        }
    },
)
async def stream_queues(by: SignedIn, where: Where, op: Op) -> EventStream:
    """Live state as server-sent events.

    First `snapshot`, with the queues as `GET /queues` shows them (5,000 at most); then `change` with those that are not
    as they were, not more than once a second; `unavailable` while Valkey does not answer; `end` when the key is
    revoked. A comment comes every 15 s when there is nothing else. A stream ends after an hour, and a client that comes
    again gets a snapshot. Streams are bounded, per key and in all: 429.
    """
    return EventStream(op, where, by)


def event(name: str, body: dict[str, Any], number: int | None = None) -> bytes:
    """JSON in one line: an event's data ends at a line break."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(body)}\n\n".encode()


async def _nothing() -> AsyncGenerator[bytes]:
    """Until there is somebody to tell."""
    for chunk in ():
        yield chunk
