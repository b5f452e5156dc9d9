"""What tests of the snapshot share: a refresher, a reader and their servers, each step by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import QueueOptions, SyncClient
from headrace.snapshot import reader as snapshot_reader
from headrace.snapshot.keys import SnapshotKeys
from headrace.snapshot.queue_families import TenantLabelPolicy
from headrace.snapshot.reader import SnapshotReader, SnapshotReaderOptions
from headrace.snapshot.refresher import Refresher
from headrace.snapshot.sources import SnapshotSourceOptions, SnapshotSources
from headrace.snapshot.sql_families import SqlFamily, load_sql_families
from headrace.snapshot.store import SnapshotStore, SnapshotStoreOptions
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import Client

REF = QueueRef("acme", "shop", "prod", "emails")
KEYS = SnapshotKeys(SnapshotStoreOptions().prefix)
TENANT = (("env", "prod"), ("org", "acme"), ("project", "shop"), ("queue", "emails"))
READY = tuple(sorted((*TENANT, ("state", "ready"), ("tier", "warm"))))
SERVED = "headrace_queue_metrics_snapshot_served"
TROUBLE = "headrace_queue_metrics_snapshot_trouble"

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""Name of the sample → labels that are not empty, in order → value."""


class Crash(BaseException):
    """Stands for a process that ends: nothing catches it."""


class Clock:
    """Monotonic clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def store(valkey: Valkey, **options: Any) -> SnapshotStore:
    """Return a store whose leases end only when the test releases them or sets their length."""
    options.setdefault("lock_ttl_s", 600.0)
    return SnapshotStore(valkey, SnapshotStoreOptions(**options))


def sources(
    valkey: Valkey,
    postgres_url: str = "",
    declared: Sequence[SqlFamily] | None = None,
    history: Callable[[], Client] | None = None,
    naming: TenantLabelPolicy | None = None,
    **options: Any,
) -> SnapshotSources:
    options.setdefault("query_timeout_s", 60.0)
    given = SnapshotSourceOptions(postgres_url=postgres_url, label_policy=naming or TenantLabelPolicy(), **options)
    return SnapshotSources(valkey, given, declared, history)


def refresher(
    valkey: Valkey,
    found: SnapshotSources,
    after: Callable[[str], None] = lambda step: None,
    owner: str | None = None,
    **options: Any,
) -> Refresher:
    return Refresher(store(valkey, **options), found, after=after, owner=owner)


def reader(valkey: Valkey, clock: Callable[[], float] = time.monotonic, **options: Any) -> SnapshotReader:
    """Return a reader that polls at each scrape, unless `poll_every_s` is given."""
    options.setdefault("poll_every_s", 0.0)
    return SnapshotReader(lambda: store(valkey), SnapshotReaderOptions(**options), clock)


def load_families_from(folder: Path, text: str, presets: Sequence[str] = ()) -> list[SqlFamily]:
    file = folder / "families.toml"
    file.write_text(text, "utf-8")
    return load_sql_families(presets, file)


def scrape(found: SnapshotReader) -> Samples:
    """Scrape with a long timeout: a scrape that times out would serve the previous version, or none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_reader, "POLL_WAIT_S", 60.0)
        return parse_samples(found.render_body(bytes, openmetrics=False, gzip=False).decode())


def parse_samples(text: str) -> Samples:
    told: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if value))
            series = told.setdefault(sample.name, {})
            assert labels not in series, f"{sample.name}{labels} is there twice"
            series[labels] = sample.value
    return told


def find_troubles(told: Samples) -> set[str]:
    return {labels[0][1] for labels, value in told[TROUBLE].items() if value}


def count_waiting(told: Samples) -> float:
    """Jobs of the one queue that most tests use."""
    return told["headrace_queue_jobs"][READY]


def family(name: str, sql: str, *labels: str, **more: object) -> str:
    """A declaration, as a file has it."""
    given: dict[str, object] = {"name": name, "help": "x", "labels": list(labels), "value": "n", "sql": sql, **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items() if value is not None]
    return "[[family]]\n" + "\n".join(lines) + "\n"


def enqueue(url: str, ref: QueueRef, count: int = 1) -> None:
    with SyncClient(url, QueueOptions()) as client:
        client.enqueue_many(ref, [NewJob(task="send", payload=b"12") for _ in range(count)])
