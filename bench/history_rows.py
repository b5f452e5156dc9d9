"""Create millions of rows of history inside ClickHouse: two hours of 5 s, a week of minutes, ninety days of hours."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.report import note
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.migrate import migrate
from headrace.warehouse.tiers import TIERS, Tier

HERE = Path(__file__).parent
LENGTH_S = {"5s": 2 * 3600, "1m": 7 * 86400, "1h": 90 * 86400}
VIEWS = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'MaterializedView'"
SETTLE_S = 300.0

WAITS = f"map({', '.join(f'toInt16({60 + number}), toUInt64({number + 1})' for number in range(20))})"
RUNS = f"map({', '.join(f'toInt16({30 + number}), toUInt64(21)' for number in range(10))})"


@dataclass(frozen=True)
class Rows:
    """A database with `queues` queues of one environment."""

    client: Client
    queues: int
    end_s: int  # of its newest rows

    @property
    def database(self) -> str:
        return str(self.client.database)

    def count(self) -> int:
        return sum(int(self.client.query(f"SELECT count() FROM {tier.queues}").result_rows[0][0]) for tier in TIERS)


def queue_name(number: int) -> str:
    return f"queue-{number:04}"


def make_rows(clickhouse: EmbeddedClickHouse, database: str, queues: int) -> Rows:
    migrate(connect(clickhouse.url), database)
    client = connect(clickhouse.url, database)
    # Each tier gets its own rows; views would add those of the finer tiers.
    for [view] in client.query(VIEWS).result_rows:
        client.command(f"DROP VIEW {view}")
    end_s = int(time.time()) // 3600 * 3600
    for tier in TIERS:
        began = time.perf_counter()
        _fill(client, tier, queues, end_s)
        note(f"{database}: {tier.name} of {queues} queues in {time.perf_counter() - began:.0f} s")
    _fill_rest(client, end_s)
    _settle(client)
    return Rows(client, queues, end_s)


def _fill(client: Client, tier: Tier, queues: int, end_s: int) -> None:
    buckets = LENGTH_S[tier.name] // tier.seconds
    bound = {"start_s": end_s - LENGTH_S[tier.name], "step_s": tier.seconds}
    for table, name, rows in (
        (tier.queues, "history_queue_rows", buckets * 2 // 3),
        (tier.environments, "history_environment_rows", buckets),
    ):
        text = (HERE / f"{name}.sql").read_text("utf-8")
        statement = text.replace("{table}", table).replace("{waits}", WAITS).replace("{runs}", RUNS)
        client.command(statement, parameters={**bound, "rows": rows, "queues": queues}, settings={"async_insert": 0})


def _fill_rest(client: Client, end_s: int) -> None:
    """Insert the newest state of every queue, and a day of batches, one per second."""
    client.command(
        "INSERT INTO queue_last_v1 SELECT organization_id, project_id, environment_id, queue_name, max(last) "
        "FROM queue_metrics_by_hour_v1 GROUP BY ALL"
    )
    client.command(
        "INSERT INTO pipeline_batches_v1 (finished_at, batch_id, watermark_ms) SELECT toDateTime64("
        f"{end_s} - number, 3, 'UTC'), number, toUInt64({end_s} - number) * 1000 FROM numbers(86400)"
    )


def _settle(client: Client) -> None:
    """Wait until ClickHouse has finished merging, so that it does not merge during a measurement."""
    deadline = time.monotonic() + SETTLE_S
    merging = "SELECT count() FROM system.merges WHERE database = currentDatabase()"
    while time.monotonic() < deadline and client.query(merging).result_rows[0][0]:
        time.sleep(1)
