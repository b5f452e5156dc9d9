"""Where a query begins, and whether Spark's checkpoint, the spool and Valkey's group belong together.

All three say how far events were taken: the checkpoint for Spark, the spool (its marks) for the numbers, the group for
everybody else. If one of them was deleted or replaced, going on could lose events in silence or count them twice, so a
person has to say where to begin.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from headrace.errors import CheckpointMismatch

From = Literal["group", "oldest", "newest"]

QUERY = "query"
"""The mark that names the query whose events the spool holds."""

CHOICES = (
    "Nothing was touched. Put back what is missing, or say where to begin: --from group (after what was last committed"
    " to Valkey; right in most cases), --from oldest (all that the streams hold; what the spool knows is not counted"
    " again) or --from newest (pass over what waits; it is counted as lost)."
)


def query_id(checkpoint: Path) -> str | None:
    """Spark writes it when a query first starts."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def check(checkpoint: Path, marks: Mapping[str, str], group_exists: bool, replaced_by: str | None = None) -> None:
    """Raises CheckpointMismatch."""
    here, there = query_id(checkpoint), marks.get(QUERY)
    if replaced_by is not None:
        raise CheckpointMismatch(
            f"Another pipeline ({replaced_by}) has read these streams since this one did, or before it. Going on could"
            f" lose events or count them twice. {CHOICES}"
        )
    if here == there and not (here is None and group_exists):
        return
    if there is None and here is not None and not _committed(checkpoint):
        return  # it was started, and ended before its first batch
    if here is None and there is None:
        what = "These streams were read by a pipeline with another checkpoint and spool"
    elif here is None:
        what = f"The checkpoint {checkpoint} is gone, but the spool has taken events of query {there}"
    elif there is None:
        what = f"The spool is new, but the checkpoint {checkpoint} has read events before"
    else:
        what = f"The checkpoint {checkpoint} is of query {here}, the spool of query {there}"
    raise CheckpointMismatch(f"{what}. Going on could lose events or count them twice. {CHOICES}")


def set_aside(checkpoint: Path) -> Path | None:
    """Make room for a new one; returns where the old one is."""
    if not checkpoint.exists():
        return None
    aside = checkpoint.with_name(f"{checkpoint.name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.{time.time_ns()}")
    checkpoint.rename(aside)
    return aside


def _committed(checkpoint: Path) -> bool:
    commits = checkpoint / "commits"
    return commits.is_dir() and any(each.name.isdigit() for each in commits.iterdir())
