"""Destination that appends to a JSON-lines file: to see what would be sent, or to save a spool whose destination is
gone.

Each record is one line. The payload is text if it is valid UTF-8, otherwise base64. A line is on disk before its record
is acknowledged. If the process is killed in between, the line is written again, so an `id` may appear twice.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.export.destination import RetryableSendError, SendBatch
from headrace.spool.record import NewRecord, SpoolRecord


class FileDestination:
    name = "file"
    dedup_window_blocks = None

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab")

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        line = json.dumps(_build_document(record), ensure_ascii=False).encode() + b"\n"
        return [SendBatch(line, record.token)]

    def send(self, batch: SendBatch) -> None:
        with self._lock:
            start = self._file.tell()
            try:
                self._file.write(batch.body)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                with suppress(OSError):  # if this fails, the retry continues a partial line: a reader sees one bad line
                    os.ftruncate(self._file.fileno(), start)
                raise RetryableSendError(f"Could not write to {self._file.name}: {error}.", kind="disk") from error

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        return ()  # a file has no size limit per record

    def close(self) -> None:
        with self._lock:
            self._file.close()


def _build_document(record: SpoolRecord) -> dict[str, object]:
    document: dict[str, object] = {
        "id": record.id,
        "token": record.token,
        "meta": dict(record.meta),
        "put_at": record.put_at,
        "attempts": record.attempts,
    }
    try:
        return {**document, "text": record.payload.decode()}
    except UnicodeDecodeError:
        return {**document, "base64": base64.b64encode(record.payload).decode()}
