"""chDB, the ClickHouse engine in this process, as sessions that share only the data.

Every request gets its own connection. In chDB a connection is a session: its settings, database and temporary
tables are private and disappear when it closes (opening one takes about 1 ms). This keeps settings from leaking
between requests. It also avoids a defect of chDB: after a query that failed halfway, its remaining rows are
returned by the next query on the same connection.

Guarantees: one process per data directory (by a lock that is released when the process exits); unchanged error
texts of the engine; SELECT results in a streamable format and INSERT data are passed on in chunks, regardless of
their size. Results in other formats are built in memory, up to MAX_BUFFERED_RESULT_BYTES.

All functions block; callers run them in threads. A session is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, cast

from chdb import _chdb

from headrace.embedded.clickhouse_access import VALUE_EXPRESSIONS, StatementCheck, build_users_config
from headrace.embedded.clickhouse_statement import InsertStatement, SqlToken, is_query
from headrace.embedded.data_directory import write_private_file
from headrace.errors import DataDirectoryError, EmbeddedError, HeadraceError

# Results that cannot be streamed are held in memory. Clients can raise this limit with max_result_bytes.
MAX_BUFFERED_RESULT_BYTES = 256 * 1024 * 1024

# chDB encodes each block separately. In these formats, the concatenated blocks are a valid result.
_STREAMABLE_FORMATS = frozenset(
    {
        "Native",
        "RowBinary",
        "TabSeparated",
        "TSV",
        "TabSeparatedRaw",
        "TSVRaw",
        "CSV",
        "JSONEachRow",
        "NDJSON",
    }
)
_ARROW_STREAM = "ArrowStream"  # also streamable, but its chunks must be joined (see `_join_arrow_streams`)
_ARROW_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_FORMAT_QUERY = "SELECT formatQuerySingleLine(unhex({statement:String}))"

_CODE = re.compile(r"Code: (\d+)\. DB::")
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]+)\)(?: \(version [^)]*\))?\s*$")


class QueryFailed(HeadraceError):
    """The engine refused a statement."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.name = name

    @classmethod
    def from_endpoint(cls, code: int, name: str, reason: str) -> QueryFailed:
        """Create an error of this endpoint, formatted like ClickHouse's errors."""
        return cls(code, name, f"Code: {code}. DB::Exception: {reason}. ({name})")

    @classmethod
    def from_chdb(cls, text: str) -> QueryFailed:
        """Create an error from the text of a RuntimeError of chDB, which contains the code and the name."""
        code, name = _CODE.search(text), _NAME.search(text)
        if code is None:
            return cls.from_endpoint(1001, "STD_EXCEPTION", text)
        return cls(int(code[1]), name[1] if name else "UNKNOWN_EXCEPTION", text[code.start() :])


@contextlib.contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        raise QueryFailed.from_chdb(str(error)) from error
    except UnicodeDecodeError as error:  # the message quotes bytes of the statement that are not UTF-8
        raise QueryFailed.from_chdb(error.object.decode(errors="replace")) from error


class _Result(Protocol):
    def bytes(self) -> bytes: ...
    def elapsed(self) -> float: ...
    def rows_read(self) -> int: ...  # despite its name, the number of result rows
    def bytes_read(self) -> int: ...
    def rows_written(self) -> int: ...
    def bytes_written(self) -> int: ...
    def storage_rows_read(self) -> int: ...
    def storage_bytes_read(self) -> int: ...


class _Connection(Protocol):
    def query(self, sql: bytes | str, format: str = ..., *, params: Mapping[str, str] = ...) -> _Result: ...
    def send_query(self, sql: bytes, format: str, *, params: Mapping[str, str]) -> object: ...
    def streaming_fetch_result(self, stream: object) -> _Result: ...
    def send_insert(self, sql: bytes, format: str) -> object: ...
    def insert_append(self, insert: object, data: bytes) -> None: ...
    def insert_done(self, insert: object) -> _Result: ...
    def classify_query(self, sql: bytes) -> Mapping[str, object]: ...
    def close(self) -> None: ...


# chDB's stub file covers only Python functions in SQL, so the type is declared here.
_connect = cast("Callable[[str], _Connection]", vars(_chdb)["connect"])


