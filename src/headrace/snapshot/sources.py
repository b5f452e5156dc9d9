"""Collect the families of a snapshot from Valkey, PostgreSQL and, if configured, ClickHouse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.queue.metrics import read_metrics
from headrace.queue.queue import read_shards
from headrace.queue.state import read_limits, read_states
from headrace.snapshot import database
from headrace.snapshot.declared import HEADRACE, Declared, read_declared, refuse_same_names
from headrace.snapshot.families import Described, Family, InvalidFamily, refuse_duplicates
from headrace.snapshot.queues import OTHERS, PER_QUEUE, Live, Naming, families_of
from headrace.snapshot.quotas import QUOTAS, read_quotas
from headrace.snapshot.recent import History, read_history
from headrace.snapshot.streams import STREAMS, Streams
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import Client
from headrace.warehouse.reads import Reads

log = logging.getLogger(__name__)

SOURCE = {HEADRACE: "valkey,postgres", "convoy": "postgres"}


@dataclass(frozen=True)
class SourceOptions:
    shards: int | None = None  # verified if given; None: the number stored in Valkey
    postgres_url: str = ""
    source_url: str = ""  # database of the operator's families; empty: `postgres_url`
    query_timeout_s: float = 10.0
    naming: Naming = field(default_factory=Naming)
    presets: tuple[str, ...] = (HEADRACE,)


@dataclass
class Reading:
    families: list[Family] = field(default_factory=list[Family])
    rows: int = 0


class Sources:
    """Reads all sources of a snapshot.

    `history` connects to ClickHouse; None if it is not configured. If ClickHouse fails, its families are omitted and
    the failure is logged.
    """

    def __init__(
        self,
        valkey: Valkey,
        options: SourceOptions,
        declared: Sequence[Declared] | None = None,
        history: Callable[[], Client] | None = None,
        streams: Streams | None = None,
    ) -> None:
        self._valkey = valkey
        self._streams = streams
        self._options = options
        self._declared = list(read_declared(options.presets, None) if declared is None else declared)
        refuse_same_names([*(each.described for each in self._declared), *self._own()])
        self._history = history
        self._client: Client | None = None
        self._told = ""  # the last logged failure to read history
        self._valid = False

    @property
    def source(self) -> str:
        return ",".join(dict.fromkeys(SOURCE[preset] for preset in self._options.presets)) or "postgres"

    def validate(self) -> None:
        """Check the queries of all families in their databases. Raises InvalidFamily, or ServiceUnavailable."""
        for url, declared in self._by_database():
            database.validate(url, declared, self._options.query_timeout_s)
        self._valid = True

    def read(self) -> Reading:
        """Read all families, or raise: a snapshot is never partial, except for families from history."""
        if not self._valid:
            self.validate()
        done = Reading()
        if HEADRACE in self._options.presets:
            self._read_own(done)
        for url, declared in self._by_database():
            families, rows = database.read(url, declared, self._options.query_timeout_s)
            done.families += families
            done.rows += rows
        for family in done.families:
            refuse_duplicates(family)
        return done

    def _own(self) -> list[Described]:
        return [*PER_QUEUE, *OTHERS, *QUOTAS, *STREAMS] if HEADRACE in self._options.presets else []

    def _by_database(self) -> list[tuple[str, list[Declared]]]:
        """Group the SQL families by database URL, so that each database is read in one transaction."""
        by_url: dict[str, list[Declared]] = {}
        for each in self._declared:
            own = each.preset == HEADRACE
            url = self._options.postgres_url if own else self._options.source_url or self._options.postgres_url
            if url:
                by_url.setdefault(url, []).append(each)
            elif not own:
                raise InvalidFamily(f"Family {each.name} requires PostgreSQL: set postgres.url.")
        return list(by_url.items())

    def _read_own(self, done: Reading) -> None:
        shards = read_shards(self._valkey, self._options.shards)
        states = read_states(self._valkey, shards)
        envs = sorted({state.ref.environment for state in states})
        limits = dict(zip(envs, read_limits(self._valkey, shards, envs), strict=True)) if envs else {}
        history = self._read_history()
        recent, watermark_s = (None, None) if history is None else (history.recent, history.watermark_s)
        options = self._options
        quotas = read_quotas(self._valkey, shards, options.postgres_url, options.query_timeout_s, envs)
        live = Live(states, read_metrics(self._valkey, shards), limits, recent, watermark_s, quotas)
        done.rows += len(states) + len(recent or ())
        done.families += families_of(live, self._options.naming)
        if self._streams is not None:
            done.families += self._streams.read()
            done.rows += len(self._streams.groups)

    def _read_history(self) -> History | None:
        if self._history is None:
            return None
        try:
            if self._client is None:
                self._client = self._history()
            history = read_history(Reads(self._client, self._options.query_timeout_s), int(time.time()))
        except Exception as error:  # after any failure the live values are published without history
            self._client = None
            if str(error) != self._told:
                log.warning(
                    "could not read history, omitting wait and run times: %s",
                    error,
                    extra={"action": "history_left_out"},
                )
            self._told = str(error)
            return None
        self._told = ""
        return history
