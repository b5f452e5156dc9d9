"""The metrics page documents exactly the metrics that are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from headrace.snapshot import health
from headrace.snapshot.declared import read_declared
from headrace.snapshot.families import Described
from headrace.snapshot.queues import OTHERS, PER_QUEUE, TENANT
from headrace.snapshot.quotas import QUOTAS
from headrace.snapshot.streams import STREAMS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "snapshot-metrics.md").read_text("utf-8")


def described() -> Iterator[Described]:
    for each in PER_QUEUE:
        yield replace(each, labels=TENANT + each.labels)
    yield from OTHERS
    yield from QUOTAS
    yield from STREAMS
    yield from (each.described for each in read_declared(("headrace", "convoy"), None))
    yield from health.ALL


def row(each: Described) -> str:
    """Return the row of the page; a failing test prints the missing rows."""
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.name}` | {each.type} | {labels} | {each.help} |"


def test_every_metric_is_documented_and_no_other() -> None:
    documented = {line for line in PAGE.splitlines() if line.startswith("| `")}
    expected = set(map(row, described()))
    assert not expected - documented, "missing:\n" + "\n".join(sorted(expected - documented))
    assert not documented - expected, "not served:\n" + "\n".join(sorted(documented - expected))


def test_convoys_names_of_the_snapshot_itself_are_documented() -> None:
    for each in health.CONVOY:
        assert f"`{each.name.replace('headrace_', 'convoy_', 1)}`" in PAGE
