"""The embedded ClickHouse endpoint, through an unmodified clickhouse-connect and through plain HTTP."""

# clickhouse-connect and pyarrow are only partially typed, pandas is not.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportArgumentType=false

from __future__ import annotations

import asyncio
import gzip
import io
import os
import signal
import socket
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clickhouse_connect
import httpx
import lz4.frame
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, Error
from clickhouse_connect.driver.external import ExternalData

from headrace.embedded.clickhouse_access import USER
from headrace.embedded.credentials import read_passwords
from tests.conftest import READY_S, wait_until
from tests.ports import reserved_port

SOURCE = Path(__file__).parents[2] / "src"


PATIENCE_S = 120.0


class Endpoint:
    """The endpoint in its own process."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.data_dir = data_dir
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}/"
        self.process = self.spawn()

    def spawn(self) -> subprocess.Popen[str]:
        module = [sys.executable, "-m", "headrace.embedded.clickhouse_http"]
        options = ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.Popen(module + options, env=environment, stderr=subprocess.PIPE, text=True)

    def answers(self) -> bool:
        assert self.process.poll() is None, "the endpoint died"
        try:
            return self.get("ping").text == "Ok.\n"
        except httpx.TransportError:
            return False

    def ready(self) -> Endpoint:
        wait_until(self.answers, "it answers", READY_S)
        return self

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self.spawn()
        self.ready()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def client(self, **options: object) -> Client:
        user, password = self.credentials
        return clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, username=user, password=password, **options
        )

    @property
    def credentials(self) -> tuple[str, str]:
        return USER, read_passwords(self.data_dir)[USER]

    def post(
        self, body: bytes | str | Iterator[bytes], headers: Mapping[str, str] | None = None, **parameters: str
    ) -> httpx.Response:
        given = {"params": parameters, "content": body, "headers": headers}
        return httpx.post(self.url, auth=self.credentials, timeout=PATIENCE_S, **given)

    def get(self, path: str = "", **parameters: str) -> httpx.Response:
        auth = None if path == "ping" else self.credentials
        return httpx.get(self.url + path, params=parameters, auth=auth, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Generator[Endpoint]:
    with reserved_port() as port:
        running = Endpoint(tmp_path_factory.mktemp("clickhouse"), port).ready()
        yield running
        assert running.stop() == 0


@pytest.fixture
def own_endpoint(tmp_path: Path) -> Generator[Endpoint]:
    """Yield an endpoint that the test may kill."""
    with reserved_port() as port:
        running = Endpoint(tmp_path / "data with 'quote' ü", port).ready()
        yield running
        running.process.kill()
        running.process.wait()


@pytest.fixture
def client(endpoint: Endpoint) -> Client:
    return endpoint.client()


@pytest.fixture
def table(client: Client) -> str:
    name = f"t_{uuid.uuid4().hex}"
    client.command(
        f"CREATE TABLE {name} (id UInt64, name String) ENGINE = MergeTree ORDER BY id"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    return name


def count(client: Client, table: str) -> int:
    return int(str(client.command(f"SELECT count() FROM {table}")))


# --- the ordinary client --------------------------------------------------------------------------


def test_the_default_client_connects_and_learns_about_the_server(endpoint: Endpoint, client: Client) -> None:
    assert client.ping()
    assert str(client.server_version).startswith("26.")
    assert len(client.server_settings) > 1000
    assert client.get_client_setting("session_id"), "this test is about a client that sends a session id"
    with pytest.raises(Error, match="UNKNOWN_DATABASE"):
        endpoint.client(database="nowhere").query("SELECT 1")


def test_query_command_and_insert(client: Client, table: str) -> None:
    summary = client.insert(table, [[1, "one"], [2, "it's \\ ☃\t\n"]], column_names=["id", "name"])
    assert summary.written_rows == 2
    result = client.query(f"SELECT * FROM {table} ORDER BY id")
    assert result.result_rows == [(1, "one"), (2, "it's \\ ☃\t\n")]
    assert result.column_names == ("id", "name")
    assert result.summary["read_rows"] == "2"
    assert client.command(f"SELECT count() FROM {table}") == 2
    assert client.command(f"SELECT name FROM {table} WHERE id = 99") == ""
    assert client.query(f"SELECT * FROM {table} LIMIT 0").column_names == ("id", "name")
    client.command(f"INSERT INTO {table} VALUES (3, 'a;b'), (1 + 3, lower('FOUR'));")
    client.command(f"INSERT INTO {table} SELECT id + 10, name FROM {table}")
    assert client.command(f"SELECT groupArray(id) FROM (SELECT id FROM {table} ORDER BY id)") == (
        "[1,2,3,4,11,12,13,14]"
    )
    client.command(f"INSERT INTO {table} FORMAT CSV", data="21,x\n22,y\n")
    assert count(client, table) == 10


def test_data_frames_arrow_and_numpy(client: Client, table: str) -> None:
    frame = pandas.DataFrame({"id": [1, 2], "name": ["a", "b"]})
    client.insert_df(table, frame)
    arrow = pyarrow.table({"id": pyarrow.array([3, 4], pyarrow.uint64()), "name": ["c", "d"]})
    client.insert_arrow(table, arrow)
    query = f"SELECT * FROM {table} ORDER BY id"
    assert list(client.query_df(query)["name"]) == ["a", "b", "c", "d"]
    assert client.query_arrow(query, use_strings=True)["name"].to_pylist() == ["a", "b", "c", "d"]
    assert client.query_np(query)["id"].tolist() == [1, 2, 3, 4]


def test_streams_arrive_whole(client: Client) -> None:
    query = "SELECT number AS n, toString(number) AS s FROM numbers(1000000) ORDER BY n"
    with client.query_row_block_stream(query) as blocks:
        sizes = [len(block) for block in blocks]
    assert sum(sizes) == 1_000_000
    assert len(sizes) > 1
    with client.query_arrow_stream(query, use_strings=True) as batches:
        tables = list(batches)
    assert len(tables) > 1
    numbers = [n for batch in tables for n in batch.column(0).to_pylist()]
    assert numbers == list(range(1_000_000))
    with client.query_df_stream(query) as frames:
        assert sum(len(frame) for frame in frames) == 1_000_000


def test_a_large_result_is_not_held_in_memory(endpoint: Endpoint) -> None:
    def peak_bytes() -> int:
        status = Path(f"/proc/{endpoint.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    before, size = peak_bytes(), 0
    query = "SELECT number FROM numbers(60000000) FORMAT Native"
    with httpx.stream("POST", endpoint.url, content=query, auth=endpoint.credentials, timeout=PATIENCE_S) as answer:
        for chunk in answer.iter_bytes():
            size += len(chunk)
    assert size > 480_000_000
    assert peak_bytes() - before < 200_000_000


@pytest.mark.parametrize("value", ["it's", '"', "\\", "a\tb\nc", "☃ {x:String} --", ""])
def test_string_parameters(client: Client, value: str) -> None:
    assert client.query("SELECT {v:String}", parameters={"v": value}).first_row == (value,)


def test_other_parameters(client: Client, table: str) -> None:
    given = {"ids": [1, 2], "names": ["a'b", "c\\"], "none": None, "table": table}
    query = "SELECT {ids:Array(UInt8)}, {names:Array(String)}, {none:Nullable(String)}"
    assert client.query(query, parameters=given).first_row == ([1, 2], ["a'b", "c\\"], None)
    client.command("INSERT INTO {table:Identifier} VALUES (7, {name:String})", parameters=given | {"name": "it's"})
    assert client.query("SELECT * FROM {table:Identifier}", parameters=given).result_rows == [(7, "it's")]


def test_parameters_too_long_for_a_url_come_as_a_form(client: Client) -> None:
    numbers = list(range(20_000))
    result = client.query("SELECT arraySum({n:Array(UInt32)}), {s:String}", parameters={"n": numbers, "s": "☃" * 9000})
    assert result.first_row == (sum(numbers), "☃" * 9000)


@pytest.mark.parametrize(
    "shape", [{"structure": "a UInt8, b Tuple(Int8, String)"}, {"types": "UInt8, Tuple(Int8, String)"}]
)
def test_external_data(client: Client, shape: dict[str, str]) -> None:
    external = ExternalData(file_name="given.tsv", data=b"1\t(2,'x')\n", fmt="TSV", **shape)
    assert client.query("SELECT * FROM given", external_data=external).result_rows == [(1, (2, "x"))]
    with pytest.raises(Error, match="UNKNOWN_TABLE"):
        client.query("SELECT * FROM given")


@pytest.mark.parametrize("compress", [True, False, "lz4", "zstd", "gzip", "deflate"])
def test_compression(endpoint: Endpoint, table: str, compress: bool | str) -> None:
    if compress == "deflate":
        client = endpoint.client(compress=False)
        client.insert(table, [[n, "x" * 50] for n in range(50_000)], column_names=["id", "name"])
        client = endpoint.client(compress=compress)
    else:
        client = endpoint.client(compress=compress)
        client.insert(table, [[n, "x" * 50] for n in range(50_000)], column_names=["id", "name"])
    assert client.query(f"SELECT sum(id), min(name) FROM {table}").first_row == (1249975000, "x" * 50)
    assert len(client.query(f"SELECT * FROM {table}").result_rows) == 50_000
    with client.query_row_block_stream("SELECT number, toString(number) FROM numbers(600000)") as blocks:
        assert sum(len(block) for block in blocks) == 600_000


def test_settings_hold_for_one_request(endpoint: Endpoint, client: Client) -> None:
    read = "SELECT getSetting('max_threads'), getSetting('insert_deduplication_token')"
    usual = client.query(read).first_row
    settings = {"max_threads": 7, "insert_deduplication_token": "it's"}
    assert client.query(read, settings=settings).first_row == (7, "it's")
    assert client.query(read).first_row == usual
    assert endpoint.client(settings={"max_threads": 5}).command("SELECT getSetting('max_threads')") == 5
    with pytest.raises(Error, match="UNKNOWN_SETTING"):
        client.query("SELECT 1", settings={"no_such_setting": 1})


def test_an_error_in_the_middle_of_a_stream_is_raised(endpoint: Endpoint, client: Client) -> None:
    query = "SELECT number, throwIf(number = 9000000) FROM numbers(10000000)"
    slow = {"max_threads": 1, "max_block_size": 65536}
    with (
        pytest.raises(Error, match="FUNCTION_THROW_IF"),
        client.query_row_block_stream(query, settings=slow) as blocks,
    ):
        assert sum(len(block) for block in blocks) < 0, "the stream ended as if it were complete"
    with pytest.raises(Error, match="FUNCTION_THROW_IF"):
        assert len(client.query(query, settings=slow).result_rows) < 0, "the result looked complete"
    with pytest.raises(httpx.RemoteProtocolError):  # status 200 was already sent, then the connection was closed
        endpoint.post(query, max_threads="1", max_block_size="65536")


def test_async_client(endpoint: Endpoint) -> None:
    pytest.importorskip("aiohttp", reason="clickhouse-connect's async client needs aiohttp")

    async def ask() -> None:
        client = await clickhouse_connect.get_async_client(
            host="127.0.0.1", port=endpoint.port, username=USER, password=endpoint.credentials[1]
        )
        async with client:
            result = await client.query("SELECT number FROM numbers(3)")
            assert result.result_rows == [(0,), (1,), (2,)]

    asyncio.run(ask())


# --- plain HTTP -----------------------------------------------------------------------------------


def test_ping_and_root(endpoint: Endpoint) -> None:
    assert endpoint.get("ping").text == "Ok.\n"
    assert endpoint.get().text == "Ok.\n"
    assert endpoint.get("elsewhere", query="SELECT 1").status_code == 404


def test_headers(endpoint: Endpoint, table: str) -> None:
    answer = endpoint.post("SELECT 1 WHERE 0", query_id="mine")
    assert answer.headers["X-ClickHouse-Query-Id"] == "mine"
    assert answer.headers["X-ClickHouse-Format"] == "TabSeparated"
    assert answer.headers["X-ClickHouse-Timezone"]
    assert answer.headers["X-ClickHouse-Server-Display-Name"]
    assert endpoint.post("SELECT 1", session_timezone="Asia/Tokyo").headers["X-ClickHouse-Timezone"] == "Asia/Tokyo"
    assert "x-split" not in endpoint.post("SELECT 1", query_id="a\r\nX-Split: 1").headers
    assert "X-ClickHouse-Format" not in endpoint.post(f"INSERT INTO {table} VALUES (1, 'x')").headers
    assert "X-ClickHouse-Format" not in endpoint.post(f"ALTER TABLE {table} COMMENT COLUMN id 'x'").headers


def test_output_formats(endpoint: Endpoint) -> None:
    assert endpoint.post("SELECT 1 AS format, 'FORMAT CSV' -- FORMAT JSON").text == "1\tFORMAT CSV\n"
    assert endpoint.post("SELECT 1 AS a FORMAT TSVWithNames SETTINGS max_block_size = 1;").text == "a\n1\n"
    assert endpoint.post("SELECT 'a' SETTINGS max_threads = 1 FORMAT CSV").text == '"a"\n'
    assert endpoint.post("SELECT 1 AS a", default_format="JSONEachRow").text == '{"a":1}\n'
    answer = endpoint.post("SHOW DATABASES", {"X-ClickHouse-Format": "JSON"})
    assert {"name": "default"} in answer.json()["data"]
    blocks = endpoint.post("SELECT number FROM numbers(9) FORMAT JSON", max_block_size="2").json()
    assert blocks["rows"] == 9, "a format with a frame must not be sent block by block"
    parquet = endpoint.post("SELECT number FROM numbers(9) FORMAT Parquet", max_block_size="2").content
    assert pyarrow.parquet.read_table(io.BytesIO(parquet)).num_rows == 9


def test_a_result_that_is_not_streamed_is_bounded(endpoint: Endpoint) -> None:
    query = "SELECT getSetting('max_result_bytes') AS bound FORMAT "
    assert endpoint.post(query + "JSONCompact").json()["data"] == [[268435456]]
    assert endpoint.post(query + "JSONCompact", max_result_bytes="999").json()["data"] == [[999]]
    assert endpoint.post(query + "CSV").text == "0\n"


def arrow_bytes(kind: str) -> bytes:
    table = pyarrow.table({"id": pyarrow.array([1, 2], pyarrow.uint64()), "name": ["a", "b"]})
    sink = io.BytesIO()
    if kind == "Parquet":
        pyarrow.parquet.write_table(table, sink)
        return sink.getvalue()
    new = pyarrow.ipc.new_stream if kind == "ArrowStream" else pyarrow.ipc.new_file
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


INSERT_BODIES = {
    "CSV": b'1,"a"\n2,"b"\n',
    "TabSeparated": b"1\ta\n2\tb\n",
    "JSONEachRow": b'{"id":1,"name":"a"}{"id":2,"name":"b"}',
    "Values": b"(1,'a'),(2,'b')",
    "RowBinary": b"\x01" + bytes(7) + b"\x01a" + b"\x02" + bytes(7) + b"\x01b",
    **{kind: arrow_bytes(kind) for kind in ("Arrow", "ArrowStream", "Parquet")},
}


@pytest.mark.parametrize("where", ["url", "body"])
@pytest.mark.parametrize("format", INSERT_BODIES)
def test_insert_formats(endpoint: Endpoint, table: str, format: str, where: str) -> None:
    statement = f"/* FORMAT x */ INSERT INTO {table} (id, `name`) FORMAT {format}\n"
    body = INSERT_BODIES[format]
    answer = endpoint.post(body, query=statement) if where == "url" else endpoint.post(statement.encode() + body)
    assert answer.status_code == 200, answer.text
    assert endpoint.post(f"SELECT * FROM {table} ORDER BY id FORMAT CSV").text == '1,"a"\n2,"b"\n'


def test_settings_inside_an_insert(endpoint: Endpoint, table: str) -> None:
    statement = f"INSERT INTO {table} (id) SETTINGS insert_deduplication_token = 'x', async_insert = 0 FORMAT CSV\n5"
    for _ in range(2):
        assert endpoint.post(statement).status_code == 200
    assert endpoint.post(f"SELECT id FROM {table}").text == "5\n"


def test_an_insert_refused_early_still_gets_its_answer(client: Client) -> None:
    rows = [[n, "x" * 1000] for n in range(20_000)]
    with pytest.raises(Error, match="UNKNOWN_TABLE"):
        client.raw_insert("nowhere", insert_block="".join(f"{n},{x}\n" for n, x in rows), fmt="CSV")


def test_names_that_look_like_clauses(endpoint: Endpoint) -> None:
    endpoint.post("CREATE TABLE IF NOT EXISTS format (values UInt8, `select` UInt8) ENGINE = Memory")
    for statement in (
        "INSERT INTO format (values, `select`) VALUES (1, 2)",
        "INSERT INTO default.format FORMAT CSV\n1,2",
    ):
        answer = endpoint.post(statement)
        assert answer.status_code == 200, answer.text
    assert endpoint.post("SELECT count() FROM format").text == "2\n"
    assert endpoint.post("SELECT 1 AS outfile, 2 AS infile").text == "1\t2\n"
    endpoint.post("DROP TABLE format")


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "lz4": lz4.frame.compress,
    "zstd": zstd,
}


@pytest.mark.parametrize("coding", CODINGS)
def test_compressed_bodies(endpoint: Endpoint, client: Client, table: str, coding: str) -> None:
    def send(body: bytes | Iterator[bytes]) -> httpx.Response:
        return endpoint.post(body, {"Content-Encoding": coding})

    compress = CODINGS[coding]
    rows = b"".join(b"%d,x\n" % n for n in range(100_000))
    whole = compress(f"INSERT INTO {table} FORMAT CSV\n".encode() + rows)
    assert send(whole).status_code == 200
    assert count(client, table) == 100_000
    frames = (compress(part) for part in (f"INSERT INTO {table} FORMAT ".encode(), b"CSV\n7,", b"x\n"))
    assert send(frames).status_code == 200  # an iterator is sent in chunks
    assert count(client, table) == 100_001
    damaged = send(whole[: len(whole) // 2])
    assert (damaged.status_code, damaged.headers["X-ClickHouse-Exception-Code"]) == (400, "117")
    assert send(b"not compressed at all").status_code == 400
    assert count(client, table) == 100_001


def test_chunked_body_of_a_query_in_the_url(endpoint: Endpoint, client: Client, table: str) -> None:
    rows = (b"%d,x\n" % n for n in range(1000))
    assert endpoint.post(rows, query=f"INSERT INTO {table} FORMAT CSV").status_code == 200
    assert count(client, table) == 1000


@pytest.mark.parametrize(
    ("statement", "status", "code"),
    [
        ("SELEC 1", 400, 62),
        ("SELECT 1; SELECT 2", 400, 62),
        ("", 400, 62),
        ("SELECT toDate('x')", 400, 38),
        ("SELECT * FROM nowhere", 404, 60),
        ("SELECT * FROM nowhere.t", 404, 81),
        ("SELECT nothing", 404, 47),
        ("SELECT 1 FORMAT Nonsense", 404, 73),
        ("INSERT INTO nowhere FORMAT CSV\n1", 404, 60),
        ("SELECT throwIf(1)", 500, 395),
        (
            "SELECT sleepEachRow(1) FROM numbers(3) SETTINGS max_execution_time = 1, max_block_size = 1",
            408,
            159,
        ),
        ("SELECT \xff\xfe", 400, 62),
    ],
)
def test_errors_are_clickhouses_own(endpoint: Endpoint, statement: str, status: int, code: int) -> None:
    answer = endpoint.post(statement.encode("latin-1"))
    assert (answer.status_code, answer.headers["X-ClickHouse-Exception-Code"]) == (status, str(code))
    assert answer.text.startswith(f"Code: {code}. DB::")
    assert endpoint.post("SELECT 1").text == "1\n"


@pytest.mark.parametrize(
    "body", [bytes(range(256)) * 40, b"\x00", b"(" * 100_000, b"'" * 9999, b"INSERT INTO t FORMAT"]
)
def test_rubbish_is_refused_and_survived(endpoint: Endpoint, body: bytes) -> None:
    answer = endpoint.post(body)
    assert answer.status_code >= 400
    assert answer.text.startswith("Code: ")
    assert endpoint.post("SELECT 1").text == "1\n"


def test_the_client_gets_code_and_name(client: Client) -> None:
    with pytest.raises(DatabaseError) as raised:
        client.query("SELECT * FROM nowhere")
    assert (raised.value.code, raised.value.name) == (60, "UNKNOWN_TABLE")


@pytest.mark.parametrize("tail", ["; SELECT 1", "; garbage(("])
def test_nothing_of_several_statements_is_run(endpoint: Endpoint, client: Client, table: str, tail: str) -> None:
    assert endpoint.post(f"INSERT INTO {table} SELECT 1, 'x'{tail}").status_code == 400
    assert count(client, table) == 0


@pytest.mark.parametrize(
    "statement", ["SET max_threads = 1", "/* c */ USE system", "CREATE TEMPORARY TABLE x (a Int8)"]
)
def test_what_needs_a_session_is_refused(endpoint: Endpoint, client: Client, statement: str) -> None:
    answer = endpoint.post(statement, session_id="mine")
    assert answer.status_code == 501
    assert "session" in answer.text
    with pytest.raises(Error, match="session"):
        client.command(statement)
    assert endpoint.post("SELECT 1", session_id="mine", session_check="1").status_code == 500


def test_files_of_the_server_are_not_written_by_a_query(endpoint: Endpoint, tmp_path: Path) -> None:
    answer = endpoint.post(f"SELECT 1 INTO OUTFILE '{tmp_path}/out' FORMAT CSV")
    assert answer.status_code == 501
    assert not list(tmp_path.iterdir())


def test_get_is_read_only(endpoint: Endpoint, client: Client, table: str) -> None:
    answer = endpoint.get(query=f"INSERT INTO {table} SELECT 1, 'x'", max_threads="1")
    assert answer.headers["X-ClickHouse-Exception-Code"] == "164"
    assert "POST" in answer.text
    assert count(client, table) == 0
    read = {"query": "SELECT getSetting('max_threads')", "max_threads": "3"}
    assert endpoint.get(**read).text == "3\n"
    assert endpoint.get(**read, readonly="1").text == "3\n"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example.org"},
    ],
)
def test_requests_of_web_pages_are_refused(
    endpoint: Endpoint, client: Client, table: str, headers: dict[str, str]
) -> None:
    answer = endpoint.post(f"INSERT INTO {table} VALUES (1, 'x')", headers)
    assert answer.status_code == 403
    assert count(client, table) == 0


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:8123", "LOCALHOST:1"])
def test_loopback_names_are_let_in(endpoint: Endpoint, host: str) -> None:
    assert endpoint.post("SELECT 1", {"Host": host}).text == "1\n"


# --- one process, many at once, and its end -------------------------------------------------------


def test_eight_threads(endpoint: Endpoint, client: Client, table: str) -> None:
    def work(thread: int) -> None:
        mine = endpoint.client()
        for turn in range(15):
            token = f"{thread}-{turn}"
            rows = [[thread * 1000 + turn, token]]
            mine.insert(table, rows, column_names=["id", "name"], settings={"insert_deduplication_token": token})
            read = "SELECT getSetting('max_block_size'), {v:String}"
            row = mine.query(read, parameters={"v": token}, settings={"max_block_size": 1000 + thread}).first_row
            assert row == (1000 + thread, token)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert count(client, table) == 8 * 15


def test_a_client_that_leaves_while_sending_inserts_nothing(endpoint: Endpoint, client: Client, table: str) -> None:
    user, password = endpoint.credentials
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-ClickHouse-User: {user}\r\nX-ClickHouse-Key: {password}\r\n"
    head += "Content-Length: 1000000\r\n\r\n"
    head += f"INSERT INTO {table} FORMAT CSV\n"
    with socket.create_connection(("127.0.0.1", endpoint.port)) as leaver:
        leaver.sendall(head.encode() + b"1,x\n" * 100_000)
        wait_until(lambda: running(client, table) == 1, "it is being inserted")
    wait_until(lambda: running(client, table) == 0, "it is dropped")
    assert count(client, table) == 0


def test_a_client_that_leaves_while_reading_stops_its_query(endpoint: Endpoint, client: Client) -> None:
    mark = uuid.uuid4().hex
    query = f"SELECT number, '{mark}' FROM numbers(100000000000)"
    with httpx.stream("POST", endpoint.url, content=query, auth=endpoint.credentials, timeout=PATIENCE_S) as answer:
        pieces = (
            answer.iter_bytes()
        )  # keep a reference: httpx closes the connection when the iterator is garbage-collected
        next(pieces)
        assert running(client, mark) == 1
    wait_until(lambda: running(client, mark) == 0, "it is stopped")


def running(client: Client, mark: str) -> int:
    others = "query NOT LIKE '%processes%' AND position(query, {mark:String}) > 0"
    query = f"SELECT count() FROM system.processes WHERE {others}"
    return int(str(client.command(query, parameters={"mark": mark})))


def test_a_second_process_is_refused(endpoint: Endpoint) -> None:
    second = endpoint.spawn()
    _, complaint = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 5
    assert str(endpoint.data_dir) in complaint
    assert str(endpoint.process.pid) in complaint
    assert "--data-dir" in complaint
    assert endpoint.post("SELECT 1").text == "1\n"


def test_a_taken_port_is_named(endpoint: Endpoint, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = Endpoint.__new__(Endpoint)
        other.data_dir, other.port = tmp_path, int(taken.getsockname()[1])
        process = other.spawn()
        _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4
    assert str(other.port) in complaint
    assert "--port" in complaint


def test_sigterm_ends_it_with_zero_although_a_query_runs(own_endpoint: Endpoint) -> None:
    client = own_endpoint.client()
    endless = "SELECT count() FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number))"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(own_endpoint.post, endless)
        wait_until(lambda: running(client, "sipHash64") == 1, "it runs")
        own_endpoint.process.send_signal(signal.SIGTERM)
        assert own_endpoint.process.wait(PATIENCE_S) == 0
        assert isinstance(asked.exception(), httpx.TransportError) or asked.result().status_code == 500


CHAIN = """
CREATE TABLE m_5s (bucket DateTime('UTC'), queue String, n UInt64) {engine};
CREATE TABLE m_1m (bucket DateTime('UTC'), queue String, n UInt64) {engine};
CREATE TABLE m_1h (bucket DateTime('UTC'), queue String, n UInt64) {engine};
CREATE MATERIALIZED VIEW m_1m_mv TO m_1m AS
  SELECT toStartOfMinute(bucket) AS bucket, queue, sum(n) AS n FROM m_5s GROUP BY bucket, queue;
