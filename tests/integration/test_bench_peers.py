"""`./hr bench peers` at a small size, with Headrace and dramatiq."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from bench.peer_contenders import CONTENDERS, DRAMATIQ, HEADRACE
from bench.peer_environment import PeerRuntime, has_python_peers
from bench.peer_measure import ContenderBench, Size
from bench.peer_rounds import measure_all, prepare_runtimes
from bench.server import bench_server

from headrace.valkey.connect import connect
from tests.conftest import wait_until

TINY = Size(rounds=1, singles=100, concurrent=200, bulk=500, process_s=0.3, burns=100, pickups=10, idle_s=1.0)


@pytest.mark.slow
def test_two_contenders_are_measured_in_turns() -> None:
    if not has_python_peers("peers"):
        pytest.skip("the peers are not installed: run `./hr bench peers` once")
    contenders = [each for each in CONTENDERS if each.name in (HEADRACE, DRAMATIQ)]
    absent: dict[str, str] = {}
    runtimes = prepare_runtimes(contenders, absent)
    with bench_server(persistent=False) as bench:
        table = measure_all(bench, contenders, runtimes, TINY, absent).table
    assert absent == {}
    common = {"enqueue_single_per_s", "enqueue_threads_per_s", "process_threads_per_s", "burn_1_per_s", "burn_2_per_s"}
    common |= {"pickup_p50_ms", "pickup_p95_ms", "idle_calls_per_s", "worker_cpu_us", "server_cpu_us"}
    assert table[DRAMATIQ].keys() == common
    assert table[HEADRACE].keys() == common | {"process_async_per_s", "enqueue_awaits_per_s", "enqueue_bulk_per_s"}
    assert all(value > 0 for figures in table.values() for value in figures.values())


def test_a_script_of_an_idle_worker_counts_as_one_command(tmp_path: Path) -> None:
    seconds, sent, stop = 0.5, 0, threading.Event()
    with bench_server(persistent=False) as bench, connect(bench.server.url) as worker:
        bench_of_peer = ContenderBench(bench, CONTENDERS[0], PeerRuntime([], {}, {}), tmp_path)
        with connect(bench.server.url) as known_client:
            known_client.ping()
            known = bench_of_peer._list_addresses()  # pyright: ignore[reportPrivateUsage]

            def work() -> None:
                nonlocal sent
                while not stop.wait(0.001):
                    sent += 1
                    worker.eval("for _ = 1, 100 do redis.call('PING') end", 0)
                    known_client.ping()

            thread = threading.Thread(target=work)
            thread.start()
            try:
                measured = wait_until(
                    lambda: bench_of_peer._measure_idle(seconds, known),  # pyright: ignore[reportPrivateUsage]
                    "commands are seen",
                )
            finally:
                stop.set()
                thread.join()
    assert measured * seconds <= sent + 5  # the handshake of the worker
