"""Archive of metric events as Parquet files, from which history can be recomputed.

    <path>/date=2027-01-15/hour=08/shard-00000-<first>-<last>.parquet

Each hour (UTC, by event time) has its own files. A file has all events of one shard from one entry to another, which
its name states, so the same events always give the same name. A file appears complete or not at all: it is written
under a name that begins with a dot and then renamed. A batch that Spark runs again may be longer than before, so files
can overlap; `select_slices` decides which part of each file counts, so that every event counts once.

The path is a folder that every executor can access, or a URI supported by pyarrow (s3://, gs://, hdfs://).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from headrace.model.entry_id import SEQUENCE_BITS, START, EntryId
from headrace.pipeline.arrow import group_batches
from headrace.pipeline.decode import SCHEMA
from headrace.pipeline.entries import drop_up_to, read_ids

log = logging.getLogger(__name__)

fs: Any = pyarrow.fs
parquet: Any = pyarrow.parquet

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
ROW_GROUP = 100_000
STALE_MS = HOUR_MS  # a file still incomplete after this time was left by a crash

UNREADABLE_COLUMNS = ("aside", "sample")  # columns of unreadable entries, which are not archived
EVENTS = pa.schema([each for each in SCHEMA if each.name not in UNREADABLE_COLUMNS])


@dataclass(frozen=True, order=True)
class ArchiveFileName:
    """Name of an archive file: the events of a shard from one entry to another, both included."""

    shard: int
    first: EntryId
    last: EntryId

    PATTERN: ClassVar = re.compile(r"shard-(\d{5})-(\d{20}|\d{13}\.\d{13})-(\d{20}|\d{13}\.\d{13})\.parquet")

    def __str__(self) -> str:
        return f"shard-{self.shard:05d}-{_format_entry_id(self.first)}-{_format_entry_id(self.last)}.parquet"

    @classmethod
    def parse(cls, text: str) -> ArchiveFileName | None:
        found = cls.PATTERN.fullmatch(text)
        return cls(int(found[1]), _parse_entry_id(found[2]), _parse_entry_id(found[3])) if found else None


def _format_entry_id(entry: EntryId) -> str:
    """Return an entry id as 20 digits, or as both numbers if a millisecond has more entries than fit into those."""
    return f"{entry.linear:020d}" if entry.seq < 2**SEQUENCE_BITS else f"{entry.ms:013d}.{entry.seq:013d}"


def _parse_entry_id(text: str) -> EntryId:
    ms, _, seq = text.partition(".")
    return EntryId(int(ms), int(seq)) if seq else EntryId.from_linear(int(ms))


@dataclass(frozen=True)
class ArchiveFileSlice:
    """The events of a file that count: those after an entry."""

    name: ArchiveFileName
    after: EntryId | None  # None: all events


def select_slices(names: Iterable[ArchiveFileName]) -> list[ArchiveFileSlice]:
    """Return the needed files in order, without those covered by others."""
    needed: list[ArchiveFileSlice] = []
    shard, reached = -1, None
    longest_first = sorted(names, key=lambda each: each.last, reverse=True)
    for name in sorted(longest_first, key=lambda each: (each.shard, each.first)):
        if name.shard != shard:
            shard, reached = name.shard, None
        if reached is None or name.last > reached:
            needed.append(ArchiveFileSlice(name, reached))
            reached = name.last
    return needed


def format_hour_folder(hour_ms: int) -> str:
    start = np.datetime64(hour_ms, "ms").item()
    return f"date={start:%Y-%m-%d}/hour={start:%H}"


class Archive:
    def __init__(self, uri: str) -> None:
        self._files, self._root = open_filesystem(uri)

    def write(self, events: pa.Table) -> None:
        """Write the events of one shard, which must be in the order of their entries."""
        ms, seq = read_ids(events)
        hours = ms // HOUR_MS
        cuts = np.flatnonzero(np.r_[True, np.diff(hours) > 0, True]) if len(ms) else []
        for start, end in pairwise(cuts):
            ids = [EntryId(int(ms[index]), int(seq[index])) for index in (start, end - 1)]
            name = ArchiveFileName(events["shard"][int(start)].as_py(), *ids)
            part = events.slice(int(start), int(end - start)).select(EVENTS.names).cast(EVENTS)
            folder = f"{self._root}/{format_hour_folder(int(hours[start]) * HOUR_MS)}"
            _write(self._files, folder, name, [part])

    def list_names(self, hour_ms: int) -> list[ArchiveFileName]:
        found = self._files.get_file_info(
            fs.FileSelector(f"{self._root}/{format_hour_folder(hour_ms)}", allow_not_found=True)
        )
        return [name for each in found if (name := ArchiveFileName.parse(each.base_name))]

    def read_events(self, hour_ms: int, shard: int) -> Iterator[pa.RecordBatch]:
        """Yield each event of the hour once, in order, as decoded."""
        mine = [name for name in self.list_names(hour_ms) if name.shard == shard]
        folder = f"{self._root}/{format_hour_folder(hour_ms)}"
        yield from _read_slices(self._files, folder, select_slices(mine), SCHEMA)

    def read_adjacent_seqs(self, hour_ms: int) -> dict[int, tuple[int | None, int | None]]:
        """Return, for every shard ever archived, the number of its last event before an hour and of its first event
        after it; None where there is none."""
        before: dict[int, tuple[EntryId, str]] = {}
        after: dict[int, tuple[EntryId, str]] = {}
        shards: set[int] = set()
        for hour, found in _list_hours(self._files, self._root):
            for name, path in ((ArchiveFileName.parse(each.base_name), each.path) for each in found):
                if name is None:
                    continue
                shards.add(name.shard)
                if hour < hour_ms:
                    before[name.shard] = max(before.get(name.shard, (START, "")), (name.last, path))
                elif hour > hour_ms:
                    after[name.shard] = min(after.get(name.shard, (name.first, path)), (name.first, path))
        return {
            shard: (
                self._read_seq(before[shard][1], -1) if shard in before else None,
                self._read_seq(after[shard][1], 0) if shard in after else None,
            )
            for shard in sorted(shards)
        }

    def _read_seq(self, path: str, place: int) -> int:
        with self._files.open_input_file(path) as source:
            file = parquet.ParquetFile(source)
            return file.read_row_group(place % file.num_row_groups, ["seq"])["seq"][place].as_py()


def compact_and_expire(uri: str, now_ms: int, keep_days: int, closed_before_ms: int) -> None:
    """Compact hours that end by `closed_before_ms` to one file per shard, and remove dates older than `keep_days`.

    A crash between writing the compacted file and removing the others is harmless: the former covers the latter.
    """
    files, root = open_filesystem(uri)
    for date_ms, folder in _list_dates(files, root):
        if date_ms + DAY_MS <= now_ms - keep_days * DAY_MS:
            files.delete_dir(folder)
    for hour_ms, found in _list_hours(files, root):
        if hour_ms + HOUR_MS <= closed_before_ms:
            _compact_hour(files, f"{root}/{format_hour_folder(hour_ms)}", found, now_ms)


def open_filesystem(uri: str) -> tuple[Any, str]:
    """Return the file system and the folder in it for a path or URI."""
    files, root = fs.FileSystem.from_uri(resolve_uri(uri))
    return files, root.rstrip("/")


def resolve_uri(uri: str) -> str:
    """Return `uri`, made absolute if it is a local path: executors have their own working directory."""
    return uri if "://" in uri else str(Path(uri).absolute())


# Compaction -----------------------------------------------------------------------------------------


def _list_dates(files: Any, root: str) -> list[tuple[int, str]]:
    found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    dates = [(each, re.fullmatch(r"date=(\d{4}-\d\d-\d\d)", each.base_name)) for each in found]
    return [(int(np.datetime64(date[1], "ms").astype(np.int64)), each.path) for each, date in dates if date]


def _list_hours(files: Any, root: str) -> list[tuple[int, list[Any]]]:
    """Return every hour with its files, oldest first. Uses one listing, because object stores charge per request."""
    hours: dict[int, list[Any]] = {}
    for each in files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
        place = re.search(r"/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+$", each.path)
        if place and each.type == fs.FileType.File:
            hour_ms = int(np.datetime64(f"{place[1]}T{place[2]}", "ms").astype(np.int64))
            hours.setdefault(hour_ms, []).append(each)
    return sorted(hours.items(), key=lambda hour: hour[0])


def _compact_hour(files: Any, folder: str, found: Sequence[Any], now_ms: int) -> None:
    for each in found:
        if each.base_name.startswith(".") and each.mtime_ns is not None and each.mtime_ns < (now_ms - STALE_MS) * 10**6:
            _remove(files, each.path)
    names = sorted(name for each in found if (name := ArchiveFileName.parse(each.base_name)))
    for shard in sorted({name.shard for name in names}):
        mine = [name for name in names if name.shard == shard]
        if len(mine) > 1:
            try:
                _compact(files, folder, mine)
            except (OSError, pa.ArrowException):
                log.exception(
                    "could not compact the archive files in %s; they stay readable",
                    folder,
                    extra={"action": "archive_not_tidied"},
                )


def _compact(files: Any, folder: str, names: Sequence[ArchiveFileName]) -> None:
    needed = select_slices(names)
    whole = ArchiveFileName(needed[0].name.shard, needed[0].name.first, needed[-1].name.last)
    _write(files, folder, whole, group_batches(_read_slices(files, folder, needed, EVENTS), ROW_GROUP))
    for name in names:
        if name != whole:
            _remove(files, f"{folder}/{name}")


def _remove(files: Any, path: str) -> None:
    try:
        files.delete_file(path)
    except FileNotFoundError:
        pass


# Reading and writing --------------------------------------------------------------------------------


def _read_slices(
    files: Any, folder: str, needed: Iterable[ArchiveFileSlice], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for clip in needed:
        with files.open_input_file(f"{folder}/{clip.name}") as source:
            for batch in parquet.ParquetFile(source).iter_batches(ROW_GROUP):
                yield _cast_events(batch if clip.after is None else drop_up_to(batch, clip.after), schema)


def _cast_events(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast events to `schema`. Columns that they lack, as in files of an older release, become null."""
    known = set(batch.schema.names)
    columns = [
        batch[each.name].cast(each.type) if each.name in known else pa.nulls(len(batch), each.type) for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _write(files: Any, folder: str, name: ArchiveFileName, parts: Iterable[pa.Table]) -> None:
    target, incomplete = f"{folder}/{name}", f"{folder}/.{name}.{uuid4().hex}"
    if files.get_file_info(target).type == fs.FileType.File:
        return
    files.create_dir(folder, recursive=True)
    try:
        with (
            files.open_output_stream(incomplete) as sink,
            parquet.ParquetWriter(sink, EVENTS, compression="zstd") as writer,
        ):
            for part in parts:
                writer.write_table(part, row_group_size=ROW_GROUP)
        _sync(files, incomplete)
        files.move(incomplete, target)
        _sync(files, folder)
    except BaseException:
        _remove(files, incomplete)
        raise


def _sync(files: Any, path: str) -> None:
    """Sync a local file or folder: after a power loss, a rename may be on disk without the contents."""
    if isinstance(files, fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
