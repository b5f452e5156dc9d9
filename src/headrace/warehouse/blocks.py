"""Insert a block of rows into a table under a deduplication token, and classify failures.

A retry has to know two things: what caused the failure, and whether the rows may have been written already. Both are
derived from the response here, because the error codes are ClickHouse's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError, ReadTimeoutError

from headrace.errors import HeadraceError, ServiceUnavailable
from headrace.warehouse.connect import AUTH_CODES, INSERT_SETTINGS, Client

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

DEDUPLICATION_WINDOW = 10_000
"""Newest blocks of a table among which a repeated token is recognised, as set in the migrations."""

Reason = Literal["unavailable", "timeout", "rate_limit", "server_error", "bad_data", "too_large", "auth"]
"""Why an insert failed; also the label `error_type` in metrics of the exporter."""
RETRYABLE: frozenset[Reason] = frozenset({"unavailable", "timeout", "rate_limit", "server_error"})

Failure = tuple[Reason, bool]  # the second is True if the rows may have been stored nevertheless
UNKNOWN_OUTCOME: Failure = ("server_error", True)
CONNECTION_LOST: Failure = ("unavailable", True)

# An error after the first table was written leaves that part in place (a failed view does), so the outcome of an insert
# that fails is unknown unless the error precedes the first write. Codes that are not listed here have UNKNOWN_OUTCOME,
# for example 241 (memory limit), which looks like "too large" but is not: the next attempt may succeed.
FAILURE_BY_CODE: Mapping[int, Failure] = {
    **dict.fromkeys(AUTH_CODES, ("auth", False)),
    **dict.fromkeys((202, 745), ("rate_limit", False)),  # too many simultaneous queries, server overloaded
    # quota exceeded, too many parts (possibly of a table that a view fills), no thread for the query
    **dict.fromkeys((201, 252, 439), ("rate_limit", True)),
    # time limit of the query, too slow, timeout of a socket of the server, no reply from the replicas of a quorum
    **dict.fromkeys((159, 160, 209, 319), ("timeout", True)),
    # column, table, database: `headrace migrate` was not run; the rows are valid
    **dict.fromkeys((16, 60, 81), ("unavailable", False)),
    # network between servers, Keeper, read-only replica, shutdown, too few replicas
    **dict.fromkeys((210, 225, 236, 242, 279, 285, 999), ("unavailable", True)),
    # Rows that cannot be parsed or converted, or violate a constraint: a retry fails in the same way.
    **dict.fromkeys(
        (6, 26, 27, 32, 33, 36, 41, 44, 50, 53, 69, 70, 72, 117, 131, 321, 349, 407, 469, 485, 504, 524),
        ("bad_data", False),
    ),
}

# A response without a ClickHouse error code comes from a proxy, which refused the request or lost the connection to
# ClickHouse.
FAILURE_BY_STATUS: Mapping[int, Failure] = {
    413: ("too_large", False),
    **dict.fromkeys((401, 403, 407), ("auth", False)),
    429: ("rate_limit", False),
    503: ("unavailable", False),
    502: ("unavailable", True),
    **dict.fromkeys((408, 504), ("timeout", True)),
}


class InsertFailed(HeadraceError):
    """An insert into ClickHouse failed."""

    def __init__(self, message: str, reason: Reason, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.outcome_unknown = (
            outcome_unknown  # the rows may be stored; a retry with the same token is safe, other blocks are not
        )


class BlockWriter:
    """Inserts blocks from any number of threads, each with its own client during an insert."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._idle: SimpleQueue[Client] = SimpleQueue()

    def insert(self, table: str, columns: Sequence[str], arrow_file: bytes, token: str) -> None:
        """Insert an Arrow file with one batch. Repeating a token has no effect, also in tables filled by views. Raises
        InsertFailed."""
        settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
        try:
            with self._client() as client:
                client.raw_insert(table, columns, arrow_file, settings, "Arrow")
        except (ClickHouseError, ServiceUnavailable) as error:
            raise to_insert_failed(error) from error

    def close(self) -> None:
        while client := self._take():
            client.close()

    @contextmanager
    def _client(self) -> Generator[Client]:
        client = self._take() or self._connect()
        try:
            yield client
        finally:
            self._idle.put(client)

    def _take(self) -> Client | None:
        try:
            return self._idle.get_nowait()
        except Empty:
            return None


def to_arrow_file(rows: pa.Table) -> bytes:
    """Return rows as an Arrow file for `BlockWriter.insert`."""
    import pyarrow as pa
    import pyarrow.ipc

    sink = pa.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue().to_pybytes()


def to_insert_failed(error: Exception) -> InsertFailed:
    reason, unclear = _classify_error(error)
    return InsertFailed(f"Insert into ClickHouse failed ({reason}): {error}", reason, outcome_unknown=unclear)


def _classify_error(error: Exception) -> Failure:
    if isinstance(error, ServiceUnavailable):  # could not connect, so nothing was sent
        return "unavailable", False
    if isinstance(error, Error) and error.code is not None:
        return FAILURE_BY_CODE.get(error.code, UNKNOWN_OUTCOME)
    if status := re.search(r"received HTTP status (\d{3})", str(error)):
        return FAILURE_BY_STATUS.get(int(status[1]), UNKNOWN_OUTCOME)
    cause = error.__cause__
    reason = cause.reason if isinstance(cause, MaxRetryError) else cause
    if isinstance(reason, NewConnectionError | ConnectTimeoutError):  # never sent
        return "unavailable", False
    if isinstance(reason, TimeoutError | ReadTimeoutError) or "timed out" in str(error):
        return "timeout", True
    return CONNECTION_LOST if isinstance(error, OperationalError) else UNKNOWN_OUTCOME
