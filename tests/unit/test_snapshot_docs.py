"""The metrics page documents exactly the metrics that are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from headrace.snapshot import status_families as health
from headrace.snapshot.families import FamilyDescriptor
from headrace.snapshot.memory_families import MEMORY_FAMILIES
from headrace.snapshot.queue_families import GLOBAL_FAMILIES, QUEUE_FAMILIES, TENANT
from headrace.snapshot.quota_families import QUOTA_FAMILIES
from headrace.snapshot.sql_families import load_sql_families
from headrace.snapshot.stream_families import STREAM_FAMILIES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "snapshot-metrics.md").read_text("utf-8")


def list_descriptors() -> Iterator[FamilyDescriptor]:
    for each in QUEUE_FAMILIES:
        yield replace(each, labels=TENANT + each.labels)
    yield from GLOBAL_FAMILIES
    yield from QUOTA_FAMILIES
    yield from STREAM_FAMILIES
    yield from MEMORY_FAMILIES
    yield from (each.descriptor for each in load_sql_families(("headrace", "convoy"), None))
    yield from health.STATUS_FAMILIES


def make_row(each: FamilyDescriptor) -> str:
    """Return the row of the page; a failing test prints the missing rows."""
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.name}` | {each.type} | {labels} | {each.help} |"


def test_every_metric_is_documented_and_no_other() -> None:
    documented = {line for line in PAGE.splitlines() if line.startswith("| `")}
    expected = set(map(make_row, list_descriptors()))
    assert not expected - documented, "missing:\n" + "\n".join(sorted(expected - documented))
    assert not documented - expected, "not served:\n" + "\n".join(sorted(documented - expected))


def test_convoys_names_of_the_snapshot_itself_are_documented() -> None:
    for each in health.CONVOY_FAMILIES:
        assert f"`{each.name.replace('headrace_', 'convoy_', 1)}`" in PAGE
