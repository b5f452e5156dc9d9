"""Two people at the same rule or channel: what one removed the other does not bring back, and both changes stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from headrace.alerts import records
from headrace.api.access import KeyScope
from headrace.postgres.connect import connect
from tests.access import client_with_key
from tests.operating import World, open_world, problem

HERE = KeyScope("acme", "shop", "prod")
PATH = "/api/v1/alerts"
MADE: dict[str, dict[str, Any]] = {
    "rule": {"name": "deep", "metric": "BACKLOG", "threshold": 100},
    "channel": {"name": "ops", "type": "webhook", "url": "https://example.org/hook"},
}


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


@pytest.fixture
def api(world: World) -> TestClient:
    return client_with_key(world.services, HERE)


def after_it_was_looked_up(monkeypatch: pytest.MonkeyPatch, kind: str, happens: Callable[[str], object]) -> None:
    """Call `happens` after the next lookup of a row, before the request continues."""
    name = f"find_{kind}"
    look_up = getattr(records, name)

    def slow(conn: Any, row_id: str) -> Any:
        found = look_up(conn, row_id)
        monkeypatch.setattr(records, name, look_up)
        happens(row_id)
        return found

    monkeypatch.setattr(records, name, slow)


@pytest.mark.parametrize("kind", MADE)
def test_what_was_removed_meanwhile_is_not_brought_back(
    api: TestClient, postgres_url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = f"{PATH}/{kind}s/{api.post(f'{PATH}/{kind}s', json=MADE[kind]).json()['id']}"

    def remove(row_id: str) -> None:
        with connect(postgres_url) as conn:
            assert getattr(records, f"remove_{kind}")(conn, row_id)

    after_it_was_looked_up(monkeypatch, kind, remove)
    assert "does not exist" in problem(api.patch(path, json={"enabled": False}), 404)
    assert api.get(f"{PATH}/{kind}s").json()[f"{kind}s"] == []
    newest = api.get("/api/v1/audit").json()["entries"][0]
    assert (newest["action"], newest["outcome"]) == (f"alerts.{kind}.change", "refused")


@pytest.mark.parametrize("kind", MADE)
def test_two_changes_at_once_both_stay(api: TestClient, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = f"{PATH}/{kind}s/{api.post(f'{PATH}/{kind}s', json=MADE[kind]).json()['id']}"

    def switch_off(_: str) -> None:
        api.patch(path, json={"enabled": False})

    after_it_was_looked_up(monkeypatch, kind, switch_off)
    assert api.patch(path, json={"name": "another"}).status_code == 200
    shown = api.get(path).json()
    assert (shown["name"], shown["enabled"]) == ("another", False)
