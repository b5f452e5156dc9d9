"""Dead jobs over HTTP: in Valkey, in PostgreSQL and on their way from one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.cold.dead_jobs import list_dead
from headrace.cold.mover import Mover, MoverOptions
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect
from headrace.queue import keys
from headrace.queue.scripts import DeadFilter
from headrace.queue.state import QueueState, read_state
from tests.conftest import ODD_NAMES, wait_until
from tests.operating import OPTIONS, SHARDS, World, open_world, path, problem, tenant

REF = ODD_NAMES
HERE = tenant(REF)


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


def state(world: World, ref: QueueRef = REF) -> QueueState:
    found = read_state(world.queue.redis, SHARDS, ref)
    assert found is not None
    return found


def listed(world: World, **params: Any) -> list[str]:
    """All pages."""
    found: list[str] = []
    while True:
        page = world.api.get(path(REF, "dead"), params={**HERE, **params}).json()
        found += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            return found
        params["cursor"] = page["next"]


def both_tiers(world: World, n: int = 4) -> set[str]:
    """As many dead jobs in PostgreSQL as in Valkey."""
    world.enqueue(REF, n, "old:%")
    world.bury(REF, "Traceback\nKeyError: 'old'")
    world.move(REF)
    world.enqueue(REF, n, "new-", task="other", flow="f", flow_type="T")
    world.bury(REF, "Traceback\n  line\nValueError: new")
    return {f"{kind}{number}" for kind in ("old:%", "new-") for number in range(n)}


@pytest.mark.parametrize("limit", [1, 3, 4, 500])
def test_pages_hold_the_dead_of_both_tiers_once(world: World, limit: int) -> None:
    expected = both_tiers(world)
    found = listed(world, limit=limit)
    assert len(found) == len(expected)
    assert set(found) == expected
    assert {job_id[:4] for job_id in found[:4]} == {"new-"}  # newest first


def test_a_page_goes_on_although_jobs_move_meanwhile(world: World) -> None:
    expected = both_tiers(world)
    first = world.api.get(path(REF, "dead"), params={**HERE, "limit": 2}).json()
    world.move(REF)
    rest = listed(world, limit=2, cursor=first["next"])
    assert {job["id"] for job in first["jobs"]} | set(rest) == expected
    assert len(rest) == len(expected) - 2


def test_a_job_that_is_in_both_tiers_is_listed_once(world: World) -> None:
    """PostgreSQL has it, and Valkey has not forgotten it yet."""
    world.enqueue(REF, 3)
    world.bury(REF)
    queue_id = world.tiers.store.ensure_queue_id(REF, OPTIONS.make_stubs().find_shard(REF))
    rows = world.tiers.run(world.tiers.stubs.list_dead(REF, 10))
    world.tiers.store.store_dead(queue_id, lambda: rows, None, "token")
    assert sorted(listed(world)) == ["job-0", "job-1", "job-2"]


def test_the_list_is_filtered_in_both_tiers(world: World) -> None:
    both_tiers(world)
    assert set(listed(world, task="other")) == {f"new-{number}" for number in range(4)}
    assert set(listed(world, error="KeyError: 'old'")) == {f"old:%{number}" for number in range(4)}
    assert listed(world, error="'; DROP TABLE dead_jobs --") == []
    assert listed(world, error="%") == []
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert listed(world, buried_from=later) == []
    assert len(listed(world, buried_to=later, buried_from="1969-01-01T00:00:00Z")) == 8
    assert listed(world, buried_to="1969-01-01T00:00:00Z") == []


@pytest.mark.parametrize("scan", [1, 2, 3])
def test_a_filter_looks_at_a_bounded_number_and_goes_on(world: World, scan: int) -> None:
    both_tiers(world)
    found: list[str] = []
    after, pages = None, 0
    while True:
        page = list_dead(world.tiers, REF, DeadFilter(error="KeyError"), after, 10, scan)
        found += [entry.job_id for entry in page.entries]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert sorted(found) == [f"old:%{number}" for number in range(4)]
    assert pages > 1


@pytest.mark.parametrize("moved", [False, True])
def test_one_dead_job_with_its_whole_error(world: World, moved: bool) -> None:
    world.enqueue(REF, 1, "x/", payload=b"p" * 5000, flow="f")
    error = "Traceback\n" + "line\n" * 100 + "ValueError: " + "n" * 600
    world.bury(REF, error)
    if moved:
        world.move(REF)
    found = world.api.get(path(REF, "dead", "x/0"), params=HERE).json()
    assert (found["error"], found["task"], found["flow"], found["bytes"]) == (error, "send", "f", 5000)
    assert found["payload"] == {"bytes": 5000, "encoding": "text", "preview": "p" * 4096, "cut": True}
    [short] = world.api.get(path(REF, "dead"), params=HERE).json()["jobs"]
    assert short["error"] == ("ValueError: " + "n" * 600)[:500]
    job = world.api.get("/api/v1/jobs/x%2F0", params=HERE).json()
    assert (job["state"], job["error"]) == ("dead", error)
    assert "No dead job" in problem(world.api.get(path(REF, "dead", "nope"), params=HERE), 404)
    other = QueueRef(REF.org, REF.project, REF.env, "other")
    world.enqueue(other, 1, "other-")
    assert "No dead job" in problem(world.api.get(path(other, "dead", "x/0"), params=HERE), 404)


def redrive(world: World, **body: Any) -> dict[str, Any]:
    answer = world.api.post(path(REF, "dead", "redrive"), params=HERE, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_redrive_by_ids_and_by_filter(world: World) -> None:
    both_tiers(world)
    assert redrive(world, ids=["new-0", "old:%0", "nope"]) == {"redriven": 2, "next": None}
    assert redrive(world, task="other") == {"redriven": 3, "next": None}
    assert redrive(world, error="no such error") == {"redriven": 0, "next": None}
    assert redrive(world) == {"redriven": 3, "next": None}
    assert (state(world).dead, state(world).depth) == (0, 8)
    world.move(REF)
    assert len(world.dequeue(REF)) == 8


def test_redrive_in_parts_ends_although_jobs_die_again(world: World) -> None:
    both_tiers(world)
    first = redrive(world, limit=3)
    assert first["redriven"] == 3
    world.move(REF)
    assert len(world.bury(REF, "again")) == 3
    second = redrive(world, limit=3, cursor=first["next"])
    third = redrive(world, limit=3, cursor=second["next"])
    assert (second["redriven"], third) == (3, {"redriven": 2, "next": None})
    assert len(listed(world, error="again")) == 3


def remove(world: World, **params: Any) -> dict[str, Any]:
    answer = world.api.delete(path(REF, "dead"), params={**HERE, **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_remove_by_ids_by_filter_and_all_in_parts(world: World) -> None:
    both_tiers(world)
    assert remove(world, id=["new-0", "old:%0", "nope"]) == {"removed": 2, "next": None}
    assert remove(world, task="other", error="ValueError") == {"removed": 3, "next": None}
    assert "Select dead jobs" in problem(world.api.delete(path(REF, "dead"), params=HERE), 400)
    part = remove(world, all=True, limit=2)
    assert part["removed"] == 2
    assert remove(world, all=True, limit=2, cursor=part["next"]) == {"removed": 1, "next": None}
    assert (state(world).dead, listed(world)) == (0, [])
    with connect(world.services.postgres_url) as conn:
        assert conn.execute("SELECT dead, removed FROM cold_queues").fetchall() == [(0, 8)]


def test_old_dead_jobs_are_removed_and_counted(world: World) -> None:
    both_tiers(world)
    world.move(REF)
    shard = OPTIONS.make_stubs().find_shard(REF)
    with connect(world.services.postgres_url) as conn:
        conn.execute("UPDATE dead_jobs SET buried_ms = buried_ms - 7200000 WHERE task = 'send'")
    for keep_s, removed in ((None, 0), (3600.0, 4), (3600.0, 0)):
        mover = Mover(world.tiers, MoverOptions(keep_dead_s=keep_s, lease_s=3600.0))
        wait_until(lambda: not world.queue.redis.exists(keys.mover(shard)), "nobody else leads")
        mover.renew_leadership()
        assert mover.remove_old_dead(shard) == removed
        mover.resign()
    assert set(listed(world)) == {f"new-{number}" for number in range(4)}
    assert state(world).dead == 4


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0}, {"limit": 501}, {"limit": "x"}, {"error": "\x00"}, {"error": "e" * 501}, {"task": "a\nb"},
        {"buried_from": "yesterday"}, {"buried_from": "2026-01-31T12:00:00"}, {"buried_to": "1e400"}, {"cursor": "!"},
    ],
)  # fmt: skip
def test_questions_that_make_no_sense(world: World, params: dict[str, Any]) -> None:
    world.enqueue(REF)
    problem(world.api.get(path(REF, "dead"), params={**HERE, **params}), 400)
    if "limit" not in params:
        problem(world.api.delete(path(REF, "dead"), params={**HERE, "all": True, **params}), 400)


@pytest.mark.parametrize(
    "body",
    [
        {"ids": []}, {"ids": ["a"] * 1001}, {"ids": ["\x00"]}, {"ids": "a"}, {"limit": 0}, {"limit": 5001},
        {"error": "\x00"}, {"buried_to": "now"}, {"cursor": "x"}, {"everything": True}, [], None,
    ],
)  # fmt: skip
def test_redrives_that_make_no_sense(world: World, body: Any) -> None:
    world.enqueue(REF)
    problem(world.api.post(path(REF, "dead", "redrive"), params=HERE, json=body), 400)


@pytest.mark.parametrize(("method", "more"), [("GET", ()), ("GET", ("x",)), ("POST", ("redrive",)), ("DELETE", ())])
def test_a_queue_that_is_not_there(world: World, method: str, more: tuple[str, ...]) -> None:
    body: dict[str, Any] = {"json": {}} if method == "POST" else {}
    answer = world.api.request(method, path(REF, "dead", *more), params={**HERE, "all": True}, **body)
    assert "no queue" in problem(answer, 404)
    with connect(world.services.postgres_url) as conn:
        assert conn.execute("SELECT count(*) FROM cold_queues").fetchall() == [(0,)]