@dataclass(slots=True)
class QuerySummary:
    """Statistics of a query, with the field names of the X-ClickHouse-Summary header."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0
    result_bytes: int = 0
    elapsed_ns: int = 0

    def add(self, result: _Result) -> None:
        self.read_rows += result.storage_rows_read()
        self.read_bytes += result.storage_bytes_read()
        self.written_rows += result.rows_written()
        self.written_bytes += result.bytes_written()
        self.result_rows += result.rows_read()
        self.result_bytes += result.bytes_read()
        self.elapsed_ns += int(result.elapsed() * 1e9)

    def as_json(self) -> str:
        """Return the summary as JSON, with numbers as strings like ClickHouse."""
        return json.dumps({name: str(value) for name, value in asdict(self).items()})


class ChdbSession:
    """The connection of one request. Closing it cancels running queries and discards settings and parameters."""

    def __init__(self, connection: _Connection, check: StatementCheck) -> None:
        self._connection = connection
        self._check = check
        self._insert: object = None
        self.summary = QuerySummary()
        self.timezone = ""  # set if it differs from the engine's
        self.returns_rows = False  # set when iter_result() starts; True even for a SELECT with an empty result

    def configure(self, settings: Mapping[str, str], database: str) -> None:
        """Apply settings and select the database. Raises QueryFailed if the engine rejects a name or value."""
        if chosen := next((name for name in VALUE_EXPRESSIONS if name in settings), None):
            raise QueryFailed.from_endpoint(
                452, "SETTING_CONSTRAINT_VIOLATION", f"Setting {chosen} should not be changed"
            )
        with _translate_errors():
            if database:
                self._connection.query(f"USE {_quote_identifier(database)}")
            if settings:
                assignments = (
                    f"{_quote_identifier(name)} = {_quote_literal(value)}" for name, value in settings.items()
                )
                self._connection.query(f"SET {', '.join(assignments)}")
        self.timezone = settings.get("session_timezone", "")

    def add_external_table(self, name: str, columns: str, format: str, data: bytes) -> None:
        """Create a temporary table from data that was sent with a query."""
        table = _quote_identifier(name)
        create = f"CREATE TEMPORARY TABLE {table} ({columns}) ENGINE = Memory".encode()
        self._check_allowed(create)
        with _translate_errors():
            self._connection.query(create)
        self.begin_insert(InsertStatement(f"INSERT INTO {table}".encode(), format, 0), {})
        self.insert_chunk(data)
        self.finish_insert()
        self.summary = QuerySummary()  # the summary covers the query only

    def begin_insert(self, head: InsertStatement, binds: Mapping[str, str], data: bytes | None = None) -> None:
        """Start an INSERT. `data`: all of its data if already known; its values may then be expressions."""
        self._check_allowed(head.statement + f" FORMAT {head.format}".encode())
        with _translate_errors():
            if head.format.lower() == "values" and data is not None and not self._check.is_suspicious(data):
                self._connection.query(f"SET {', '.join(f'{name} = 1' for name in VALUE_EXPRESSIONS)}")
            for name, value in binds.items():  # send_insert has no parameters, so they are set on the session
                self._connection.query(f"SET {_quote_identifier('param_' + name)} = {_quote_literal(value)}")
            self._insert = self._connection.send_insert(head.statement, head.format)

    def insert_chunk(self, data: bytes) -> None:
        with _translate_errors():
            self._connection.insert_append(self._insert, data)

    def finish_insert(self) -> None:
        """Commit the INSERT. If the session closes before this, the last block is not inserted."""
        with _translate_errors():
            self.summary.add(self._connection.insert_done(self._insert))

    def iter_result(self, sql: bytes, tokens: list[SqlToken], format: str, binds: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the result of a statement in non-empty chunks. The statement runs when the first one is requested."""
        self._check_allowed(sql)
        with _translate_errors():
            kind = self._connection.classify_query(sql)
            self.returns_rows = str(kind["query_class"]) == "query_class.READ_ONLY"
            # Text that does not parse also goes to send_query, which rejects all of it; query() would run the
            # statements before the invalid one.
            broken = kind["statement_count"] != 1
            if broken or (self.returns_rows and can_stream(tokens, format)):
                chunks = self._iter_streamed(sql, format, binds)
                yield from _join_arrow_streams(chunks) if format == _ARROW_STREAM else chunks
            else:
                yield from self._iter_buffered(sql, format, binds)

    def _iter_streamed(self, sql: bytes, format: str, binds: Mapping[str, str]) -> Iterator[bytes]:
        stream = self._connection.send_query(sql, format, params=binds)
        while True:
            result = self._connection.streaming_fetch_result(stream)
            self.summary.add(result)
            piece = result.bytes()
            if not piece:
                return
            yield piece

    def _iter_buffered(self, sql: bytes, format: str, binds: Mapping[str, str]) -> Iterator[bytes]:
        result = self._connection.query(sql, format, params=binds)
        self.summary.add(result)
        if piece := result.bytes():
            yield piece

    def close(self) -> None:
        self._connection.close()

    def _check_allowed(self, sql: bytes) -> None:
        """Raise QueryFailed if a statement uses files or programs in a way that the engine does not check."""
        if not self._check.is_suspicious(sql):
            return
        with _translate_errors():
            formatted = self._connection.query(_FORMAT_QUERY, "RawBLOB", params={"statement": sql.hex()}).bytes()
        if reason := self._check.find_forbidden(formatted):
            raise QueryFailed.from_endpoint(497, "ACCESS_DENIED", reason)


