"""How the failover run finds jobs while movers are at work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.model.job import NewJob
from headrace.queue.client import SyncClient
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from tests.chaos.failover_judge import find_jobs
from tests.chaos.failover_plan import BUSY
from tests.chaos.failover_producer import OPTIONS

HOUR_MS = 3_600_000


def test_a_dead_job_that_moves_to_postgres_meanwhile_is_not_waiting(
    valkey: Valkey, valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = Tiers(valkey_url, postgres_url, OPTIONS)
    with SyncClient(valkey_url, OPTIONS, tiers) as client:
        client.enqueue(BUSY[0], NewJob("t", id="dead"))
        shard = tiers.stubs.find_shard(BUSY[0])
        [job] = run(valkey, tiers.stubs.dequeue(shard, 1, HOUR_MS))
        run(valkey, tiers.stubs.bury(shard, [(job, "fails")]))
        mover = Mover(tiers, MoverOptions(lease_s=3600.0))
        mover.renew_leadership()
        scan = valkey.scan_iter

        def scan_then_move(*given: object, **options: object) -> Iterator[bytes]:
            found = list(scan(*given, **options))  # pyright: ignore[reportArgumentType]
            mover.sweep(shard)
            yield from found

        monkeypatch.setattr(valkey, "scan_iter", scan_then_move)
        assert find_jobs(valkey, tiers) == (set(), {"dead"})
