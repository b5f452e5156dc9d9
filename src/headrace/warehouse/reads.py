"""Questions that somebody waits for: each has a time limit, and all of a request end when nobody waits any more."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, Error

from headrace.errors import HeadraceError, MigrationError, ServiceUnavailable
from headrace.warehouse.connect import Client, available

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 10.0

Columns = Mapping[str, Sequence[Any]]

# ClickHouse's codes.
_TOO_SLOW = frozenset({159, 160, 209})  # timeout, too slow, socket timeout
_CANCELLED = frozenset({394})
# Memory, too many queries at once, rows, bytes, quota; no thread, and the server's own "overloaded".
_BUSY = frozenset({158, 201, 202, 241, 307, 439, 745})
_NO_TABLE = frozenset({16, 47, 60, 81})  # column, identifier, table, database
_AUTH = frozenset({192, 193, 194, 497, 516})  # unknown user, wrong password, required password, access, authentication
_AWAY = frozenset({210, 236, 279, 999})  # network, aborted by a shutdown, no replica, Keeper


class HistoryTooSlow(ServiceUnavailable):
    """ClickHouse did not answer within api.query_timeout, and the question was withdrawn. Ask for a shorter period or a
    coarser resolution, or try again later."""


class HistoryBusy(ServiceUnavailable):
    """ClickHouse has too much to do, or too little memory, to answer now. Try again later."""


class HistoryWithdrawn(ServiceUnavailable):
    """The question to ClickHouse was withdrawn before it was answered."""


class HistoryMissing(MigrationError):
    """ClickHouse does not have the tables of history, or has those of another version. Run `headrace migrate`."""


class HistoryForbidden(ServiceUnavailable):
    """ClickHouse does not let Headrace read history. Correct the user and password of HEADRACE_CLICKHOUSE_URL, or what
    this user may read."""


class Reads:
    """The questions of one request. `cancel` may be called from another thread than the one that asks."""

    def __init__(self, client: Client, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._mark = f"headrace-{uuid4().hex}"
        self._withdrawn = False

    def ask(self, query: str, parameters: Mapping[str, Any], threads: int = 0) -> Columns:
        """The answer by columns. `threads`: 1 for what the primary key finds at once, where more only cost."""
        # Seen in system.processes for as long as it runs; an endpoint may give queries ids of its own.
        settings: dict[str, Any] = {"max_execution_time": self._timeout_s, "log_comment": self._mark}
        if threads:
            settings["max_threads"] = threads
        if self._withdrawn:
            raise HistoryWithdrawn()
        with readable(self._client.url):
            found = self._client.query(query, parameters=dict(parameters), settings=settings, column_oriented=True)
            return dict(zip(found.column_names, found.result_columns, strict=True))

    def cancel(self) -> None:
        """End what still runs, as far as it goes: the time limit ends it too. Nothing more is asked."""
        self._withdrawn = True
        try:
            self._client.command("KILL QUERY WHERE Settings['log_comment'] = {mark:String}", {"mark": self._mark})
        except ClickHouseError as error:
            log.info("a question could not be withdrawn: %s", error, extra={"action": "cancel_failed"})


@contextmanager
def readable(url: str) -> Generator[None]:
    """While connecting, or asking: where the fault is not in the question, the error is one of ours."""
    try:
        with available(url):
            yield
    except ClickHouseError as error:
        raise _told(error) from error


def _told(error: ClickHouseError) -> HeadraceError | ClickHouseError:
    code = error.code if isinstance(error, Error) else None
    if code in _TOO_SLOW:
        return HistoryTooSlow()
    if code in _CANCELLED:
        return HistoryWithdrawn()
    if code in _BUSY:
        return HistoryBusy()
    if code in _NO_TABLE:
        return HistoryMissing(f"{HistoryMissing()} ({error})")
    if code in _AUTH:
        return HistoryForbidden(f"{HistoryForbidden()} ({error})")
    if code in _AWAY or (code is None and isinstance(error, DatabaseError)):  # without a code: a proxy in between
        return ServiceUnavailable(f"ClickHouse cannot be asked now. Try again later. ({error})")
    return error
