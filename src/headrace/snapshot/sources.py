"""Collect the families of a snapshot from Valkey, PostgreSQL and, if configured, ClickHouse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.model.names import QueueRef
from headrace.queue.client import read_shards
from headrace.queue.metrics_flag import read_metrics
from headrace.queue.server_memory import read_server_memory
from headrace.queue.state import read_limits, read_states
from headrace.snapshot import sql_family_reader as database
from headrace.snapshot.families import InvalidFamily, SnapshotFamily, refuse_duplicates
from headrace.snapshot.memory_families import MEMORY_FAMILIES, build_memory_families
from headrace.snapshot.queue_families import (
    GLOBAL_FAMILIES,
    QUEUE_FAMILIES,
    QueueMetricsInput,
    RecentHistograms,
    TenantLabelPolicy,
    build_queue_families,
)
from headrace.snapshot.quota_families import QUOTA_FAMILIES, read_quotas
from headrace.snapshot.sql_families import HEADRACE_PRESET, SqlFamily, check_unique_names, load_sql_families
from headrace.snapshot.stream_families import STREAM_FAMILIES, StreamDepthReader
from headrace.valkey.connect import Valkey
from headrace.warehouse.alert_samples import read_progress
from headrace.warehouse.connect import Client
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.sql import render_query

log = logging.getLogger(__name__)

RECENT_S = 300
SOURCE = {HEADRACE_PRESET: "valkey,postgres", "convoy": "postgres"}


@dataclass(frozen=True)
class SnapshotSourceOptions:
    shards: int | None = None  # verified if given; None: the number stored in Valkey
    postgres_url: str = ""
    source_url: str = ""  # database of the operator's families; empty: `postgres_url`
    query_timeout_s: float = 10.0
    label_policy: TenantLabelPolicy = field(default_factory=TenantLabelPolicy)
    presets: tuple[str, ...] = (HEADRACE_PRESET,)


RecentHistory: TypeAlias = Mapping[QueueRef, RecentHistograms]


@dataclass
class CollectedFamilies:
    families: list[SnapshotFamily] = field(default_factory=list[SnapshotFamily])
    rows: int = 0


class SnapshotSources:
    """Reads all sources of a snapshot.

    `history` connects to ClickHouse; None if it is not configured. If ClickHouse fails, its families are omitted and
    the failure is logged.
    """

    def __init__(
        self,
        valkey: Valkey,
        options: SnapshotSourceOptions,
        declared: Sequence[SqlFamily] | None = None,
        history: Callable[[], Client] | None = None,
        streams: StreamDepthReader | None = None,
    ) -> None:
        self._valkey = valkey
        self._streams = streams
        self._options = options
        self._serves_own = HEADRACE_PRESET in options.presets
        self._declared = list(load_sql_families(options.presets, None) if declared is None else declared)
        own = (
            (*QUEUE_FAMILIES, *GLOBAL_FAMILIES, *QUOTA_FAMILIES, *STREAM_FAMILIES, *MEMORY_FAMILIES)
            if self._serves_own
            else ()
        )
        check_unique_names([*(each.descriptor for each in self._declared), *own])
        self._history = history
        self._client: Client | None = None
        self._last_history_error = ""  # the last logged failure to read history
        self._valid = False

    @property
    def source(self) -> str:
        return ",".join(dict.fromkeys(SOURCE[preset] for preset in self._options.presets)) or "postgres"

    def validate(self) -> None:
        """Check the queries of all families in their databases. Raises InvalidFamily, or ServiceUnavailable."""
        for url, declared in self._group_by_database():
            database.validate_families(url, declared, self._options.query_timeout_s)
        self._valid = True

    def read(self) -> CollectedFamilies:
        """Read all families, or raise: a snapshot is never partial, except for families from history."""
        if not self._valid:
            self.validate()
        done = CollectedFamilies()
        if self._serves_own:
            self._read_own(done)
        for url, declared in self._group_by_database():
            families, rows = database.read_families(url, declared, self._options.query_timeout_s)
            done.families += families
            done.rows += rows
        for family in done.families:
            refuse_duplicates(family)
        return done

    def _group_by_database(self) -> list[tuple[str, list[SqlFamily]]]:
        """Group the SQL families by database URL, so that each database is read in one transaction."""
        by_url: dict[str, list[SqlFamily]] = {}
        for each in self._declared:
            own = each.preset == HEADRACE_PRESET
            url = self._options.postgres_url if own else self._options.source_url or self._options.postgres_url
            if url:
                by_url.setdefault(url, []).append(each)
            elif not own:
                raise InvalidFamily(f"Family {each.name} requires PostgreSQL: set postgres.url.")
        return list(by_url.items())

    def _read_own(self, done: CollectedFamilies) -> None:
        shards = read_shards(self._valkey, self._options.shards)
        states = read_states(self._valkey, shards)
        envs = sorted({state.ref.environment for state in states})
        limits = dict(zip(envs, read_limits(self._valkey, shards, envs), strict=True)) if envs else {}
        recent, watermark_s = self._read_history()
        quotas = read_quotas(self._valkey, shards, self._options.postgres_url, self._options.query_timeout_s, envs)
        live = QueueMetricsInput(states, read_metrics(self._valkey, shards), limits, recent, watermark_s, quotas)
        done.rows += len(states) + len(recent or ())
        done.families += build_queue_families(live, self._options.label_policy)
        done.families += build_memory_families(read_server_memory(self._valkey, shards))
        if self._streams is not None:
            done.families += self._streams.read()
            done.rows += len(self._streams.groups)

    def _read_history(self) -> tuple[RecentHistory | None, float | None]:
        """Return the recent histograms, None if they were not read, and the watermark in seconds, None if unknown."""
        if self._history is None:
            return None, None
        try:
            self._client = self._client or self._history()
            history = read_recent_history(QueryRunner(self._client, self._options.query_timeout_s), int(time.time()))
        except Exception as error:  # after any failure the live values are published without history
            self._client = None
            if str(error) != self._last_history_error:
                log.warning(
                    "could not read history, omitting wait and run times: %s",
                    error,
                    extra={"action": "history_left_out"},
                )
            self._last_history_error = str(error)
            return None, None
        self._last_history_error = ""
        return history


def read_recent_history(reads: QueryRunner, now_s: int) -> tuple[RecentHistory, float | None]:
    """Read the histograms of the last RECENT_S seconds, and the watermark in seconds; None if there is none yet."""
    watermark_ms = read_progress(reads, now_s * 1000).watermark_ms
    columns = reads.run(render_query("recent_histograms"), {"start_s": now_s - RECENT_S, "end_s": now_s + 1})
    recent: RecentHistory = {}
    if columns:
        refs = map(QueueRef, columns["org"], columns["project"], columns["env"], columns["queue"])
        recent = dict(zip(refs, map(RecentHistograms, columns["waits"], columns["runs"]), strict=True))
    return recent, None if watermark_ms is None else watermark_ms / 1000
