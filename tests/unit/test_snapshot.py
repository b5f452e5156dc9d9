"""The pure parts of the snapshot: lines, pages, families, declarations, and what each refuses."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.registry import Collector

from headrace.errors import SettingsError
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.metrics_flag import ShardMetrics
from headrace.queue.state import EnvLimits, QueueState
from headrace.settings import SETTINGS, load_settings
from headrace.snapshot.exposition import render_family, render_page
from headrace.snapshot.families import (
    COUNTER,
    FamilyDescriptor,
    InvalidFamily,
    InvalidSamples,
    MetricSample,
    RankedSample,
    SnapshotFamily,
    limit_to_top,
    refuse_duplicates,
    split_by_oldest,
)
from headrace.snapshot.gzip_page import compress_part, gzip_page
from headrace.snapshot.parity import compare
from headrace.snapshot.payload import (
    SnapshotDamaged,
    SnapshotMeta,
    compute_checksum,
    decode,
    encode,
    parse_meta,
    truncate_message,
)
from headrace.snapshot.queue_families import (
    ALL,
    NONE,
    TOP_N,
    QueueMetricsInput,
    RecentHistograms,
    TenantLabelPolicy,
    build_queue_families,
)
from headrace.snapshot.sql_families import load_sql_families
from tests.snapshots import load_families_from, parse_samples

JOBS = FamilyDescriptor("shop_jobs", "gauge", 'Jobs, "all" of them.\nReally \\ all.', ("org", "queue"))
DONE = FamilyDescriptor("shop_done_total", "counter", "Done.", ("org", "queue"))
AGE = FamilyDescriptor("shop_age_seconds", "gauge", "Age.", ("org", "queue"), is_age=True)
HARD = 'say "hi" \\n to\nC:\\new\t{a="b"} é🎈 # x'

label = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
number = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60)


class LibraryCollector(Collector):
    """The same family as the library would have it."""

    def __init__(self, family: SnapshotFamily) -> None:
        kind = CounterMetricFamily if family.descriptor.type == COUNTER else GaugeMetricFamily
        self._made = kind(family.descriptor.name, family.descriptor.help, labels=family.descriptor.labels)
        for each in family.samples:
            self._made.add_metric(each.labels, each.value)

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        return [self._made]


@pytest.mark.parametrize("described", [JOBS, DONE])
@given(rows=st.dictionaries(st.tuples(label, label), number, max_size=5))
@settings(max_examples=60, deadline=None)
def test_lines_are_those_of_the_library(described: FamilyDescriptor, rows: dict[tuple[str, str], float]) -> None:
    family = SnapshotFamily(described, [MetricSample(labels, value) for labels, value in rows.items()])
    registry = CollectorRegistry()
    registry.register(LibraryCollector(family))
    ours = render_page([render_family(family)], 0.0, openmetrics=False)
    assert ours == (generate_latest(registry).decode() if rows else "")
    ours = render_page([render_family(family)], 0.0, openmetrics=True)
    assert ours == (generate_openmetrics(registry).decode().removesuffix("# EOF\n") if rows else "")


def test_hard_labels_come_back_as_they_were() -> None:
    text = render_page([render_family(SnapshotFamily(JOBS, [MetricSample((HARD, ""), 1.0)]))], 0.0, openmetrics=False)
    assert parse_samples(text)["shop_jobs"] == {(("org", HARD),): 1.0}
    text = (
        render_page([render_family(SnapshotFamily(DONE, [MetricSample((HARD, ""), 1.0)]))], 0.0, openmetrics=True)
        + "# EOF\n"
    )
    [family] = parse_openmetrics(text)
    assert (family.name, family.samples[0].name) == ("shop_done", "shop_done_total")
    assert family.samples[0].labels["org"] == HARD


def test_an_age_grows_and_is_never_negative() -> None:
    written = render_family(SnapshotFamily(AGE, [MetricSample(("a", "b"), 1000.25), MetricSample(("c", "d"), 5000.0)]))
    told = parse_samples(render_page([written], 1010.75, openmetrics=False))["shop_age_seconds"]
    assert list(told.values()) == [10.5, 0.0]


@given(large=st.binary(max_size=5000), small=st.binary(max_size=300))
@settings(deadline=None)
def test_a_page_in_two_parts_is_one_gzip_member(large: bytes, small: bytes) -> None:
    compressed = gzip_page(compress_part(large), small)
    reader = zlib.decompressobj(wbits=31)
    assert reader.decompress(compressed) == large + small
    assert (reader.eof, reader.unused_data) == (True, b"")
    assert gzip.decompress(compressed) == large + small


# --- Which are named -------------------------------------------------------------------------------


def test_those_that_wait_longest_come_first_and_the_others_are_summed_up() -> None:
    rows = [RankedSample(MetricSample((str(i), "q"), float(i)), None if i == 3 else 1000.0 - i) for i in range(6)]
    family = limit_to_top(JOBS, rows, 2)
    assert family.samples == [
        MetricSample(("4", "q"), 4.0),
        MetricSample(("5", "q"), 5.0),
        MetricSample(("", ""), 0 + 1 + 2 + 3),
    ]
    aged = limit_to_top(AGE, [RankedSample(MetricSample((str(i), "q"), 1000.0 - i), 1000.0 - i) for i in range(4)], 1)
    assert aged.samples == [MetricSample(("3", "q"), 997.0), MetricSample(("", ""), 998.0)]


def test_a_series_without_labels_is_rendered_with_the_others() -> None:
    rows = [
        RankedSample(MetricSample(("", ""), 7.0), 1.0),
        *(RankedSample(MetricSample((str(i), ""), 1.0), 10.0 + i) for i in range(3)),
    ]
    assert limit_to_top(JOBS, rows, 2).samples == [MetricSample(("0", ""), 1.0), MetricSample(("", ""), 1 + 1 + 7)]
    assert limit_to_top(JOBS, rows, 4).samples == [row.sample for row in rows]


def test_without_too_many_nothing_is_summed_up() -> None:
    assert limit_to_top(JOBS, [RankedSample(MetricSample(("a", "b"), 1.0), None)], 1).samples == [
        MetricSample(("a", "b"), 1.0)
    ]
    assert split_by_oldest([3, 1, 2], float, 3) == ([3, 1, 2], [])


def test_two_series_of_the_same_labels_are_refused_by_name() -> None:
    family = SnapshotFamily(
        JOBS, [MetricSample(("a", ""), 1.0), MetricSample(("b", ""), 1.0), MetricSample(("a", ""), 2.0)]
    )
    with pytest.raises(InvalidSamples, match=r"shop_jobs.*\{'org': 'a', 'queue': ''\}"):
        refuse_duplicates(family)


def state(number: int, oldest_ms: int | None = None, **given: int) -> QueueState:
    numbers = {"warm": 2, "cold": 1, "scheduled": 4, "running": 3, "bytes": 30, "cold_bytes": 10, "dead": 5, **given}
    return QueueState(
        ref=QueueRef("org", f"project{number:04}", "env", "queue"),
        depth=numbers["warm"] + numbers["cold"],
        limit=7,
        paused=number % 2 == 0,
        closed=False,
        epoch_ms=1,
        oldest_ms=oldest_ms,
        cold_mode=True,
        odometers={"enqueue": 10, "ack": 4},
        **numbers,
    )


def build_values(
    live: QueueMetricsInput, naming: TenantLabelPolicy
) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return parse_samples(render_page(map(render_family, build_queue_families(live, naming)), 2000.0, openmetrics=False))


CHOICES = (TenantLabelPolicy(ALL), TenantLabelPolicy(TOP_N, 3), TenantLabelPolicy(TOP_N, 100), TenantLabelPolicy(NONE))


@pytest.mark.parametrize("naming", CHOICES)
def test_a_sum_is_the_same_whatever_is_named(naming: TenantLabelPolicy) -> None:
    live = QueueMetricsInput([state(i, 1_000_000 - i) for i in range(10)], [ShardMetrics(0, True, 12, 34)])
    found = build_values(live, naming)
    assert found["headrace_operations_total"] == {
        (("op", "ack"),): 40,
        (("op", "enqueue"),): 100,
    }
    by_state: dict[tuple[str, str], float] = {}
    for labels, value in found["headrace_queue_jobs"].items():
        key = (dict(labels)["state"], dict(labels)["tier"])
        by_state[key] = by_state.get(key, 0) + value
    assert by_state == {
        ("ready", "warm"): 20,
        ("ready", "cold"): 10,
        ("running", "warm"): 30,
        ("scheduled", "both"): 40,
        ("dead", "both"): 50,
    }
    assert sum(found["headrace_queue_bytes"].values()) == 300
    assert sum(found["headrace_queue_paused"].values()) == 5
    assert max(found["headrace_queue_oldest_job_age_seconds"].values()) == pytest.approx(1000.009)
    named = {ALL: 10, NONE: 0}.get(naming.tenant_labels, min(naming.top_n, 10))
    assert found["headrace_queue_metrics_unnamed_queues"][()] == 10 - named
    assert len(found.get("headrace_queue_operations_total", {})) == 2 * named
    assert len(found.get("headrace_queue_concurrency_limit", {})) == named
    assert found["headrace_metric_events_total"] == {(("shard", "0"),): 34}


def test_the_one_that_is_stuck_is_named_among_many() -> None:
    states = [state(i, 1_900_000) for i in range(1500)] + [state(1500, 1_000, warm=1)]
    ages = build_values(QueueMetricsInput(states), TenantLabelPolicy(TOP_N, 100))[
        "headrace_queue_oldest_job_age_seconds"
    ]
    assert len(ages) == 101
    assert max(ages, key=lambda labels: ages[labels]) == (
        ("env", "env"), ("org", "org"), ("project", "project1500"), ("queue", "queue"),
    )  # fmt: skip


def test_percentiles_of_the_others_are_those_of_all_their_jobs_together() -> None:
    states = [state(0, 1000), state(1), state(2)]
    recent = {each.ref: RecentHistograms({160: 98}, {}) for each in states[1:]} | {
        states[0].ref: RecentHistograms({0: 1}, {32: 1})
    }
    waits = build_values(QueueMetricsInput(states, recent=recent), TenantLabelPolicy(TOP_N, 1))[
        "headrace_queue_recent_wait_seconds"
    ]
    assert waits[("percentile", "p99"),] == pytest.approx(1.024, rel=0.03)
    assert len(waits) == 6
    runs = build_values(QueueMetricsInput(states, recent=recent), TenantLabelPolicy(TOP_N, 1))[
        "headrace_queue_recent_run_seconds"
    ]
    assert {dict(labels).get("queue") for labels in runs} == {"queue"}, "of the others nothing was measured"


def test_unread_families_are_absent_and_reported() -> None:
    found = build_values(QueueMetricsInput([state(0)]), TenantLabelPolicy())
    assert "headrace_queue_recent_wait_seconds" not in found
    assert "headrace_history_lag_seconds" not in found
    assert "headrace_queue_oldest_job_age_seconds" not in found
    assert found["headrace_queue_metrics_source_up"] == {(("source", "clickhouse"),): 0}
    limits = {EnvRef("org", "project0000", "env"): EnvLimits(9, None)}
    found = build_values(
        QueueMetricsInput([state(0)], limits=limits, recent={}, watermark_s=1990.0), TenantLabelPolicy()
    )
    assert found["headrace_history_lag_seconds"] == {(): 10}
    assert list(found["headrace_environment_concurrency_limit"].values()) == [9]


# --- Declarations ----------------------------------------------------------------------------------

GOOD = {"name": '"shop_orders"', "help": '"Orders."', "value": '"n"', "sql": '"SELECT 1 AS n"'}


def text(**changes: str | None) -> str:
    given = {**GOOD, **changes}
    return "[[family]]\n" + "\n".join(f"{key} = {value}" for key, value in given.items() if value is not None)


def test_a_declaration_is_read(tmp_path: Path) -> None:
    [each] = load_families_from(tmp_path, text(labels='["a"]', top="5", rank='"since"', sql='"SELECT 1 ; "'))
    assert (each.name, each.descriptor.labels, each.top) == ("shop_orders", ("a",), 5)
    assert each.columns == ["a", "n", "since"]
    assert each.sql == "SELECT 1 "
    [aged] = load_families_from(tmp_path, text(value=None, oldest='"since"', top="5"))
    assert (aged.descriptor.is_age, aged.columns) == (True, ["since", "since"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": '"shop-orders"'}, "letters, digits"),
        ({"name": '"1shop"'}, "letters, digits"),
        ({"name": '"shop:orders"'}, "letters, digits"),
        ({"name": None}, "name is missing"),
        ({"name": '"headrace_orders"'}, "reserved for Headrace"),
        ({"name": '"shop_orders_total"'}, "looks like a counter"),
        ({"name": '"shop_orders_bucket"'}, "Prometheus adds"),
        ({"type": '"counter"'}, "must end in _total"),
        ({"type": '"histogram"'}, "gauge or counter"),
        ({"help": '" "'}, "help is empty"),
        ({"labels": '["a-b"]'}, "label 'a-b'"),
        ({"labels": '["__a"]'}, "label '__a'"),
        ({"labels": '["le"]'}, "reserved by Prometheus"),
        ({"labels": '["a", "a"]'}, "listed twice"),
        ({"labels": '["n"]'}, "is also a label"),
        ({"labels": '"a"'}, "labels is empty"),
        ({"value": None}, "exactly one of value"),
        ({"oldest": '"t"'}, "exactly one of value"),
        ({"value": None, "oldest": '"t"', "type": '"counter"', "name": '"a_total"'}, "cannot be used with a counter"),
        ({"top": "5"}, "requires rank"),
        ({"top": "0", "rank": '"t"'}, "whole number"),
        ({"top": "5", "rank": '"t"', "type": '"counter"', "name": '"a_total"'}, "top cannot be used with a counter"),
        ({"colour": '"red"'}, "unknown key colour"),
        ({"sql": None}, "sql is missing"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, str | None], reason: str) -> None:
    with pytest.raises(InvalidFamily, match=reason):
        load_families_from(tmp_path, text(**changes))


def test_a_gauge_may_keep_a_name_that_looks_like_a_counter(tmp_path: Path) -> None:
    [each] = load_families_from(tmp_path, text(name='"shop_orders_total"', keep_name="true"))
    assert each.descriptor.type == "gauge"


def test_two_families_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFamily, match="Two families have the name shop_orders"):
        load_families_from(tmp_path, f"{text()}\n{text()}")
    counter = text(name='"shop_orders_total"', type='"counter"')
    with pytest.raises(InvalidFamily, match="Two families"):
        load_families_from(tmp_path, f"{text()}\n{counter}")
    same_samples = text(name='"shop_orders_total"', keep_name="true")
    with pytest.raises(InvalidFamily, match="Two families"):
        load_families_from(tmp_path, f"{same_samples}\n{counter}")
    with pytest.raises(InvalidFamily, match="Two families"):
        load_families_from(tmp_path, text(name='"convoy_event_queue_total"', keep_name="true"), ["convoy"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[family", "not valid TOML"),
        ("a = 1", r"only \[\[family\]\] tables"),
        ("family = [1]", "family 1 of .*: not a table"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(InvalidFamily, match=reason):
        load_families_from(tmp_path, content)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFamily, match="Could not read families file"):
        load_sql_families((), tmp_path / "nothing.toml")


# --- Payload, parity, settings ---------------------------------------------------------------------

META = SnapshotMeta(7, 1000.5, "valkey,postgres", 12, 3, 4, "abc", 99, "me", 7)


def test_a_payload_comes_back_and_a_damaged_one_does_not() -> None:
    written = [
        render_family(SnapshotFamily(JOBS, [MetricSample((HARD, ""), 1.5)])),
        render_family(SnapshotFamily(AGE, [MetricSample(("a", "b"), 2.5)])),
    ]
    data = encode(written)
    assert decode(data, compute_checksum(data)) == written
    with pytest.raises(SnapshotDamaged, match="checksum"):
        decode(data[:-1] + b"x", compute_checksum(data))


def test_a_payload_of_a_later_release_is_not_misread() -> None:
    data = zlib.compress(b'{"format": 2, "families": []}')
    with pytest.raises(SnapshotDamaged, match="format 2"):
        decode(data, compute_checksum(data))


def test_meta_comes_back_and_half_of_it_does_not() -> None:
    fields = {name.encode(): value.encode() for name, value in META.to_fields().items()}
    assert parse_meta(fields) == META
    for name in fields:
        with pytest.raises(SnapshotDamaged):
            parse_meta({other: value for other, value in fields.items() if other != name})
    with pytest.raises(SnapshotDamaged):
        parse_meta({**fields, b"bytes": b"many"})
    with pytest.raises(SnapshotDamaged):
        parse_meta({**fields, b"owner": b"\xff"})


def test_long_messages_are_shortened() -> None:
    assert truncate_message("x" * 500) == "x" * 500
    assert truncate_message("x" * 501) == "x" * 499 + "…"


def test_parity_is_reported_by_series() -> None:
    left = [
        render_family(
            SnapshotFamily(
                JOBS,
                [MetricSample(("a", ""), 1.0), MetricSample(("b", ""), 2.0), MetricSample(("n", ""), float("nan"))],
            )
        )
    ]
    right = [
        render_family(
            SnapshotFamily(
                JOBS,
                [MetricSample(("b", ""), 3.0), MetricSample(("c", ""), 4.0), MetricSample(("n", ""), float("nan"))],
            )
        )
    ]
    left.append(render_family(SnapshotFamily(AGE, [MetricSample(("a", "b"), 10.0)])))
    right.append(render_family(SnapshotFamily(replace(AGE), [MetricSample(("a", "b"), 10.0)])))
    found = compare(left, right)
    assert found.counts() == {"same": 2, "different": 1, "only_snapshot": 1, "only_direct": 1}
    assert [(each.snapshot, each.direct) for each in found.differences] == [(1.0, None), (2.0, 3.0), (None, 4.0)]


SECTION = "metrics.queue_snapshot"


def test_a_section_within_a_section(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('[metrics]\nstream_maxlen = 5000\n[metrics.queue_snapshot]\nlock_ttl = "9s"\ntop_n = 7\n')
    loaded = load_settings({f"{SECTION}.top_n": "8"}, {"HEADRACE_METRICS_QUEUE_SNAPSHOT_SHADOW": "true"}, file)
    given = loaded.settings.metrics.queue_snapshot
    assert (loaded.settings.metrics.stream_maxlen, given.lock_ttl, given.top_n, given.shadow) == (5000, 9.0, 8, True)
    assert given.refresh_interval == 15.0
    assert loaded.origins[f"{SECTION}.lock_ttl"].source == "file"
    assert SETTINGS[f"{SECTION}.lock_ttl"].get_value(loaded.settings) == 9.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[metrics]\nqueue_snapshot = 5", r"metrics.queue_snapshot .* is a section"),
        ("[metrics.queue_snapshot]\nlock_tll = '9s'", r"Unknown setting metrics.queue_snapshot.lock_tll .*lock_ttl\?"),
        ("[metrics.queue_snapshot]\nrefresh_interval = '2m'", "must be shorter than"),
        ("[metrics.queue_snapshot]\nredis_prefix = 'a{b}'", "is invalid"),
    ],
)
def test_a_wrong_section_within_a_section(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=reason):
        load_settings({}, {}, file)