class ChdbEngine:
    """chDB on one data directory. Keeps one connection open, because chDB stops when the last one closes."""

    def __init__(self, data_dir: Path) -> None:
        self._lock = _lock_directory(data_dir)
        users = data_dir / "users.xml"
        write_private_file(users, build_users_config())
        # users_config takes effect only together with config-file.
        self._address = f"{data_dir}?config-file={users}&users_config={users}"
        try:
            self._root = _connect(self._address)
            _replace_default_database(self._root, data_dir)
            functions = self._root.query("SELECT name FROM system.table_functions", "TabSeparated").bytes()
            facts = self._root.query("SELECT version(), timezone(), hostName()", "TabSeparated").bytes()
        except RuntimeError as error:
            raise EmbeddedError(f"chDB could not open {data_dir}: {error}") from error
        self._check = StatementCheck(functions.decode().split())
        self.version, self.timezone, self.host_name = facts.decode().rstrip("\n").split("\t")

    def open_session(self, settings: Mapping[str, str], database: str) -> ChdbSession:
        session = ChdbSession(_connect(self._address), self._check)
        try:
            session.configure(settings, database)
        except QueryFailed:
            session.close()
            raise
        return session

    def kill_queries(self) -> None:
        """Cancel all running queries (QUERY_WAS_CANCELLED) and wait until they have stopped."""
        self._root.query("KILL QUERY WHERE query NOT LIKE 'KILL QUERY %' SYNC")

    def close(self) -> None:
        self._root.close()
        os.close(self._lock)


def _replace_default_database(root: _Connection, data_dir: Path) -> None:
    """Replace chDB's `default` database, which reads table names as file names, by an ordinary one with its tables."""
    facts = root.query("SELECT engine, uuid FROM system.databases WHERE name = 'default'", "TabSeparated").bytes()
    engine, uuid = facts.decode().split()
    if engine != "Overlay":
        return
    record = data_dir / "metadata" / "default.sql"
    has_tables = record.with_suffix("").exists()
    root.query("DETACH DATABASE default")
    if not has_tables:
        record.unlink(missing_ok=True)  # the engine drops a database without tables, and then rejects its metadata file
        root.query("CREATE DATABASE default ENGINE = Atomic")
    elif record.exists():
        root.query("ATTACH DATABASE default")
    else:  # written by a release that kept chDB's own database
        root.query(f"ATTACH DATABASE default UUID '{uuid}' ENGINE = Atomic")


def can_stream(tokens: list[SqlToken], format: str) -> bool:
    return is_query(tokens) and (format in _STREAMABLE_FORMATS or format == _ARROW_STREAM)


def _join_arrow_streams(streams: Iterator[bytes]) -> Iterator[bytes]:
    """Join Arrow streams of one schema into a single one, with one schema message and one end marker."""
    first = True
    for stream in streams:
        schema_end = 8 + int.from_bytes(stream[4:8], "little")
        yield stream[0 if first else schema_end : -len(_ARROW_STREAM_END)]
        first = False
    if not first:
        yield _ARROW_STREAM_END


def _lock_directory(data_dir: Path) -> int:
    """Lock the data directory and return the file descriptor. Raises DataDirectoryError if it is in use.

    The kernel releases the lock when the process exits, even if it is killed.
    """
    path = data_dir / "headrace.lock"
    try:
        data_dir.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryError(f"Cannot write to the data directory {data_dir}: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise DataDirectoryError(
            f"The data directory {data_dir} is in use by process {holder}. Nothing was changed."
            " Stop that process, or choose another --data-dir."
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _quote_identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _quote_literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
