"""Watched streams as their watchers last saw them. Nothing is measured here: the streams may be anywhere."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from headrace.api.auth import ReadTenant
from headrace.api.pages import Cursor, CursorText, page_of
from headrace.api.problems import Problem
from headrace.api.routes.live import queue_ref
from headrace.api.segments import SegmentRoute
from headrace.api.services import Services, services
from headrace.api.stream_documents import WatchedStream, WatchedStreamList, stream_shown
from headrace.api.within import Where
from headrace.history.presenter import iso
from headrace.model.names import QueueRef
from headrace.streams.sight import clock_ms, read_seen, seen_refs
from headrace.streams.watch import watched

router = APIRouter(prefix="/api/v1/streams", tags=["streams"], route_class=SegmentRoute)

To = Annotated[Services, Depends(services)]

MAX_STREAMS = 100

CURSOR: Cursor[tuple[str, str, str, str]] = Cursor(tuple[str, str, str, str])


@router.get("")
def list_streams(
    where: Where,
    to: To,
    name: Annotated[str, Query(max_length=128, description="Those whose `queue` contains this.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_STREAMS, description="Groups per page.")] = MAX_STREAMS,
    cursor: CursorText = None,
) -> WatchedStreamList:
    """The groups of streams that are watched where the key reaches, as they were last seen. Needs Valkey alone. A
    group that no watcher looked at for a day is forgotten."""
    after = CURSOR.place("streams", cursor)
    now_ms = clock_ms(to.valkey)
    found = [] if where.nothing else seen_refs(to.valkey, to.shards, where.covers, where.prefix)
    matching = [ref for ref in found if name in ref.queue]
    page, more = page_of(matching, _names, after, limit)
    return WatchedStreamList(
        streams=[stream_shown(seen, now_ms) for seen in read_seen(to.valkey, to.shards, page)],
        total=len(matching),
        next=CURSOR.text("streams", _names(page[-1])) if more else None,
        timestamp=iso(now_ms),
    )


@router.get("/{stream}/{group}")
def show_stream(stream: str, group: str, tenant: ReadTenant, to: To) -> WatchedStream:
    """One group of a stream, as it was last seen."""
    ref = queue_ref(tenant, watched(stream, group, **vars(tenant)).ref.queue)
    found = [seen for seen in read_seen(to.valkey, to.shards, [ref]) if (seen.stream, seen.group) == (stream, group)]
    if not found:
        raise Problem(
            404,
            f"The group {group[:128]!r} of the stream {stream[:128]!r} is not watched here. "
            "`headrace streams watch` watches one.",
        )
    return stream_shown(found[0], clock_ms(to.valkey))


def _names(ref: QueueRef) -> tuple[str, str, str, str]:
    return ref.org, ref.project, ref.env, ref.queue
