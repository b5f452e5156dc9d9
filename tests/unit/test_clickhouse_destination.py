"""How records become blocks, and how ClickHouse's errors are classified; without a ClickHouse."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.ipc
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ProtocolError, ReadTimeoutError

from headrace.errors import ServiceUnavailable
from headrace.export.destination import (
    AuthSendError,
    PermanentSendError,
    RetryableSendError,
    SendBatch,
    SendError,
    TooLargeSendError,
)
from headrace.pipeline import clickhouse_destination
from headrace.pipeline.arrow import to_payload
from headrace.pipeline.clickhouse_destination import MAX_BLOCK_ROWS, ClickHouseDestination, InsertBlock, to_send_error
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.warehouse.blocks import BlockWriter, to_insert_failed
from headrace.warehouse.connect import Client


def refuse_to_connect() -> Client:
    raise AssertionError("no connection is expected")


DESTINATION = ClickHouseDestination(BlockWriter(refuse_to_connect))


def record(rows: int, token: str = "t", **meta: str) -> SpoolRecord:
    return SpoolRecord(
        1, to_payload(pa.table({"n": pa.array(range(rows), pa.int64())})), token, {"table": "x", **meta}, 0, 0
    )


def numbers(batch: SendBatch) -> list[int]:
    body: InsertBlock = batch.body
    return pyarrow.ipc.open_file(body.arrow_file).read_all()["n"].to_pylist()


def pieces_as_records(pieces: list[NewRecord]) -> list[SpoolRecord]:
    return [SpoolRecord(number, each.payload, each.token, each.meta, 0, 0) for number, each in enumerate(pieces)]


class TestCutting:
    def test_up_to_50_000_rows_are_one_block_under_the_records_own_token(self) -> None:
        assert MAX_BLOCK_ROWS == 50_000
        (batch,) = DESTINATION.prepare(record(50_000))
        assert batch.token == "t"
        assert len(numbers(batch)) == 50_000

    def test_more_are_several_with_numbered_tokens(self) -> None:
        batches = DESTINATION.prepare(record(100_001))
        assert [batch.token for batch in batches] == ["t/0", "t/1", "t/2"]
        assert [len(numbers(batch)) for batch in batches] == [50_000, 50_000, 1]
        assert [number for batch in batches for number in numbers(batch)] == list(range(100_001))

    def test_a_block_is_one_batch_of_arrow_however_the_stream_was_written(self) -> None:
        parts = pa.concat_tables([pa.table({"n": [number]}) for number in range(5)])
        (batch,) = DESTINATION.prepare(SpoolRecord(1, to_payload(parts), "t", {"table": "x"}, 0, 0))
        assert pyarrow.ipc.open_file(batch.body.arrow_file).num_record_batches == 1

    def test_few_rows_of_many_bytes_are_cut_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clickhouse_destination, "MAX_BLOCK_BYTES", 800)
        assert [len(numbers(batch)) for batch in DESTINATION.prepare(record(250))] == [100, 100, 50]

    @pytest.mark.parametrize("changed", [{"token": ""}, {"table": ""}, {"table": "a.b"}, {"table": "a b"}])
    def test_a_record_without_token_or_table_is_bad(self, changed: dict[str, str]) -> None:
        with pytest.raises(PermanentSendError):
            DESTINATION.prepare(record(1, **changed))

    @pytest.mark.parametrize("payload", [b"", b"nonsense", b"\xff" * 100])
    def test_what_is_no_arrow_is_bad(self, payload: bytes) -> None:
        with pytest.raises(PermanentSendError):
            DESTINATION.prepare(SpoolRecord(1, payload, "t", {"table": "x"}, 0, 0))


class TestSplitting:
    def test_halves_get_tokens_of_their_own(self) -> None:
        whole = record(5)
        pieces = DESTINATION.split(whole, DESTINATION.prepare(whole), 0)
        assert [piece.token for piece in pieces] == ["t/0", "t/1"]
        batches = [batch for each in pieces_as_records(list(pieces)) for batch in DESTINATION.prepare(each)]
        assert [(batch.token, numbers(batch)) for batch in batches] == [("t/0", [0, 1]), ("t/1", [2, 3, 4])]

    def test_the_blocks_that_were_not_refused_stay_what_they_were(self) -> None:
        """Some of them may have been applied: the same token must identify the same rows."""
        whole = record(120_000)
        batches = DESTINATION.prepare(whole)
        pieces = pieces_as_records(list(DESTINATION.split(whole, batches, 1)))
        assert [piece.token for piece in pieces] == ["t/0", "t/1/0", "t/1/1", "t/2"]
        again = [DESTINATION.prepare(piece) for piece in pieces]
        assert [len(each) for each in again] == [1, 1, 1, 1]
        assert numbers(again[0][0]) == numbers(batches[0])
        assert numbers(again[3][0]) == numbers(batches[2])
        assert numbers(again[1][0]) + numbers(again[2][0]) == numbers(batches[1])

    def test_a_piece_is_never_cut_by_the_rules_for_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = record(10)
        pieces = pieces_as_records(list(DESTINATION.split(whole, DESTINATION.prepare(whole), 0)))
        monkeypatch.setattr(clickhouse_destination, "MAX_BLOCK_BYTES", 8)
        assert [len(DESTINATION.prepare(piece)) for piece in pieces] == [1, 1]

    def test_one_row_cannot_be_cut(self) -> None:
        assert DESTINATION.split(record(1), DESTINATION.prepare(record(1)), 0) == ()


def http_error(cause: Exception) -> OperationalError:
    error = OperationalError("Error executing HTTP request")
    error.__cause__ = cause
    return error


POOL = HTTPConnectionPool("127.0.0.1")


@pytest.mark.parametrize(
    ("error", "kind", "label", "unclear"),
    [
        (DatabaseError("time limit", code=159), RetryableSendError, "timeout", True),
        (DatabaseError("too slow", code=160), RetryableSendError, "timeout", True),
        (DatabaseError("socket timeout", code=209), RetryableSendError, "timeout", True),
        (DatabaseError("quorum did not reply", code=319), RetryableSendError, "timeout", True),
        (OperationalError("HTTP driver received HTTP status 504"), RetryableSendError, "timeout", True),
        (OperationalError("HTTP driver received HTTP status 408"), RetryableSendError, "timeout", True),
        (OperationalError("Error timed out executing HTTP request"), RetryableSendError, "timeout", True),
        (http_error(ReadTimeoutError(POOL, "/", "read")), RetryableSendError, "timeout", True),
        (http_error(TimeoutError("the write operation")), RetryableSendError, "timeout", True),
        (DatabaseError("too many queries", code=202), RetryableSendError, "rate_limit", False),
        (DatabaseError("server overloaded", code=745), RetryableSendError, "rate_limit", False),
        (DatabaseError("quota", code=201), RetryableSendError, "rate_limit", True),
        (DatabaseError("too many parts", code=252), RetryableSendError, "rate_limit", True),
        (DatabaseError("no thread", code=439), RetryableSendError, "rate_limit", True),
        (DatabaseError("HTTP driver received HTTP status 429"), RetryableSendError, "rate_limit", False),
        (DatabaseError("memory", code=241), RetryableSendError, "server_error", True),
        (DatabaseError("Request Entity Too Large", code=241), RetryableSendError, "server_error", True),
        (DatabaseError("bug", code=49), RetryableSendError, "server_error", True),
        (DatabaseError("disk full", code=243), RetryableSendError, "server_error", True),
        (DatabaseError("a code of the future", code=98765), RetryableSendError, "server_error", True),
        (DatabaseError("HTTP driver received HTTP status 500"), RetryableSendError, "server_error", True),
        (DatabaseError("no table", code=60), RetryableSendError, "unavailable", False),
        (DatabaseError("Keeper", code=999), RetryableSendError, "unavailable", True),
        (DatabaseError("read-only", code=242), RetryableSendError, "unavailable", True),
        (DatabaseError("network", code=210), RetryableSendError, "unavailable", True),
        (OperationalError("HTTP driver received HTTP status 503"), RetryableSendError, "unavailable", False),
        (DatabaseError("HTTP driver received HTTP status 502"), RetryableSendError, "unavailable", True),
        (http_error(ProtocolError("Connection aborted.")), RetryableSendError, "unavailable", True),
        (
            http_error(NewConnectionError(HTTPConnection("127.0.0.1"), "refused")),
            RetryableSendError,
            "unavailable",
            False,
        ),
        (http_error(ConnectTimeoutError("connect")), RetryableSendError, "unavailable", False),
        (ServiceUnavailable(), RetryableSendError, "unavailable", False),
        (DatabaseError("HTTP driver received HTTP status 413"), TooLargeSendError, "too_large", False),
        (DatabaseError("bad arguments", code=36), PermanentSendError, "bad_data", False),
        (DatabaseError("type", code=53), PermanentSendError, "bad_data", False),
        (DatabaseError("constraint", code=469), PermanentSendError, "bad_data", False),
        (DatabaseError("password", code=516), AuthSendError, "auth", False),
        (DatabaseError("HTTP driver received HTTP status 401"), AuthSendError, "auth", False),
    ],
    ids=str,
)
def test_what_an_answer_means(error: Exception, kind: type[SendError], label: str, unclear: bool) -> None:
    """Memory errors look like "too large" but are not: only a plain 413 is."""
    found = to_send_error(to_insert_failed(error))
    assert (type(found), found.label, found.outcome_unknown) == (kind, label, unclear)


def test_busy_is_not_down() -> None:
    for code in (202, 252):
        assert not to_send_error(to_insert_failed(DatabaseError("busy", code=code))).is_outage
    assert to_send_error(to_insert_failed(DatabaseError("memory", code=241))).is_outage
