"""The exporter on a real spool, against a server on loopback that fails in every way a destination can."""

from __future__ import annotations

import http.client
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.export import exporter as exporter_module
from headrace.export.adaptive import WorkerBounds
from headrace.export.breaker import BreakerState
from headrace.export.destination import Destination, RetryableSendError, SendBatch, SendOrder
from headrace.export.exporter import Exporter, ExporterOptions
from headrace.export.file_destination import FileDestination
from headrace.runtime.backoff import Backoff
from headrace.spool.inspect import list_dead
from headrace.spool.options import SpoolOptions
from headrace.spool.record import SpoolRecord
from headrace.spool.spool import Spool
from tests.conftest import wait_until
from tests.exporting import POISON, Answer, HttpDestination, ScriptedServer, serving
from tests.ports import reserved_port

QUICK = ExporterOptions(
    workers=1, preparers=1, channel_size=4, backoff=Backoff(0.02, 2.0, 0.1), breaker_threshold=5, breaker_reset_s=0.1
)
HOUR = 3600.0


class HandClock:
    """Clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving() as server:
        yield server


@pytest.fixture
def options(tmp_path: Path) -> SpoolOptions:
    return SpoolOptions(path=tmp_path / "spool", sync="os")


@pytest.fixture
def spool(options: SpoolOptions) -> Iterator[Spool]:
    with Spool.open(options) as spool:
        yield spool


@contextmanager
def exporting(
    spool: Spool, destination: Destination, options: ExporterOptions = QUICK, **others: Any
) -> Generator[Exporter]:
    exporter = Exporter(spool, destination, options, **others)
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.stop(60.0)


def put(spool: Spool, *payloads: bytes) -> None:
    for payload in payloads:
        spool.put(payload, token=f"t-{payload.decode().replace(chr(10), '_')}", durable=False)


def numbered(count: int) -> list[bytes]:
    return [f"{number:04}".encode() for number in range(count)]


def drained(spool: Spool) -> Callable[[], bool]:
    return lambda: spool.stats().size == 0


def the_end(spool: Spool) -> None:
    wait_until(drained(spool), "the spool is empty")
    assert spool.stats().conserved


class TestOrder:
    def test_one_worker_delivers_in_order(self, spool: Spool, server: ScriptedServer) -> None:
        class Uneven(HttpDestination):
            """Takes longer to prepare every other record than the next one."""

            def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
                if record.id % 2:
                    time.sleep(0.005)
                return super().prepare(record)

        put(spool, *numbered(50))
        with exporting(spool, Uneven(server.port), replace(QUICK, preparers=4)):
            the_end(spool)
        assert server.sent() == numbered(50)

    def test_also_across_an_outage(self, spool: Spool, server: ScriptedServer) -> None:
        server.script.extend([Answer(), Answer(), *[Answer(503)] * 8])
        put(spool, *numbered(20))
        with exporting(spool, HttpDestination(server.port)):
            the_end(spool)
        assert server.bodies() == numbered(20)

    def test_many_workers_deliver_everything_once(self, spool: Spool, server: ScriptedServer) -> None:
        put(spool, *numbered(200))
        with exporting(spool, HttpDestination(server.port), replace(QUICK, workers=4, preparers=2)):
            the_end(spool)
        assert sorted(server.sent()) == numbered(200)


class TestFailures:
    @pytest.mark.parametrize(
        ("answer", "kind", "counts"),
        [
            (Answer(500), "server_error", True),
            (Answer(503), "server_error", True),
            (Answer(429), "rate_limit", False),
            (Answer(401), "auth", False),
            (Answer(breaks=True, applies=True), "timeout", True),
            (Answer(hangs=True, applies=True), "timeout", True),
        ],
        ids=["500", "503", "429", "401", "broken answer", "no answer"],
    )
    def test_a_record_that_was_not_taken_is_sent_again_as_it_was(
        self, spool: Spool, server: ScriptedServer, answer: Answer, kind: str, counts: bool
    ) -> None:
        server.script.append(answer)
        put(spool, b"one")
        destination = Impatient(server) if answer.hangs else HttpDestination(server.port)
        with exporting(spool, destination, replace(QUICK, breaker_threshold=1)) as exporter:
            the_end(spool)
        stats = exporter.stats()
        assert server.requests == [("t-one", b"one")] * 2
        assert server.bodies() == [b"one"]
        assert (stats.failures, stats.retries, stats.retry_successes, stats.sent) == ({kind: 1}, 1, 1, 1)
        assert stats.breaker.opened == counts, "only what says that the destination is down opens the breaker"
        assert stats.unclear == 0

    def test_connection_refused(self, spool: Spool) -> None:
        put(spool, b"one")
        with reserved_port() as port, exporting(spool, HttpDestination(port)) as exporter:
            wait_until(lambda: exporter.stats().failures.get("refused", 0) >= 3, "three refusals")
            wait_until(lambda: not exporter.stats().healthy, "it is told")
            assert exporter.stats().unclear == 0, "nothing was sent, so nothing is unclear"
            with serving(port) as server:
                the_end(spool)
                assert server.bodies() == [b"one"]
            wait_until(lambda: exporter.stats().healthy, "it is healthy again")

    def test_a_bad_record_is_dead_lettered_and_blocks_no_other(
        self, spool: Spool, server: ScriptedServer, options: SpoolOptions
    ) -> None:
        server.script.append(Answer(400))
        put(spool, b"bad", POISON, b"good")
        with exporting(spool, HttpDestination(server.port), replace(QUICK, breaker_threshold=1)) as exporter:
            the_end(spool)
        stats = exporter.stats()
        assert server.bodies() == [b"good"]
        assert (stats.rejected, stats.breaker.opened, stats.retries) == ({"bad_data": 2}, 0, 0)
        assert options.path is not None
        assert [each.facts["reason"].partition(":")[0] for each in list_dead(options.path)] == ["bad_data"] * 2

    def test_retry_after_holds_everything_back(self, spool: Spool, server: ScriptedServer) -> None:
        clock = HandClock()
        server.script.append(Answer(429, retry_after="120"))
        put(spool, b"one")
        with exporting(spool, HttpDestination(server.port), clock=clock, draw=lambda: 0.0) as exporter:
            wait_until(lambda: exporter.stats().backoff_s == 120.0, "the refusal")
            assert spool.stats().delayed == 1
            put(spool, b"two")
            clock.now = 119.0
            exporter.adapt()
            assert server.sent() == [b"one"]
            clock.now = 120.0
            wait_until(lambda: server.bodies() == [b"two"], "the pause is over for others")

    def test_an_unexpected_destination_error_keeps_the_record(self, spool: Spool, server: ScriptedServer) -> None:
        class Surprising(HttpDestination):
            surprises = [SystemExit(), ZeroDivisionError(), KeyError("x")]  # noqa: RUF012

            def send(self, batch: SendBatch) -> None:
                if self.surprises:
                    raise self.surprises.pop()
                super().send(batch)

        put(spool, b"one")
        with exporting(spool, Surprising(server.port)) as exporter:
            the_end(spool)
        assert exporter.stats().failures == {"unknown": 3}
        assert exporter.stats().errors == 3
        assert server.bodies() == [b"one"]

    def test_one_record_that_always_fails_does_not_hold_up_the_others(
        self, spool: Spool, server: ScriptedServer
    ) -> None:
        put(spool, b"sick", *numbered(20))
        options = replace(QUICK, workers=2, backoff=Backoff(0.001, 1.0, 0.001))
        with exporting(spool, Picky(server.port), options):
            wait_until(lambda: sorted(server.bodies()) == numbered(20), "all the others arrived")
            wait_until(lambda: spool.stats().size == 1, "and are acked")

    def test_the_probe_after_a_failed_one_is_another_record(self, spool: Spool, server: ScriptedServer) -> None:
        """Otherwise one record that is never accepted keeps the breaker open for all."""
        put(spool, b"sick")
        quick = Backoff(0.001, 1.0, 0.001)
        options = replace(QUICK, workers=2, backoff=quick, breaker_threshold=1, breaker_reset_s=0.3)
        with exporting(spool, Picky(server.port), options) as exporter:
            wait_until(lambda: exporter.stats().breaker.opened >= 2, "it failed as the probe")
            put(spool, b"good")
            wait_until(lambda: server.bodies() == [b"good"], "the next one is the probe")


class Impatient(HttpDestination):
    """Waits only briefly for the first response, once the server has the request."""

    def __init__(self, server: ScriptedServer) -> None:
        super().__init__(server.port)
        self.server: ScriptedServer | None = server

    def await_answer(self, connection: http.client.HTTPConnection) -> None:
        if server := self.server:
            self.server = None
            wait_until(lambda: server.requests, "the server has it")
            connection.sock.settimeout(0.1)


class Picky(HttpDestination):
    """Never delivers one particular record."""

    def send(self, batch: SendBatch) -> None:
        if batch.body == b"sick":
            raise RetryableSendError("sick")
        super().send(batch)


class TestBreaker:
    def test_it_gates_before_a_record_is_taken(
        self, spool: Spool, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leased: list[SpoolRecord] = []
        lease = spool.lease

        def noting(*, timeout: float | None = 0) -> SpoolRecord | None:
            if record := lease(timeout=timeout):
                leased.append(record)
            return record

        monkeypatch.setattr(spool, "lease", noting)
        clock = HandClock()
        server.otherwise = Answer(503)
        put(spool, *numbered(30))
        options = replace(QUICK, breaker_threshold=1, breaker_reset_s=HOUR, backoff=Backoff(1e-6, 1.0, 1e-6))
        with exporting(spool, HttpDestination(server.port), options, clock=clock) as exporter:
            wait_until(lambda: exporter.stats().backoff_s, "the breaker is open")
            clock.now += 1.0  # the backoff is over, so that only the breaker blocks
            wait_until(lambda: exporter.stats().breaker.rejected, "a preparer is turned away")
            wait_until(lambda: spool.stats().in_flight == 0, "nothing is held that cannot be sent")
            assert len(server.requests) == 1
            clock.now += HOUR - 2.0
            exporter.adapt()
            assert len(server.requests) == 1
            clock.now += 2.0
            wait_until(lambda: len(server.requests) == 2, "one probe")
            wait_until(lambda: exporter.stats().backoff_s, "it failed")
            assert (len(server.requests), exporter.stats().breaker.opened) == (2, 2)
            server.otherwise = Answer()
            clock.now += 2 * HOUR
            the_end(spool)
            assert exporter.stats().breaker.state is BreakerState.CLOSED
        assert sorted(server.bodies()) == numbered(30)
        assert len(leased) < 60, "each once, and a few that were prepared when the breaker opened"

    def test_what_came_late_to_an_empty_spool_is_the_probe(self, spool: Spool, server: ScriptedServer) -> None:
        server.script.append(Answer(400))  # empties the spool without a verdict about the destination
        server.script.append(Answer(503))
        put(spool, b"bad", b"one")
        with exporting(spool, HttpDestination(server.port), replace(QUICK, breaker_threshold=1)):
            the_end(spool)
            put(spool, b"two")
            the_end(spool)
        assert server.bodies() == [b"one", b"two"]

    def test_recovery_is_a_burst(self, spool: Spool, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """After an outage all workers start, and pause and delays end at once."""
        monkeypatch.setattr(exporter_module, "ADAPT_EVERY_S", HOUR)
        clock = HandClock()
        server.otherwise = Answer(503, retry_after="1800")
        put(spool, *numbered(400))
        options = replace(
            QUICK, workers=1, adaptive=True, bounds=WorkerBounds(1, 6), breaker_threshold=1, breaker_reset_s=HOUR,
            max_sends=6,
        )  # fmt: skip
        with exporting(spool, HttpDestination(server.port), options, clock=clock) as exporter:
            wait_until(lambda: exporter.stats().backoff_s, "the breaker is open, and all senders wait")
            assert (exporter.stats().workers, exporter.stats().breaker.opened) == (1, 1)
            server.otherwise = Answer()
            server.gate_after = 1  # the probe
            clock.now += HOUR
            wait_until(lambda: exporter.stats().workers == 6, "the burst")
            assert exporter.adapt() == 6, "while there is a backlog"
            server.open_gate()
            the_end(spool)
            assert exporter.adapt() < 6


class TestSplitting:
    def test_a_clean_413_is_cut_until_it_fits(self, spool: Spool, server: ScriptedServer) -> None:
        server.max_bytes = 3
        put(spool, b"abcdefgh", b"xy")
        with exporting(spool, HttpDestination(server.port)) as exporter:
            the_end(spool)
        assert exporter.stats().splits == 3
        assert exporter.stats().breaker.opened == 0
        assert server.bodies() == [b"ab", b"cd", b"ef", b"gh", b"xy"], "in the place of what was cut"
        assert len(server.applied) == 5

    def test_only_the_part_that_was_refused_is_cut_and_the_others_keep_their_tokens(
        self, spool: Spool, server: ScriptedServer
    ) -> None:
        server.max_bytes = 4
        put(spool, b"ab\ncdefgh\nij")
        with exporting(spool, HttpDestination(server.port)):
            the_end(spool)
        assert server.bodies() == [b"ab", b"cde", b"fgh", b"ij"], "ab went before, under its own token, and again"
        assert server.sent().count(b"ab") == 2

    def test_what_cannot_be_cut_is_a_dead_letter(self, spool: Spool, server: ScriptedServer) -> None:
        server.max_bytes = 0
        put(spool, b"a")
        with exporting(spool, HttpDestination(server.port)) as exporter:
            the_end(spool)
        assert exporter.stats().rejected == {"too_large": 1}

    def test_a_record_with_unknown_outcome_is_never_split(self, spool: Spool, server: ScriptedServer) -> None:
        """It was applied, the response was lost, and now the limit is lower: split, it would count twice."""
        server.script.append(Answer(applies=True, breaks=True))
        put(spool, b"abcd")
        clock = HandClock()
        with exporting(spool, HttpDestination(server.port), clock=clock) as exporter:
            wait_until(lambda: exporter.stats().backoff_s, "the answer was lost, and everybody waits")
            assert exporter.stats().unclear == 1
            server.max_bytes = 2
            clock.now += HOUR
            the_end(spool)
        assert (exporter.stats().splits, exporter.stats().rejected) == (0, {"too_large": 1})
        assert server.bodies() == [b"abcd"]


class AlternatingDestination(HttpDestination):
    """Of the records, those with odd numbers follow all earlier ones."""

    def get_order(self, record: SpoolRecord) -> SendOrder:
        return SendOrder.AFTER_EARLIER if int(record.payload) % 2 else SendOrder.ANY


class TestUnknownOutcome:
    def test_only_a_quarter_of_the_window_is_sent_past_it(self, spool: Spool, server: ScriptedServer) -> None:
        clock = HandClock()
        server.script.append(Answer(applies=True, breaks=True))
        put(spool, *numbered(60))
        options = replace(QUICK, backoff=Backoff(HOUR, 1.0, HOUR), channel_size=8)
        destination = HttpDestination(server.port, dedup_window_blocks=80)
        with exporting(spool, destination, options, clock=clock, draw=lambda: 0.0) as exporter:
            wait_until(lambda: exporter.stats().backoff_s, "the answer was lost, and everybody waits")
            clock.now += HOUR  # by this clock; the record's own delay uses the spool's clock
            wait_until(lambda: exporter.stats().passed_blocks == 20, "the allowance is used up")
            wait_until(lambda: spool.stats().in_flight == 0, "nothing more is under way")
            assert len(server.bodies()) == 20
            assert spool.stats().size == 41

    def test_also_by_several_workers_and_records_that_follow_wait(self, spool: Spool, server: ScriptedServer) -> None:
        clock = HandClock()
        server.once[b"0000"] = Answer(applies=True, breaks=True)
        put(spool, *numbered(120))
        options = replace(QUICK, workers=8, preparers=2, backoff=Backoff(HOUR, 1.0, HOUR), channel_size=8)
        destination = AlternatingDestination(server.port, dedup_window_blocks=80)
        with exporting(spool, destination, options, clock=clock, draw=lambda: 0.0) as exporter:
            wait_until(lambda: exporter.stats().backoff_s, "the answer was lost, and everybody waits")
            clock.now += HOUR  # by this clock; the record's own delay uses the spool's clock
            wait_until(lambda: exporter.stats().passed_blocks == 20, "the allowance is used up")
            wait_until(lambda: spool.stats().in_flight == 0, "nothing more is under way")
            passed = [body for body in server.bodies() if body != b"0000"]
            assert len(passed) <= 20 + options.workers, "and those that were under way before it"
            assert not any(int(body) % 2 for body in passed), "what follows it was not sent"
            spool.end_delays()
            the_end(spool)
        assert sorted(server.bodies()) == numbered(120)

    def test_then_it_is_sent_first_and_the_rest_follows(self, spool: Spool, server: ScriptedServer) -> None:
        server.once[b"0000"] = Answer(applies=True, breaks=True)
        put(spool, *numbered(60))
        with exporting(
            spool, HttpDestination(server.port, dedup_window_blocks=8), replace(QUICK, workers=2)
        ) as exporter:
            the_end(spool)
        assert exporter.stats().unclear == 0
        assert sorted(server.bodies()) == numbered(60)
        again = [at for at, body in enumerate(server.sent()) if body == b"0000"]
        assert again[1] - again[0] <= 3, "a quarter of the window, and one that was under way already"

    def test_what_an_earlier_process_may_have_sent_is_not_cut_and_not_passed_far(
        self, options: SpoolOptions, server: ScriptedServer, tmp_path: Path
    ) -> None:
        copy = replace(options, path=tmp_path / "after the crash")
        with Spool.open(options) as spool:
            put(spool, *numbered(40))
            spool.flush()
            assert spool.lease(), "in flight when the process dies"
            shutil.copytree(cast("Path", options.path), cast("Path", copy.path))
        server.script.append(Answer(503))
        quick = replace(QUICK, backoff=Backoff(HOUR, 1.0, HOUR))
        clock = HandClock()
        with (
            Spool.open(copy) as spool,
            exporting(spool, HttpDestination(server.port, dedup_window_blocks=160), quick, clock=clock) as exporter,
        ):
            wait_until(lambda: exporter.stats().backoff_s, "it fails again, but this time it is clear how")
            clock.now += HOUR
            wait_until(lambda: exporter.stats().passed_blocks == 40, "the allowance, of which 30 count as used up")
            wait_until(lambda: spool.stats().in_flight == 0, "nothing more is under way")
            assert server.bodies() == numbered(10)[1:]

    def test_one_that_the_spool_dropped_is_not_waited_for(self, tmp_path: Path, server: ScriptedServer) -> None:
        options = SpoolOptions(path=tmp_path / "spool", sync="os", max_size=30, full_behavior="drop_oldest")
        clock = HandClock()
        server.script.append(Answer(applies=True, breaks=True))
        quick = replace(QUICK, backoff=Backoff(HOUR, 1.0, HOUR))
        with Spool.open(options) as spool:
            put(spool, *numbered(30))
            with exporting(spool, HttpDestination(server.port, dedup_window_blocks=8), quick, clock=clock) as exporter:
                wait_until(lambda: exporter.stats().backoff_s, "the answer was lost, and everybody waits")
                clock.now += HOUR
                wait_until(lambda: exporter.stats().passed_blocks == 2, "the allowance is used up")
                put(spool, b"a", b"b", b"c", b"d")
                wait_until(lambda: server.bodies()[-1:] == [b"d"], "it goes on")
                assert exporter.stats().unclear == 0


class TestStopping:
    def test_prepared_records_go_back_unsent_and_uncounted(self, options: SpoolOptions, server: ScriptedServer) -> None:
        server.gate.clear()
        quick = replace(QUICK, workers=2, preparers=2, channel_size=8, max_sends=1)
        with Spool.open(options) as spool:
            put(spool, *numbered(30))
            destination = HttpDestination(server.port)
            exporter = Exporter(spool, destination, quick)
            exporter.start()
            wait_until(lambda: len(server.requests) == 1 and len(set(destination.prepared)) >= 8, "a full channel")
            stopping = threading.Thread(target=lambda: exporter.stop(60.0))
            stopping.start()
            wait_until(lambda: exporter._flow.stopping, "it is being stopped")  # pyright: ignore[reportPrivateUsage]
            server.gate.set()
            stopping.join()
            assert len(server.bodies()) == 1, "what was under way may finish"
            assert (spool.stats().size, spool.stats().in_flight) == (29, 0)
            assert exporter.stats().released >= 7
            left = [spool.lease() for _ in range(29)]
            assert [record and (record.payload, record.attempts) for record in left] == [
                (payload, 0) for payload in numbered(30)[1:]
            ]

    def test_a_send_that_hangs_does_not_hold_the_stop_and_its_record_comes_again(
        self, options: SpoolOptions, server: ScriptedServer
    ) -> None:
        server.gate.clear()
        with Spool.open(options) as spool:
            put(spool, b"one")
            exporter = Exporter(spool, HttpDestination(server.port), QUICK)
            exporter.start()
            wait_until(lambda: server.requests, "a send")
            assert not exporter.stop(0.1)
        server.gate.set()
        assert exporter.stop(60.0)  # late: the spool is closed, and no outcome is recorded
        with Spool.open(options) as spool, exporting(spool, HttpDestination(server.port)):
            the_end(spool)
        assert server.bodies() == [b"one"]

    def test_everything_is_stopped_when_there_is_nothing_to_do(self, spool: Spool, server: ScriptedServer) -> None:
        before = threading.enumerate()
        exporter = Exporter(spool, HttpDestination(server.port), QUICK)
        exporter.start()
        assert exporter.stop(60.0)
        assert not [each for each in threading.enumerate() if each not in before and each.name.startswith("export-")]


class TestLimits:
    def test_sends_at_once_are_limited_per_exporter(self, spool: Spool, server: ScriptedServer) -> None:
        server.gate.clear()
        put(spool, *numbered(20))
        options = replace(QUICK, workers=8, preparers=2, channel_size=16, max_sends=3)
        with exporting(
            spool, HttpDestination(server.port), options, shared=threading.BoundedSemaphore(100)
        ) as exporter:
            wait_until(lambda: exporter.stats().sending == 3, "three sends")
            wait_until(lambda: server.at_once == 3, "and three requests")
            server.gate.set()
            the_end(spool)
        assert server.most_at_once == 3

    def test_and_for_all_exporters_together(self, tmp_path: Path, server: ScriptedServer) -> None:
        server.gate.clear()
        shared = threading.BoundedSemaphore(2)
        quick = replace(QUICK, workers=4)
        spools = [Spool.open(SpoolOptions(path=tmp_path / name, sync="os")) for name in "ab"]
        with spools[0], spools[1]:
            for number, spool in enumerate(spools):
                put(spool, *(f"{number}-{each}".encode() for each in range(10)))
            with (
                exporting(spools[0], HttpDestination(server.port), quick, shared=shared),
                exporting(spools[1], HttpDestination(server.port), quick, shared=shared),
            ):
                wait_until(lambda: server.at_once == 2, "two requests")
                server.gate.set()
                the_end(spools[0])
                the_end(spools[1])
        assert server.most_at_once == 2
        assert len(server.bodies()) == 20

    def test_workers_follow_the_load(
        self, spool: Spool, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exporter_module, "ADAPT_EVERY_S", HOUR)
        clock = HandClock()
        options = replace(QUICK, adaptive=True, bounds=WorkerBounds(1, 6))
        with exporting(spool, HttpDestination(server.port), options, clock=clock) as exporter:
            assert exporter.adapt() == 1
            exporter._counters.service.add(1.0)  # pyright: ignore[reportPrivateUsage] - a second per record
            server.gate.clear()
            put(spool, *numbered(60))
            clock.now += 10.0
            assert exporter.adapt() == 6
            server.gate.set()
            the_end(spool)
            wait_until(lambda: exporter.stats().sent == 60, "all are counted")
            exporter._counters.service.value = 0.01  # pyright: ignore[reportPrivateUsage]
            clock.now += 1000.0
            assert exporter.adapt() == 1


class TestFile:
    def test_lines_of_json(self, spool: Spool, tmp_path: Path) -> None:
        import base64
        import json

        spool.put("grüße".encode(), token="a", meta={"table": "t"}, durable=False)
        spool.put(b"\xff\x00", token="b", durable=False)
        destination = FileDestination(tmp_path / "out.ndjson")
        with exporting(spool, destination):
            the_end(spool)
        destination.close()
        first, second = map(json.loads, (tmp_path / "out.ndjson").read_text().splitlines())
        assert (first["text"], first["token"], first["meta"]) == ("grüße", "a", {"table": "t"})
        assert base64.b64decode(second["base64"]) == b"\xff\x00"
