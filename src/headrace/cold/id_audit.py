"""Compare the registered ids in Valkey (queue/lua/cold_ids.lua) with the table cold_ids, and repair differences.

Some differences are expected: a producer died between the two commits, Valkey failed over to a replica that was behind
or lost its data, or a process of release 0.4.0 or earlier stored or deleted jobs. Every change names the token of the
entry that was read, so it does not affect an entry that was made since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.cold.tiers import Tiers
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.scripts import IdChange
from headrace.valkey.connect import find_node, read_server_time_ms, translate_errors

log = logging.getLogger(__name__)

PAGE = 1000
PENDING_MS = 300_000  # longer than a spill takes: PostgreSQL ends statements and idle transactions earlier
COMMIT_S = PENDING_MS / 1000
ROWS_PAGE = 10_000
BYTES_FIELD = "cold_id_bytes"


class IdAudit:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._store = tiers.store
        # By shard and whether of dead jobs: when rows were read, and up to which number. Rows of lower numbers may be
        # committed later, within COMMIT_S.
        self._checked: dict[tuple[int, bool], list[tuple[float, int]]] = {}

    def run_incrementally(self, shard: int, queues: Iterable[QueueRef]) -> Iterator[None]:
        """Audit the ids of a shard, of which `queues` have jobs in PostgreSQL, one page per step."""
        for dead in (False, True):
            yield from self._add_missing(shard, dead=dead)
        repaired = 0
        registered = self._correct_bytes(shard)
        for env in sorted({ref.environment for ref in queues} | registered):
            for stored in self._list_stored(env):
                repaired += self._tiers.settle_ids(env, self._find_missing(shard, env, stored))
                yield
            for page in self._scan_registered(shard, env) if env in registered else ():
                repaired += self._tiers.settle_ids(env, list(self._check_registered(shard, env, page)))
                yield
        if repaired:
            log.info("changed %d registered ids of shard %d", repaired, shard, extra={"action": "ids_repaired"})

    def _add_missing(self, shard: int, *, dead: bool) -> Iterator[None]:
        """Store the ids of rows that processes of an earlier release added. The first audits of this process read all
        rows, later ones only newer rows."""
        checked, now = self._checked.setdefault((shard, dead), [(0.0, 0)]), time.monotonic()
        while len(checked) > 1 and checked[1][0] < now - COMMIT_S:
            del checked[0]
        _, seq = checked[0]
        while (last := self._store.add_missing_ids(shard, seq, ROWS_PAGE, dead=dead)) is not None:
            seq = last
            yield
        checked.append((now, seq))

    @translate_errors()
    def _correct_bytes(self, shard: int) -> set[EnvRef]:
        """Return the environments that have registered ids. Set the bytes of the shard to the sum of theirs: a script
        that failed may have counted in one place only."""
        node = find_node(self._tiers.valkey, keys.meta(shard))
        parts: Any = node.smembers(keys.environments(shard))
        envs = [keys.parse_queue_part(f"{part.decode()}:").environment for part in parts]
        pipeline = node.pipeline(transaction=True)
        pipeline.hget(keys.meta(shard), BYTES_FIELD)
        for env in envs:
            pipeline.hget(keys.env(shard, env), BYTES_FIELD)
        total, *sizes = (None if size is None else int(size) for size in pipeline.execute())
        if difference := sum(size or 0 for size in sizes) - (total or 0):
            node.hincrby(keys.meta(shard), BYTES_FIELD, difference)
        return {env for env, size in zip(envs, sizes, strict=True) if size is not None}

    def _scan_registered(self, shard: int, env: EnvRef) -> Iterator[dict[str, str]]:
        """Yield pages of the registered ids of an environment, with their entries."""
        cursor, is_last = 0, False
        while not is_last:
            cursor, page = self._read_page(shard, env, cursor)
            is_last = cursor == 0
            yield page

    @translate_errors()
    def _read_page(self, shard: int, env: EnvRef, cursor: int) -> tuple[int, dict[str, str]]:
        found: Any = self._tiers.valkey.hscan(keys.env_cold_ids(shard, env), cursor, count=PAGE)
        cursor, entries = found
        return cursor, {keys.decode(part.decode()): entry.decode() for part, entry in entries.items()}

    def _check_registered(self, shard: int, env: EnvRef, page: Mapping[str, str]) -> Iterable[IdChange]:
        """Yield the changes for registered ids: PostgreSQL has the job (under this or another token), or has not."""
        now_ms = read_server_time_ms(self._tiers.valkey, keys.meta(shard))
        with self._store.transaction() as conn:
            stored = self._store.find_ids(conn, env, list(page))
        for job_id, entry in page.items():
            token, _, since = entry[1:].partition(" ")
            if stored.get(job_id) == token:
                if since:
                    yield IdChange(job_id, token, "confirm")
            elif job_id in stored or not since or now_ms - int(since) > PENDING_MS:
                yield IdChange(job_id, token, "remove")
                if job_id in stored:
                    yield IdChange(job_id, stored[job_id], "pend")

    def _list_stored(self, env: EnvRef) -> Iterator[Mapping[str, str]]:
        """Yield pages of the ids of an environment in PostgreSQL, with their tokens. Delete those without a job."""
        after = ""
        while page := self._store.list_ids(env, after, PAGE):
            after = list(page)[-1]
            stale = self._store.delete_stale_ids(env, page)
            yield {job_id: token for job_id, token in page.items() if job_id not in stale}

    @translate_errors()
    def _find_missing(self, shard: int, env: EnvRef, stored: Mapping[str, str]) -> list[IdChange]:
        """Return the changes that register ids as pending. They are confirmed by the next audit: this one may have read
        the id just before its job was deleted."""
        parts = [keys.encode(job_id) for job_id in stored]
        entries: Any = self._tiers.valkey.hmget(keys.env_cold_ids(shard, env), parts) if parts else []
        pairs = zip(stored.items(), entries, strict=True)
        return [IdChange(job_id, token, "pend") for (job_id, token), entry in pairs if entry is None]
