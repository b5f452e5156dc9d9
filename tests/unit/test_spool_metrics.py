"""The reference page of the spool's metrics repeats the declarations, and the exposed metrics are the declared ones."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.export.exporter import Exporter, ExporterOptions
from headrace.export.metrics import EXPORT_METRICS, read_export_families
from headrace.runtime.backoff import Backoff
from headrace.runtime.prometheus import build_registry
from headrace.spool.failover import Failover
from headrace.spool.metrics import FAILOVER_METRICS, SPOOL_METRICS, SpoolMetric, read_spool_families
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from tests.conftest import wait_until
from tests.exporting import Answer, HttpDestination, serving

METRICS = (*SPOOL_METRICS, *EXPORT_METRICS, *FAILOVER_METRICS)
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "spool-metrics.md").read_text("utf-8")
UNKNOWN_WHEN_EMPTY = {"headrace_spool_oldest_put_timestamp_seconds"}


def row(each: SpoolMetric) -> str:
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.name}` | {each.type} | {labels} | {each.help} |"


def test_every_metric_is_documented_in_its_place_and_no_other() -> None:
    documented = [line for line in PAGE.splitlines() if line.startswith("| `headrace_")]
    assert documented == list(map(row, METRICS))


def test_no_page_names_a_metric_that_does_not_exist() -> None:
    known = {each.name for each in METRICS}
    for page in Path(__file__).parents[2].joinpath("docs").rglob("*.md"):
        named = set(re.findall(r"`(headrace_(?:spool|export)_[a-z_]*[a-z])", page.read_text("utf-8")))
        assert not named - known, f"{page}: {named - known}"


def test_names_follow_the_conventions() -> None:
    assert len({each.name for each in METRICS}) == len(METRICS)
    for each in METRICS:
        assert each.name.endswith("_total") == (each.type == "counter"), each.name
        assert not re.search(r"_(ms|milliseconds|kib|mib|percent)\b", each.name), each.name


@contextmanager
def scraped(spool: Spool) -> Generator[dict[str, dict[tuple[str, ...], float]]]:
    """Yield values by name and sorted labels, after two records: one delivered at once, one that failed."""
    with serving() as server:
        server.script.extend([Answer(), Answer(503)])
        once = Backoff(base_s=3600.0, longest_s=3600.0)  # the failed record is not retried before the scrape
        options = ExporterOptions(workers=1, preparers=1, backoff=once)
        exporter = Exporter(spool, HttpDestination(server.port), options)
        failover = Failover(spool)
        registry = build_registry(
            lambda: read_spool_families("main", spool, failover), lambda: read_export_families("main", exporter)
        )
        spool.put(b"one", token="1", durable=False)
        spool.put(b"two", token="2", durable=False)
        exporter.start()
        try:
            wait_until(lambda: exporter.stats().retries, "a failure")
            text = generate_latest(registry).decode()
        finally:
            exporter.stop()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = {tuple(sorted(sample.labels.values())): sample.value for sample in family.samples}
    yield found


def test_what_is_exposed_is_what_is_declared(tmp_path: Path) -> None:
    with Spool.open(SpoolOptions(path=tmp_path)) as spool, scraped(spool) as found:
        assert set(found) == {each.name for each in METRICS}
        labelled = {each.name for each in METRICS if set(each.labels) - {"spool", "destination"}}
        assert {name for name, values in found.items() if not values} <= labelled
        one = {name: next(iter(values.values()), None) for name, values in found.items()}
    assert one["headrace_spool_pushed_total"] == 2
    assert one["headrace_spool_acked_total"] == 1
    assert one["headrace_spool_records"] == one["headrace_spool_delayed_records"] == 1
    assert one["headrace_spool_unaccounted_records"] == 0
    assert one["headrace_export_sent_records_total"] == 1
    assert one["headrace_export_sent_bytes_total"] == 3
    assert found["headrace_export_failures_total"] == {("http", "main", "server_error"): 1}
    assert found["headrace_export_breaker_state"] == {
        ("closed", "http", "main"): 1, ("http", "main", "open"): 0, ("half_open", "http", "main"): 0
    }  # fmt: skip
    assert found["headrace_export_data_loss_total"] == {("evicted", "main"): 0, ("main", "shutdown"): 0}


def test_a_spool_alone_has_no_series_of_an_exporter(tmp_path: Path) -> None:
    with Spool.open(SpoolOptions(path=tmp_path)) as spool:
        families = {metric.name: series for metric, series in read_spool_families("main", spool)}
        assert not [name for name in families if name.startswith("headrace_export")]
        for name in UNKNOWN_WHEN_EMPTY:
            assert families[name] == {}, "unknown is no zero"
