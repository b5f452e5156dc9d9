"""Routes for watched streams, as last measured by their watchers. The streams may be on other servers."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated

from fastapi import APIRouter, Query

from headrace.api.deps import CursorText, EnvironmentFilterDep, ReadTenant, ServicesDep, make_page_limit
from headrace.api.pagination import CursorCodec, paginate
from headrace.api.problems import Problem
from headrace.api.raw_path import RawPathRoute
from headrace.api.routes.live import make_queue_ref
from headrace.api.schemas.streams import WatchedStream, WatchedStreamList, present_stream
from headrace.model.time import format_iso_ms
from headrace.streams.group_status import list_reported_groups, read_reports
from headrace.streams.watcher import make_watched_group
from headrace.valkey.connect import read_server_time_ms

router = APIRouter(prefix="/api/v1/streams", tags=["streams"], route_class=RawPathRoute)

MAX_STREAMS = 100

CURSOR: CursorCodec[tuple[str, str, str, str]] = CursorCodec(tuple[str, str, str, str])


@router.get("")
def list_streams(
    where: EnvironmentFilterDep,
    services: ServicesDep,
    name: Annotated[str, Query(max_length=128, description="Only groups whose `queue` contains this text.")] = "",
    limit: Annotated[int, make_page_limit("Groups", MAX_STREAMS)] = MAX_STREAMS,
    cursor: CursorText = None,
) -> WatchedStreamList:
    """List watched stream groups in the key's scope, as last measured. Reads Valkey only. Groups not measured for a day
    are removed."""
    after = CURSOR.decode("streams", cursor)
    now_ms = read_server_time_ms(services.valkey)
    refs = [] if where.nothing else list_reported_groups(services.valkey, services.shards, where.covers, where.prefix)
    matching = [ref for ref in refs if name in ref.queue]
    page, more = paginate(matching, astuple, after, limit)
    return WatchedStreamList(
        streams=[present_stream(report, now_ms) for report in read_reports(services.valkey, services.shards, page)],
        total=len(matching),
        next=CURSOR.encode("streams", astuple(page[-1])) if more else None,
        timestamp=format_iso_ms(now_ms),
    )


@router.get("/{stream}/{group}")
def show_stream(stream: str, group: str, tenant: ReadTenant, services: ServicesDep) -> WatchedStream:
    """Get one stream group, as last measured."""
    ref = make_queue_ref(tenant, make_watched_group(stream, group, **vars(tenant)).ref.queue)
    reports = [
        each
        for each in read_reports(services.valkey, services.shards, [ref])
        if (each.stream, each.group) == (stream, group)
    ]
    if not reports:
        raise Problem(
            404,
            f"Group {group[:128]!r} of stream {stream[:128]!r} is not watched. "
            "Start a watcher with `headrace streams watch`.",
        )
    return present_stream(reports[0], read_server_time_ms(services.valkey))
