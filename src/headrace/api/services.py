"""What the routes talk to. Connections are made when first needed, so one absent server stops only what needs it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

from fastapi import Request

from headrace.valkey.connect import Valkey
from headrace.valkey.connect import connect as connect_valkey
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse


@dataclass(frozen=True)
class Services:
    redis_url: str
    clickhouse_url: str
    database: str
    shards: int

    @cached_property
    def valkey(self) -> Valkey:
        return connect_valkey(self.redis_url)

    @cached_property
    def clickhouse(self) -> Client:
        return connect_clickhouse(self.clickhouse_url, self.database)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def services(request: Request) -> Services:
    return request.app.state.services
