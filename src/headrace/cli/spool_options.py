"""Builds the options of a spool and its exporter from the settings.

Zeros are replaced by numbers derived from the CPU cores, and percentages by bytes.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import cast

from headrace.export.adaptive import WorkerBounds
from headrace.export.exporter import ExporterOptions
from headrace.runtime.backoff import Backoff
from headrace.settings import Settings
from headrace.spool.options import FullBehavior, SpoolOptions, SyncPolicy

# Default number of workers: they mostly wait for the destination, so more than one even on a single core. Each insert
# into ClickHouse creates parts that must be merged, so not more on a large machine than ClickHouse gains from.
MIN_WORKERS, MAX_WORKERS = 4, 16

# Memory limit of a container: control groups version 2 and 1.
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def find_spool_path(settings: Settings) -> Path:
    return settings.spool.path or settings.embedded.data_dir / "spool"


def build_spool_options(settings: Settings, path: Path | None = None) -> SpoolOptions:
    chosen, memory = settings.spool, read_memory_limit()
    folder = path or find_spool_path(settings)
    return SpoolOptions(
        path=folder,
        type="memory" if chosen.type == "memory" else "disk",
        max_size=chosen.max_size,
        max_bytes=chosen.max_bytes.resolve(memory if chosen.type == "memory" else read_disk_size(folder)),
        full_behavior=cast("FullBehavior", chosen.full_behavior),
        block_timeout=chosen.block_timeout,
        inmemory_blocks=chosen.inmemory_blocks,
        inmemory_bytes=chosen.inmemory_bytes.resolve(memory),
        segment_size=chosen.segment_size,
        sync=cast("SyncPolicy", chosen.sync),
        group_ms=chosen.group_interval * 1000,
        stale_flush=chosen.stale_flush,
        write_buffer=chosen.write_buffer_size,
        compression="none" if chosen.compression == "none" else "snappy",
        max_record=chosen.max_record,
        meta_sync=chosen.meta_sync,
        max_attempts=chosen.max_attempts,
    )


def build_exporter_options(settings: Settings, *, clickhouse: bool) -> ExporterOptions:
    chosen, cores = settings.spool, os.cpu_count() or 1
    return ExporterOptions(
        workers=chosen.workers or min(max(2 * cores, MIN_WORKERS), MAX_WORKERS),
        preparers=chosen.preparers or cores,
        channel_size=chosen.channel_size,
        max_sends=chosen.max_sends,
        adaptive=chosen.adaptive_workers,
        bounds=WorkerBounds(chosen.min_workers, max(chosen.min_workers, chosen.max_workers or 4 * cores)),
        target_utilization=chosen.target_utilization,
        backoff=build_backoff(settings, clickhouse=clickhouse),
        breaker=chosen.circuit_breaker,
        breaker_threshold=chosen.circuit_breaker_threshold,
        breaker_reset_s=chosen.circuit_breaker_reset_timeout,
    )


def build_backoff(settings: Settings, *, clickhouse: bool) -> Backoff:
    chosen = settings.spool
    first, longest = (
        (chosen.clickhouse_retry_interval, chosen.clickhouse_max_retry_delay)
        if clickhouse
        else (chosen.retry_interval, chosen.max_retry_delay)
    )
    return Backoff(first, chosen.backoff_multiplier if chosen.backoff else 1.0, longest)


def build_send_limit(settings: Settings) -> threading.BoundedSemaphore:
    """Build the limit of requests in progress that all exporters of a process share."""
    workers = build_exporter_options(settings, clickhouse=True).senders
    return threading.BoundedSemaphore(settings.spool.global_send_limit or max(8 * (os.cpu_count() or 1), workers))


def read_disk_size(folder: Path) -> int:
    """Return the size in bytes of the file system of a directory that need not exist yet."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(existing).total


def read_memory_limit() -> int:
    """Return the memory available to this process in bytes: its control group's limit, or that of the machine."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(found for file in _CGROUP_LIMITS if (found := _read_cgroup_limit(file)))])


def _read_cgroup_limit(file: Path) -> int | None:
    """Return the limit in a control group file in bytes; None if there is no limit or no such file."""
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):  # ValueError: "max"
        return None
