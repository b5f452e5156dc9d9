"""Routes for watched streams, as last measured by their watchers. The streams may be on other servers."""

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
    name: Annotated[str, Query(max_length=128, description="Only groups whose `queue` contains this text.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_STREAMS, description="Groups per page.")] = MAX_STREAMS,
    cursor: CursorText = None,
) -> WatchedStreamList:
    """List watched stream groups in the key's scope, as last measured. Reads Valkey only. Groups not measured for a day
    are removed."""
    after = CURSOR.place("streams", cursor)
    now_ms = clock_ms(to.valkey)
    refs = [] if where.nothing else seen_refs(to.valkey, to.shards, where.covers, where.prefix)
    matching = [ref for ref in refs if name in ref.queue]
    page, more = page_of(matching, _names, after, limit)
    return WatchedStreamList(
        streams=[stream_shown(seen, now_ms) for seen in read_seen(to.valkey, to.shards, page)],
        total=len(matching),
        next=CURSOR.text("streams", _names(page[-1])) if more else None,
        timestamp=iso(now_ms),
    )


@router.get("/{stream}/{group}")
def show_stream(stream: str, group: str, tenant: ReadTenant, to: To) -> WatchedStream:
    """Get one stream group, as last measured."""
    ref = queue_ref(tenant, watched(stream, group, **vars(tenant)).ref.queue)
    reports = [each for each in read_seen(to.valkey, to.shards, [ref]) if (each.stream, each.group) == (stream, group)]
    if not reports:
        raise Problem(
            404,
            f"Group {group[:128]!r} of stream {stream[:128]!r} is not watched. "
            "Start a watcher with `headrace streams watch`.",
        )
    return stream_shown(reports[0], clock_ms(to.valkey))


def _names(ref: QueueRef) -> tuple[str, str, str, str]:
    return ref.org, ref.project, ref.env, ref.queue
