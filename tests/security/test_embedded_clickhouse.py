"""Attacks on the embedded ClickHouse: without a password, and through SQL against the machine it runs on."""

# clickhouse-connect is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import stat
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import clickhouse_connect
import httpx
import psutil
import pytest
import zstandard

from headrace.embedded import http_coding
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.clickhouse_access import DATABASE_ENGINES, TABLE_ENGINES, TABLE_FUNCTIONS, USER
from headrace.embedded.credentials import FILE, read_passwords
from tests.conftest import READY_S
from tests.security.servers import started

TIMEOUT_S = 120.0
SECRET = "not to be read\n"


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret.txt"
        self.secret.write_text(SECRET)
        self.embedded = EmbeddedClickHouse(folder / "data", folder / "log")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.embedded.port}/"

    @property
    def password(self) -> str:
        return read_passwords(self.embedded.data_dir)[USER]

    def post(self, sql: str | bytes, **parameters: str) -> httpx.Response:
        auth = (USER, self.password)
        return httpx.post(self.address, content=sql, params=parameters, auth=auth, timeout=TIMEOUT_S)

    def names(self, table: str) -> list[str]:
        return self.post(f"SELECT name FROM system.{table} ORDER BY name").text.split()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("clickhouse"))
    with started(server.embedded):
        assert server.post("CREATE DATABASE attacks").status_code == 200
        assert server.post("CREATE TABLE attacks.t (s String) ENGINE = MergeTree ORDER BY s").status_code == 200
        yield server


def ask_without_password(server: Server, headers: dict[str, str], **parameters: str) -> httpx.Response:
    url = httpx.URL(server.address, params=parameters)
    return httpx.post(url, content="SELECT 1", headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({}, {}),
        ({"X-ClickHouse-User": "default"}, {}),
        ({"X-ClickHouse-User": USER}, {}),
        ({"X-ClickHouse-User": USER, "X-ClickHouse-Key": "guessed"}, {}),
        ({"Authorization": "Basic aGVhZHJhY2U6"}, {}),
        ({"Authorization": "Basic ???"}, {}),
        ({}, {"user": USER}),
        ({}, {"user": "default", "password": ""}),
    ],
)
def test_a_query_needs_the_password(server: Server, headers: dict[str, str], parameters: dict[str, str]) -> None:
    answer = ask_without_password(server, headers, **parameters)
    assert (answer.status_code, answer.headers["X-ClickHouse-Exception-Code"]) == (403, "516")


def test_clients_send_the_password_in_three_ways(server: Server) -> None:
    ways = [
        httpx.post(server.address, content="SELECT 1", auth=(USER, server.password)),
        ask_without_password(server, {"X-ClickHouse-User": USER, "X-ClickHouse-Key": server.password}),
        ask_without_password(server, {}, user=USER, password=server.password),
    ]
    assert [way.text for way in ways] == ["1\n"] * 3
    assert clickhouse_connect.get_client(dsn=server.embedded.url).command("SELECT 1") == 1


