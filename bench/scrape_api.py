"""The API for `bench/scrape.py`, without background work, so that only scrapes query PostgreSQL."""

from __future__ import annotations

import sys

import uvicorn

from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.settings import QueueSnapshotSettings


def main() -> None:
    """Serve the API. Arguments: port, prefix, URL of Valkey, URL of PostgreSQL."""
    port, prefix, redis_url, postgres_url = sys.argv[1:]
    snapshot = QueueSnapshotSettings(redis_prefix=prefix, max_staleness=86_400.0)
    services = Services(redis_url, "http://127.0.0.1:1", "x", 2, postgres_url, snapshot=snapshot)
    uvicorn.run(create_app(services), port=int(port), log_config=None, access_log=False, lifespan="off")


if __name__ == "__main__":
    main()
