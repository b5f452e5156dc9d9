"""Check where a query starts, and whether Spark's checkpoint, the spool and Valkey's consumer group belong together.

Each of the three records how far events were read: Spark continues from the checkpoint, the marks of the spool say
which events are counted, and the group shows the position to other tools. If one of them was deleted or replaced,
continuing could silently lose events or count them twice, so an operator has to choose where to start.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from headrace.errors import CheckpointMismatch

StartFrom = Literal["group", "oldest", "newest"]

QUERY = "query"
"""Mark with the id of the query whose events are in the spool."""

CHOICES = (
    "Nothing was changed. Restore what is missing, or choose where to start: --from group (after the last position"
    " committed to Valkey; usually right), --from oldest (everything the streams hold; what the spool already has is"
    " not counted again) or --from newest (skip waiting events; they count as lost)."
)


def read_query_id(checkpoint: Path) -> str | None:
    """Return the query id in a checkpoint, which Spark writes at the first start; None if there is none."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def verify_checkpoint(
    checkpoint: Path, marks: Mapping[str, str], group_exists: bool, other_reader: str | None = None
) -> None:
    """Raise CheckpointMismatch unless checkpoint, spool marks and consumer group belong together."""
    here, there = read_query_id(checkpoint), marks.get(QUERY)
    if other_reader is not None:
        raise CheckpointMismatch(
            f"Another pipeline ({other_reader}) was the last to read these streams. Continuing could lose events or"
            f" count them twice. {CHOICES}"
        )
    if here == there and not (here is None and group_exists):
        return
    if there is None and here is not None and not _has_commits(checkpoint):
        return  # the query ended before its first batch
    if here is None and there is None:
        problem = "These streams were read by a pipeline with another checkpoint and spool"
    elif here is None:
        problem = f"Checkpoint {checkpoint} is missing, but the spool holds events of query {there}"
    elif there is None:
        problem = f"The spool is new, but checkpoint {checkpoint} has already read events"
    else:
        problem = f"Checkpoint {checkpoint} belongs to query {here}, the spool to query {there}"
    raise CheckpointMismatch(f"{problem}. Continuing could lose events or count them twice. {CHOICES}")


def move_away(checkpoint: Path) -> Path | None:
    """Rename a checkpoint to make room for a new one. Return its new path; None if there was none."""
    if not checkpoint.exists():
        return None
    renamed = checkpoint.with_name(
        f"{checkpoint.name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.{time.time_ns()}"
    )
    checkpoint.rename(renamed)
    return renamed


def _has_commits(checkpoint: Path) -> bool:
    commits = checkpoint / "commits"
    return commits.is_dir() and any(each.name.isdigit() for each in commits.iterdir())