def test_the_password_is_for_the_owner_alone(server: Server) -> None:
    assert stat.S_IMODE((server.embedded.data_dir / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(server.embedded.data_dir.stat().st_mode) == 0o700
    for process in psutil.process_iter(["cmdline"]):
        assert server.password not in " ".join(process.info["cmdline"] or ())
    assert server.password not in server.embedded.log_file.read_text()


def test_every_table_function_is_allowed_or_refused(server: Server) -> None:
    """A table function added by a later engine is refused until it is on the allow-list."""
    names = server.names("table_functions")
    assert len(names) > 50
    for name in [name for name in names if name not in TABLE_FUNCTIONS]:
        for sql in (f"SELECT * FROM {name}('{server.secret}', 'x')", f"INSERT INTO FUNCTION {name}('x') SELECT 1"):
            answer = server.post(sql)
            assert (sql, answer.status_code, "ACCESS_DENIED" in answer.text) == (sql, 403, True)


def test_every_table_engine_is_allowed_or_refused(server: Server) -> None:
    names = server.names("table_engines")
    assert set(names) >= TABLE_ENGINES
    for name in [name for name in names if name not in TABLE_ENGINES]:
        answer = server.post(f"CREATE TABLE attacks.e (s String) ENGINE = {name}('{server.secret}')")
        assert (name, answer.status_code, "ACCESS_DENIED" in answer.text) == (name, 403, True)


def test_every_database_engine_that_reaches_out_is_refused(server: Server) -> None:
    for name in [name for name in server.names("database_engines") if name not in DATABASE_ENGINES]:
        answer = server.post(f"CREATE DATABASE e ENGINE = {name}('{server.secret}', 'a', 'b', 'c')")
        assert (name, answer.status_code, "ACCESS_DENIED" in answer.text) == (name, 403, True)


READS = [
    "SELECT file('{path}')",
    "SELECT `file`('{path}')",
    "SELECT \"fil\\x65\"('{path}')",
    "SELECT `\\x66ile`('{path}')",
    "SELECT/**/file/* */('{path}')",
    "SELECT file -- comment\n('{path}')",
    "SELECT arrayMap(file, ['{path}'])",
    "SELECT * APPLY(file) FROM (SELECT '{path}')",
    "SELECT * APPLY file FROM (SELECT '{path}')",
    "WITH (SELECT file('{path}')) AS x SELECT x",
    "EXPLAIN SELECT file('{path}')",
    "CREATE VIEW attacks.v AS SELECT file('{path}')",
    "CREATE TABLE attacks.d (a UInt8, s String DEFAULT file('{path}')) ENGINE = Memory",
    "ALTER TABLE attacks.t UPDATE s = file('{path}') WHERE 1",
    "INSERT INTO attacks.t VALUES (file('{path}'))",
    "INSERT INTO attacks.t VALUES (`fil\\x65`('{path}'))",
    "INSERT INTO attacks.t SETTINGS input_format_values_interpret_expressions = 1 VALUES (file('{path}'))",
    "INSERT INTO attacks.t SELECT file('{path}')",
    "SELECT * FROM file('{path}', 'RawBLOB')",
    "SELECT * FROM `file`('{path}', 'RawBLOB')",
    "SELECT * FROM loop(file('{path}', 'RawBLOB'))",
    "SELECT * FROM '{path}'",
    "SELECT * FROM `{path}`",
    "SELECT * FROM default.`{path}`",
    "DESCRIBE TABLE file('{path}', 'RawBLOB')",
    "INSERT INTO attacks.t FROM INFILE '{path}' FORMAT RawBLOB",
    "INSERT INTO attacks.t FROM INFILE $${path}$$ FORMAT RawBLOB",
    "SELECT 1 FORMAT Template SETTINGS format_template_resultset = '{path}'",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '{path}'",
    "SELECT 1 SETTINGS dialect = 'prql'",
    "CREATE DICTIONARY attacks.x (id UInt64, a String) PRIMARY KEY id"
    " SOURCE(FILE(path '{path}' format 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
    "CREATE FUNCTION reads AS x -> file(x)",
    "SELECT * FROM url('file://{path}', 'RawBLOB')",
]
WRITES = [
    "SELECT 1 INTO OUTFILE '{path}'",
    "SELECT 1 INTO OUTFILE $${path}$$",
    "SELECT 1 INTO/**/OUTFILE/**/'{path}'",
    "SELECT 1 into\noutfile '{path}' FORMAT CSV",
    "SELECT 1; SELECT 1 INTO OUTFILE '{path}'",
    "(SELECT 1) INTO OUTFILE '{path}'",
    "INSERT INTO FUNCTION file('{path}', 'CSV') SELECT 1",
    "INSERT INTO TABLE FUNCTION file('{path}', 'CSV', 'a UInt8') VALUES (1)",
    "BACKUP TABLE attacks.t TO File('{path}')",
    "CREATE TABLE attacks.m (a UInt8) ENGINE = Log SETTINGS disk = disk(type = local, path = '{path}/')",
    "CREATE TABLE attacks.f (a UInt8) ENGINE = File(CSV, '{path}')",
]
CONTROLS = [
    "SYSTEM SHUTDOWN",
    "SYSTEM DROP MARK CACHE",
    "GRANT ALL ON *.* TO default",
    "CREATE USER mine",
    "SELECT * FROM python(os)",
    "SELECT * FROM executable('id', 'CSV', 'a String')",
    "SELECT * FROM remote('127.0.0.1:1', 'system', 'one')",
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV')",
]


@pytest.mark.parametrize("attack", READS)
def test_sql_reads_no_file(server: Server, attack: str) -> None:
    answer = server.post(attack.replace("{path}", str(server.secret)), allow_experimental_prql_dialect="1")
    assert answer.status_code >= 400, answer.text
    assert SECRET.strip() not in answer.text
    stored = server.post("SELECT count() FROM attacks.t").text
    server.post("TRUNCATE TABLE attacks.t")
    assert stored == "0\n"


@pytest.mark.parametrize("attack", WRITES)
def test_sql_writes_no_file(server: Server, attack: str, tmp_path: Path) -> None:
    written = tmp_path / "written"
    answer = server.post(attack.replace("{path}", str(written)))
    assert answer.status_code >= 400, answer.text
    assert not written.exists()


@pytest.mark.parametrize("attack", CONTROLS)
def test_sql_controls_neither_the_server_nor_others(server: Server, attack: str) -> None:
    answer = server.post(attack)
    assert (answer.status_code, "ACCESS_DENIED" in answer.text) == (403, True)


def test_external_data_and_parameters_reach_no_file(server: Server) -> None:
    auth = (USER, server.password)
    columns = [f"a UInt8, s String DEFAULT file('{server.secret}')", f"a UInt8) AS SELECT file('{server.secret}') --"]
    for structure in columns:
        parameters = {"query": "SELECT s FROM x", "x_structure": structure, "x_format": "JSONEachRow"}
        files = {"x": ("x", b'{"a": 1}')}
        answer = httpx.post(server.address, params=parameters, files=files, auth=auth, timeout=TIMEOUT_S)
        assert (answer.status_code, "ACCESS_DENIED" in answer.text) == (403, True)
    answer = server.post("SELECT * FROM {t:Identifier}", param_t=str(server.secret))
    assert (answer.status_code, SECRET in answer.text) == (404, False)
    answer = server.post("SELECT 1", input_format_values_interpret_expressions="1")
    assert answer.status_code == 403


def test_harmless_statements_that_look_alike_are_served(server: Server) -> None:
    assert server.post("SELECT 'file', 'INTO OUTFILE', 'url('").text == "file\tINTO OUTFILE\turl(\n"
    assert server.post("SELECT name FROM system.tables WHERE engine = name").status_code == 200
    assert server.post("INSERT INTO attacks.t VALUES ('a\\'b'), (concat('c', 'd'))").status_code == 200
    assert server.post("INSERT INTO attacks.t VALUES ('file(1)')").status_code == 200
    assert server.post("SELECT * FROM attacks.t ORDER BY s").text == "a\\'b\ncd\nfile(1)\n"
    server.post("TRUNCATE TABLE attacks.t")
    assert server.post("SELECT count() AS profiles FROM numbers(3)").text == "3\n"
    assert server.post("SELECT 'it\\'s', 1 AS `a b`").text == "it\\'s\t1\n"


def read_piece_sizes(coding: str, body: bytes) -> list[int]:
    async def chunks() -> AsyncIterator[bytes]:
        yield body

    async def read() -> list[int]:
        return [len(piece) async for piece in http_coding.decode_body(chunks(), coding)]

    return asyncio.run(read())


def test_a_small_body_does_not_fill_the_memory() -> None:
    """A compressed body of 100 KiB used to take 100 MiB to several GiB of memory."""
    size = 64 * 2**20
    bombs = {
        "zstd": zstandard.ZstdCompressor(level=19).compress(bytes(size)),
        "gzip": zlib.compress(bytes(size), level=9, wbits=31),
        "deflate": zlib.compress(bytes(size), level=9),
    }
    for coding, bomb in bombs.items():
        pieces = read_piece_sizes(coding, bomb)
        assert (coding, sum(pieces)) == (coding, size)
        assert max(pieces) <= 18 * 2**20


def test_tables_of_the_default_database_are_there_after_each_start(tmp_path: Path) -> None:
    """chDB's own `default` database, which reads table names as file names, is replaced at each start."""
    server = Server(tmp_path)
    create = "CREATE TABLE IF NOT EXISTS t (n UInt8) ENGINE = MergeTree ORDER BY n"
    for start in range(5):
        server.embedded.start()
        try:
            server.embedded.wait_ready(READY_S)
            assert server.post("SELECT engine FROM system.databases WHERE name = 'default'").text == "Atomic\n"
            if start > 1:
                for statement in (create, f"INSERT INTO t VALUES ({start})"):
                    assert server.post(statement).status_code == 200
                found = server.post("SELECT n FROM t ORDER BY n FORMAT CSV").text.split()
                assert found == [str(n) for n in range(2, start + 1)]
        finally:
            if start % 2:
                psutil.Process(server.embedded.child.pid).kill()
            server.embedded.stop()
