"""Clients of the API that hold a key, for tests of its routes.

api = client_with_key(services)                                     # may do everything
api = client_with_key(services, Scope("acme", "shop", "prod"), Level.READ)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from headrace.api import services as services_module
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.api_keys import add_key
from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.postgres.connect import connect

services_module.POOL_WAIT_S = services_module.STATEMENT_TIMEOUT_S = 60.0  # no test is about a PostgreSQL that is slow


def make_key(
    postgres_url: str,
    scope: KeyScope = GLOBAL_SCOPE,
    level: AccessLevel = AccessLevel.ADMIN,
    name: str = "test",
    expires_s: float | None = None,
) -> str:
    """Its text."""
    with connect(postgres_url) as conn:
        return add_key(conn, name, scope, level, expires_s)[1]


@lru_cache(maxsize=16)
def make_app(services: Services) -> FastAPI:
    """Return the application of these services, created once because that takes half a second."""
    return create_app(services)


def client(services: Services, key: str | None = None, address: str = "testclient", **options: Any) -> TestClient:
    """`with client(…)` also runs what an API process does on the side."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return TestClient(
        make_app(services),
        raise_server_exceptions=False,
        headers=headers,
        follow_redirects=False,
        client=(address, 50000),
        **options,
    )


def local_client(services: Services) -> TestClient:
    """A client on this machine without a key."""
    return client(services, address="127.0.0.1", base_url="http://127.0.0.1")


def client_with_key(
    services: Services, scope: KeyScope = GLOBAL_SCOPE, level: AccessLevel = AccessLevel.ADMIN
) -> TestClient:
    key = make_key(services.postgres_url, scope, level)
    services.key_ring.refresh()
    return client(services, key)
