"""The remote write protocol and its destination, against a receiver with Prometheus' rules."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.export.destination import (
    AuthSendError,
    PermanentSendError,
    RetryableSendError,
    SendBatch,
    SendError,
)
from headrace.export.exporter import Exporter, ExporterOptions
from headrace.export.remote_write import FRUITLESS_REQUESTS, RemoteWriteDestination, RemoteWriteTarget
from headrace.export.remote_write_format import encode_label, encode_series, encode_varint, split_series
from headrace.runtime.backoff import Backoff
from headrace.spool.options import SpoolOptions
from headrace.spool.record import SpoolRecord
from headrace.spool.spool import Spool
from tests.conftest import wait_until
from tests.remote_write import Receiver, Reply, decode_request, is_stale, receiving


class TestFormat:
    def test_the_bytes_of_a_request(self) -> None:
        """Computed by hand from the protobuf specification."""
        labels = encode_label("__name__", "up") + encode_label("job", "é")
        expected = "0a29 0a0e 0a085f5f6e616d655f5f 12027570 0a09 0a036a6f62 1202c3a9 120c 09000000000000f83f 108001"
        encoded = encode_series(labels, 1.5, 128)
        assert encoded == bytes.fromhex(expected)
        assert decode_request(encoded) == [((("__name__", "up"), ("job", "é")), [(128, 1.5)])]

    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (0, "00"),
            (1, "01"),
            (127, "7f"),
            (128, "8001"),
            (300, "ac02"),
            (-1, "ff" * 9 + "01"),
            (2**63, "80" * 9 + "01"),
        ],
    )
    def test_numbers(self, number: int, expected: str) -> None:
        assert encode_varint(number).hex() == expected

    def test_an_absent_value_is_a_stale_marker(self) -> None:
        [(_, [(_, value)])] = decode_request(encode_series(encode_label("a", "b"), None, 1))
        assert is_stale(value)

    @given(
        st.lists(
            st.tuples(
                st.dictionaries(st.text(min_size=1), st.text(), max_size=4),
                st.floats(allow_nan=False),
                st.integers(0, 2**62),
            )
        )
    )
    def test_what_is_encoded_is_decoded_and_can_be_split(
        self, given_series: list[tuple[dict[str, str], float, int]]
    ) -> None:
        encoded = [
            encode_series(b"".join(encode_label(*pair) for pair in labels.items()), value, at)
            for labels, value, at in given_series
        ]
        request = b"".join(encoded)
        assert split_series(request) == encoded
        expected = [(tuple(labels.items()), [(at, value)]) for labels, value, at in given_series]
        assert decode_request(request) == expected

    @pytest.mark.parametrize("damaged", [b"\x0a", b"\x0a\x05abc", b"\x12\x00", b"\x0a" + b"\xff" * 11])
    def test_a_malformed_request_is_refused(self, damaged: bytes) -> None:
        with pytest.raises(ValueError, match="at byte"):
            split_series(damaged)


def series(name: str, value: float, at: int) -> bytes:
    return encode_series(encode_label("__name__", name), value, at)


def record(*encoded: bytes) -> SpoolRecord:
    return SpoolRecord(1, b"".join(encoded), "", {}, 0, 0.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def target(receiver: Receiver) -> RemoteWriteTarget:
    return RemoteWriteTarget(receiver.url, timeout_s=60.0)


@pytest.fixture
def destination(target: RemoteWriteTarget) -> Iterator[RemoteWriteDestination]:
    with closing(RemoteWriteDestination(target)) as made:
        yield made


def send(destination: RemoteWriteDestination, *encoded: bytes) -> None:
    [batch] = destination.prepare(record(*encoded))
    destination.send(batch)


class TestDestination:
    def test_a_record_arrives_with_the_headers_of_the_protocol(
        self, receiver: Receiver, destination: RemoteWriteDestination
    ) -> None:
        send(destination, series("one", 1, 5), series("two", 2, 5))
        send(destination, series("one", 1, 6))
        assert receiver.find(name="one") == [(5, 1), (6, 1)]
        assert destination.count_samples() == {"sent": 3, "refused": 0}
        headers = receiver.headers[0]
        assert headers["Content-Encoding"] == "snappy"
        assert headers["Content-Type"] == "application/x-protobuf"
        assert headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
        assert "Authorization" not in headers

    def test_credentials(self, receiver: Receiver, target: RemoteWriteTarget) -> None:
        url = receiver.url.replace("http://", "http://ann:p%40ss@")
        headers = {"X-Scope-OrgID": "shop"}
        with closing(RemoteWriteDestination(replace(target, url=url, headers=headers))) as one:
            send(one, series("a", 1, 1))
        assert receiver.headers[0]["Authorization"] == f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
        assert receiver.headers[0]["X-Scope-OrgID"] == "shop"
        assert "ss" not in repr(replace(target, url=url)).replace("class", "")

    @pytest.mark.parametrize(
        ("reply", "error", "kind", "retry_after_s"),
        [
            (Reply(429, "7"), RetryableSendError, "rate_limit", 7.0),
            (Reply(503, "7"), RetryableSendError, "server_error", 7.0),
            (Reply(500), RetryableSendError, "server_error", None),
            (Reply(429, "Fri, 01 Jan 2100 00:00:00 GMT"), RetryableSendError, "rate_limit", "later"),
            (Reply(503, "soon"), RetryableSendError, "server_error", None),
            (Reply(401), AuthSendError, "auth", None),
            (Reply(404), RetryableSendError, "wrong_url", None),
        ],
    )
    def test_what_is_sent_again(
        self,
        receiver: Receiver,
        destination: RemoteWriteDestination,
        reply: Reply,
        error: type[SendError],
        kind: str,
        retry_after_s: float | str | None,
    ) -> None:
        receiver.script.append(reply)
        with pytest.raises(error) as caught:
            send(destination, series("a", 1, 1))
        assert caught.value.label == kind
        if retry_after_s == "later":
            assert caught.value.retry_after_s is not None
            assert caught.value.retry_after_s > 3600
        else:
            assert caught.value.retry_after_s == retry_after_s
        send(destination, series("a", 1, 1))
        assert destination.count_samples() == {"sent": 1, "refused": 0}

    def test_a_redirect_is_not_followed(self, receiver: Receiver, destination: RemoteWriteDestination) -> None:
        with receiving() as other:
            receiver.script.append(Reply(307, location=other.url))
            with pytest.raises(RetryableSendError, match="redirects are not followed"):
                send(destination, series("a", 1, 1))
            assert other.headers == []

    def test_a_refused_sample_costs_only_itself(self, receiver: Receiver, destination: RemoteWriteDestination) -> None:
        send(destination, series("n7", 1, 10), series("n40", 1, 10))
        with pytest.raises(PermanentSendError, match=r"2 of 100 samples were refused.*out of order"):
            send(destination, *(series(f"n{number}", 2, 5) for number in range(100)))
        assert len(receiver.stored) == 100
        assert receiver.find(name="n7") == [(10, 1)]
        assert receiver.find(name="n8") == [(5, 2)]
        assert destination.count_samples() == {"sent": 100, "refused": 2}

    def test_isolating_refused_samples_is_bounded(
        self, receiver: Receiver, destination: RemoteWriteDestination
    ) -> None:
        names = [f"n{number}" for number in range(1000)]
        send(destination, *(series(name, 1, 10) for name in names))
        requests = len(receiver.sizes)
        with pytest.raises(PermanentSendError, match="1000 of 1000"):
            send(destination, *(series(name, 1, 9) for name in names))
        assert len(receiver.sizes) - requests == FRUITLESS_REQUESTS

    def test_a_request_that_is_too_large_is_halved(
        self, receiver: Receiver, destination: RemoteWriteDestination
    ) -> None:
        receiver.max_series = 30
        send(destination, *(series(f"n{number}", 1, 1) for number in range(100)))
        assert len(receiver.stored) == 100

    def test_a_large_record_is_sent_in_several_requests_at_once(
        self, receiver: Receiver, target: RemoteWriteTarget
    ) -> None:
        receiver.meet = Barrier(3)
        with closing(RemoteWriteDestination(replace(target, max_samples=4, lanes=3))) as destination:
            send(destination, *(series(f"n{number}", 1, 1) for number in range(12)))
        assert receiver.sizes == [4, 4, 4]
        assert receiver.most_at_once == 3

    def test_a_receiver_that_closed_the_idle_connection_is_reached_again(
        self, receiver: Receiver, destination: RemoteWriteDestination
    ) -> None:
        receiver.script.append(Reply(204, stores=True, hangs_up=True))
        send(destination, series("a", 1, 1))
        send(destination, series("a", 1, 2))
        assert receiver.find(name="a") == [(1, 1), (2, 1)]

    def test_no_receiver(self, destination: RemoteWriteDestination, receiver: Receiver) -> None:
        receiver.shutdown()
        receiver.server_close()
        with pytest.raises(RetryableSendError) as caught:
            send(destination, series("a", 1, 1))
        assert caught.value.is_outage

    def test_a_malformed_record_is_rejected(self, destination: RemoteWriteDestination) -> None:
        with pytest.raises(PermanentSendError):
            destination.prepare(record(b"nonsense"))
        assert list(destination.prepare(record())) == []


def test_samples_of_a_series_arrive_in_order_whatever_fails(
    tmp_path: Path, receiver: Receiver, target: RemoteWriteTarget
) -> None:
    """Requests that were stored although they failed are repeated, and accepted again."""
    destination = RemoteWriteDestination(replace(target, max_samples=2, lanes=3))
    receiver.script.extend(
        Reply(status, stores=stores) for status in (503, 429, 500, 408) for stores in (True, False, True)
    )
    options = ExporterOptions(workers=1, backoff=Backoff(0.001, 1.0, 0.001), breaker_reset_s=0.001)
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool, closing(destination):
        exporter = Exporter(spool, destination, options)
        for at in range(1, 41):
            spool.put(b"".join(series(f"n{number}", at * number, at) for number in range(7)), durable=False)
        exporter.start()
        try:
            wait_until(lambda: spool.stats().size == 0, "everything was sent")
        finally:
            exporter.stop()
        assert spool.stats().dead == 0
    assert destination.count_samples() == {"sent": 280, "refused": 0}
    for number in range(7):
        assert receiver.find(name=f"n{number}") == [(at, at * number) for at in range(1, 41)]


def test_a_refused_record_does_not_block_the_lane(
    tmp_path: Path, receiver: Receiver, target: RemoteWriteTarget
) -> None:
    destination = RemoteWriteDestination(target)
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool, closing(destination):
        exporter = Exporter(spool, destination, ExporterOptions(workers=1))
        for at in (5, 4, 6):
            spool.put(series("a", at, at) + series(f"b{at}", 1, at), durable=False)
        exporter.start()
        try:
            wait_until(lambda: spool.stats().size == 0, "everything was sent")
        finally:
            exporter.stop()
        assert (spool.stats().acked, spool.stats().dead) == (2, 1)
        assert exporter.stats().rejected == {"bad_data": 1}
    assert receiver.find(name="a") == [(5, 5), (6, 6)]
    assert receiver.find(name="b4") == [(4, 1)]


def test_nothing_is_sent_for_an_empty_batch() -> None:
    with closing(RemoteWriteDestination(RemoteWriteTarget("http://127.0.0.1:1/"))) as destination:
        destination.send(SendBatch([], ""))