CREATE MATERIALIZED VIEW m_1h_mv TO m_1h AS
  SELECT toStartOfHour(bucket) AS bucket, queue, sum(n) AS n FROM m_1m GROUP BY bucket, queue
"""
ENGINE = "ENGINE = SummingMergeTree ORDER BY (queue, bucket) SETTINGS non_replicated_deduplication_window = 100"


def test_a_repeated_token_changes_no_tier_also_after_kill_9(own_endpoint: Endpoint) -> None:
    def insert(client: Client, token: str) -> None:
        settings = {
            "insert_deduplication_token": token,
            "deduplicate_blocks_in_dependent_materialized_views": 1,
            "async_insert": 0,
        }
        start = 1_700_000_000
        rows = pyarrow.table(
            {
                "bucket": pyarrow.array([start + 5 * i for i in range(1000)], pyarrow.timestamp("s", "UTC")),
                "queue": [f"q{i % 7}" for i in range(1000)],
                "n": pyarrow.array([1] * 1000, pyarrow.uint64()),
            }
        )
        client.insert_arrow("m_5s", rows, settings=settings)

    def totals(client: Client) -> list[int]:
        return [int(str(client.command(f"SELECT sum(n) FROM m_{tier}"))) for tier in ("5s", "1m", "1h")]

    client = own_endpoint.client()
    for statement in CHAIN.format(engine=ENGINE).split(";"):
        client.command(statement)
    insert(client, "first")
    assert totals(client) == [1000, 1000, 1000]
    insert(client, "first")
    assert totals(client) == [1000, 1000, 1000]
    own_endpoint.kill_and_restart()
    client = own_endpoint.client()
    assert totals(client) == [1000, 1000, 1000], "data must survive kill -9"
    insert(client, "first")
    assert totals(client) == [1000, 1000, 1000]
    insert(client, "second")
    assert totals(client) == [2000, 2000, 2000]


def test_blocks_do_not_depend_on_how_the_body_arrives(endpoint: Endpoint, client: Client, table: str) -> None:
    rows = b"".join(b"%d,x\n" % n for n in range(2_500_000))  # more than one block
    for size in (1 << 20, 77_777):
        pieces = (rows[start : start + size] for start in range(0, len(rows), size))
        query = f"INSERT INTO {table} FORMAT CSV"
        answer = endpoint.post(pieces, query=query, insert_deduplication_token="same", async_insert="0")
        assert answer.status_code == 200, answer.text
        assert count(client, table) == 2_500_000
