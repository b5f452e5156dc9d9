"""Run ClickHouse queries, each with a time limit. The queries of one runner can be cancelled together, for example when
the HTTP client disconnects."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, Error

from headrace.errors import HeadraceError, MigrationError, ServiceUnavailable
from headrace.warehouse.connect import AUTH_CODES, Client, translate_errors

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 10.0

Columns = Mapping[str, Sequence[Any]]


class HistoryTooSlow(ServiceUnavailable):
    """ClickHouse did not answer within api.query_timeout and the query was cancelled. Request a shorter period or a
    coarser resolution, or try again later."""


class HistoryBusy(ServiceUnavailable):
    """ClickHouse is overloaded or out of memory. Try again later."""


class HistoryCancelled(ServiceUnavailable):
    """The ClickHouse query was cancelled before it finished."""


class HistoryMissing(MigrationError):
    """The history tables are missing from ClickHouse or belong to another version. Run `headrace migrate`."""


class HistoryForbidden(ServiceUnavailable):
    """ClickHouse denied access to history. Correct the user and password in HEADRACE_CLICKHOUSE_URL, or this user's
    grants."""


# By ClickHouse error code
ERRORS: Mapping[int | None, type[HeadraceError]] = {
    **dict.fromkeys((159, 160, 209), HistoryTooSlow),  # timeout, too slow, socket timeout
    394: HistoryCancelled,
    # memory, too many simultaneous queries, rows, bytes, quota; no thread, and the server's own "overloaded"
    **dict.fromkeys((158, 201, 202, 241, 307, 439, 745), HistoryBusy),
}
ERRORS_WITH_DETAIL: Mapping[int | None, type[HeadraceError]] = {
    **dict.fromkeys((16, 47, 60, 81), HistoryMissing),  # column, identifier, table, database
    **dict.fromkeys(AUTH_CODES, HistoryForbidden),
}
UNAVAILABLE_CODES = frozenset({210, 236, 279, 999})  # network, aborted by a shutdown, no replica, Keeper


class QueryRunner:
    """Runs the queries of one request. `cancel` may be called from another thread."""

    def __init__(self, client: Client, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._log_comment = f"headrace-{uuid4().hex}"
        self._is_cancelled = False

    def run(self, query: str, parameters: Mapping[str, Any], threads: int = 0) -> Columns:
        """Run a query and return its result by columns. `threads`: 1 for primary-key lookups, where more threads only
        cost. Raises HistoryCancelled after `cancel`, and the other errors of this module."""
        # Finds the query in system.processes while it runs; the server may choose its own query ids.
        settings: dict[str, Any] = {"max_execution_time": self._timeout_s, "log_comment": self._log_comment}
        if threads:
            settings["max_threads"] = threads
        if self._is_cancelled:
            raise HistoryCancelled()
        with translate_query_errors(self._client.url):
            found = self._client.query(query, parameters=dict(parameters), settings=settings, column_oriented=True)
            return dict(zip(found.column_names, found.result_columns, strict=True))

    def cancel(self) -> None:
        """Cancel running queries, if possible, and refuse further ones. The time limit ends them otherwise."""
        self._is_cancelled = True
        try:
            self._client.command(
                "KILL QUERY WHERE Settings['log_comment'] = {mark:String}", {"mark": self._log_comment}
            )
        except ClickHouseError as error:
            log.info("could not cancel a query: %s", error, extra={"action": "cancel_failed"})


@contextmanager
def translate_query_errors(url: str) -> Generator[None]:
    """Translate ClickHouse errors into HeadraceErrors, unless the query itself is at fault."""
    try:
        with translate_errors(url):
            yield
    except ClickHouseError as error:
        raise _translate_error(error) from error


def _translate_error(error: ClickHouseError) -> HeadraceError | ClickHouseError:
    code = error.code if isinstance(error, Error) else None
    if kind := ERRORS.get(code):
        return kind()
    if kind := ERRORS_WITH_DETAIL.get(code):
        return kind(f"{kind()} ({error})")
    if code in UNAVAILABLE_CODES or (code is None and isinstance(error, DatabaseError)):  # no code: sent by a proxy
        return ServiceUnavailable(f"ClickHouse is temporarily unavailable. Try again later. ({error})")
    return error
