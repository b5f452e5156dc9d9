"""Due times of delayed jobs in PostgreSQL."""

from __future__ import annotations

from headrace.cold.queries import QUERIES
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection


def read_due_times(conn: Connection, until_ms: float, at_most: int) -> dict[QueueRef, list[float]]:
    """Return the due times (ms) of delayed jobs for each queue: those due until `until_ms`, the first `at_most` of each
    queue."""
    due_times: dict[QueueRef, list[float]] = {}
    values = {"until": until_ms, "most": at_most}
    for org, project, env, queue, due_ms in conn.execute(QUERIES["list_due_times"], values):
        due_times.setdefault(QueueRef(org, project, env, queue), []).append(due_ms)
    return due_times
