"""Connections, transactions, and the translation of their errors.

    with open_pool(url) as pool, transaction(pool) as conn:   # committed if the block succeeds, else rolled back
        conn.execute(QUERIES["delete_rows"], {"id": …})

Parameters in the URL override those set here. Other packages import psycopg's types from this module.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, cast

import psycopg
from psycopg import Copy
from psycopg import errors as reported
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, dict_row, scalar_row

from headrace.errors import (
    CommitUnclear,
    DatabaseFull,
    DatabaseUnavailable,
    HeadraceError,
    MigrationError,
    SettingsError,
)
from headrace.postgres.pool import Connection, Pool

__all__ = [
    "Connection",
    "Copy",
    "DuplicateKey",
    "InsufficientPrivilege",
    "Pool",
    "XactStatus",
    "class_row",
    "connect",
    "dict_row",
    "open_pool",
    "read_xact_status",
    "scalar_row",
    "transaction",
    "translate_errors",
]

TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 30.0
IDLE_IN_TRANSACTION_S = 10.0
"""A process that is paused within a transaction must not hold its locks for long."""

PARAMETERS: dict[str, Any] = {
    "application_name": "headrace",
    "connect_timeout": 5,
    # Detect within half a minute that the server's machine has vanished: it sends no packets.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

FULL = (reported.DiskFull, reported.OutOfMemory)
# Lost, refused or terminated connections; timeouts; transactions that lost against a concurrent one.
UNAVAILABLE = (
    psycopg.OperationalError,
    reported.IdleInTransactionSessionTimeout,
    reported.TransactionTimeout,
    reported.ReadOnlySqlTransaction,  # a standby answers, or the server protects a disk that is nearly full
)
NOT_MIGRATED = (reported.UndefinedTable, reported.UndefinedColumn, reported.UndefinedFunction)

DuplicateKey = reported.UniqueViolation
InsufficientPrivilege = reported.InsufficientPrivilege

XactStatus = Literal["committed", "aborted", "in progress"]


def open_pool(
    url: str, *, max_size: int = 8, timeout_s: float = TIMEOUT_S, statement_timeout_s: float = STATEMENT_TIMEOUT_S
) -> Pool:
    """Return a pool. It connects in the first `transaction`, so the server may be down until then.

    `timeout_s` is how long a thread waits while all connections are in use.
    """
    return Pool(partial(psycopg.connect, **_build_parameters(url, statement_timeout_s)), max_size, timeout_s)


def connect(url: str, *, statement_timeout_s: float = STATEMENT_TIMEOUT_S) -> Connection:
    """Return a connection outside any pool, which the caller must close. It is in autocommit mode: use
    `conn.transaction()`."""
    with translate_errors():
        return psycopg.connect(**_build_parameters(url, statement_timeout_s), autocommit=True)


@contextmanager
def transaction(pool: Pool) -> Generator[Connection]:
    """Run a transaction: committed when the block ends, rolled back when it raises.

    Raises DatabaseUnavailable or DatabaseFull if nothing was written, CommitUnclear if that is unknown. The block must
    not call commit() or rollback().
    """
    with translate_errors():
        conn = pool.acquire()
        try:
            yield conn
        except BaseException:
            _roll_back(conn)
            raise
        else:
            _commit(conn)
        finally:
            pool.release(conn)


@contextmanager
def translate_errors() -> Generator[None]:
    """Translate driver and server errors into Headrace errors; other server errors pass through."""
    try:
        yield
    except FULL as error:
        raise _to_headrace_error(DatabaseFull, error) from error
    except UNAVAILABLE as error:
        raise _to_headrace_error(DatabaseUnavailable, error) from error
    except NOT_MIGRATED as error:
        raise MigrationError(
            "The PostgreSQL schema does not match this release. Nothing was written. Run `headrace migrate`. "
            f"({_first_line(error)})"
        ) from error


def read_xact_status(pool: Pool, xid: int) -> XactStatus | None:
    """Return the status of a transaction, after CommitUnclear; None if it is too old for PostgreSQL to know.

    "in progress" is not final: call again. After a crash of the server the id of a lost transaction can be reused, so
    "committed" does not prove that the rows exist: check for them.
    """
    try:
        with transaction(pool) as conn:
            row = conn.execute("SELECT pg_xact_status(%s::text::xid8)", [xid]).fetchone()
    except reported.InvalidParameterValue:
        return "aborted"  # the id "is in the future": the server crashed and lost the transaction
    return cast("XactStatus | None", row and row[0])


def _build_parameters(url: str, statement_timeout_s: float) -> dict[str, Any]:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its text may contain the password
        raise SettingsError("The PostgreSQL URL is invalid. Check postgres.url (HEADRACE_POSTGRES_URL).") from None
    limits = {
        "statement_timeout": statement_timeout_s,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_S,
    }
    options = [f"-c {name}={int(seconds * 1000)}" for name, seconds in limits.items()]
    if "options" in given:
        options.append(str(given["options"]))  # a later option overrides an earlier one
    return {**PARAMETERS, **given, "options": " ".join(options)}


def _commit(conn: Connection) -> None:
    if conn.info.transaction_status == TransactionStatus.INERROR:
        # PostgreSQL would reply to COMMIT with a silent ROLLBACK.
        _roll_back(conn)
        raise reported.InFailedSqlTransaction("rolled back: a statement failed and its error was swallowed")
    try:
        conn.commit()
    except psycopg.Error as error:
        if conn.broken:
            raise _to_headrace_error(CommitUnclear, error) from error
        raise


def _roll_back(conn: Connection) -> None:
    with suppress(psycopg.Error):  # the connection is lost, which also ends the transaction
        conn.rollback()


def _to_headrace_error(kind: type[HeadraceError], error: psycopg.Error) -> HeadraceError:
    return kind(f"{kind()} ({_first_line(error)})")


def _first_line(error: psycopg.Error) -> str:
    """Return the first line of a server's or libpq's message; the rest is about statements."""
    return str(error).partition("\n")[0]
