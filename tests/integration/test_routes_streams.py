"""Watched streams over HTTP: what the watcher saw, how old that is, what is not known, and to whom nothing is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient

from headrace.api.access import AccessLevel, KeyScope
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import NewJob
from headrace.queue.scripts import Stubs
from headrace.streams import keys
from headrace.streams.group_status import MAX_CONSUMERS, list_reported_groups
from headrace.streams.scripts import GroupStubs
from headrace.streams.watcher import WatchedGroup, Watcher, make_watched_group
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from tests.conftest import READY_S
from tests.operating import OPTIONS, World, open_world, problem, tenant
from tests.streams import GROUP, KEYS, STREAM, WATCHED, publish

STUBS: Stubs = OPTIONS.make_stubs()
RECORD = keys.report(STUBS.find_shard(WATCHED.ref), WATCHED.ref)
HERE = tenant(WATCHED.ref)
LIST = "/api/v1/streams"
HARD_MAXLEN = 1000


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


@pytest.fixture
def group(valkey: Valkey) -> Valkey:
    valkey.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    return valkey


def add(client: Valkey, count: int) -> None:
    for _ in range(count):
        client.xadd(STREAM, {"json": '{"type": "note"}'})


def read(client: Valkey, count: int, by: str) -> None:
    client.xreadgroup(GROUP, by, {STREAM: ">"}, count=count)


def watch(client: Valkey, *groups: WatchedGroup, stuck_after_ms: int = 10**9) -> int:
    return Watcher(client, client, STUBS, groups or [WATCHED], stuck_after_ms, HARD_MAXLEN).run_once()


def one(stream: str = STREAM, group: str = GROUP) -> str:
    return f"{LIST}/{quote(stream, safe='')}/{quote(group, safe='')}"


def get_group(world: World) -> Any:
    """Return the only watched group; both routes must return the same document."""
    found = world.api.get(LIST).json()
    assert (len(found["streams"]), found["total"], found["next"]) == (1, 1, None)
    alone = world.api.get(one(), params=HERE).json()
    now = {"age_ms", "stale"}
    assert {name: value for name, value in alone.items() if name not in now} == {
        name: value for name, value in found["streams"][0].items() if name not in now
    }
    return alone


def test_a_group_that_others_read_is_shown_as_it_was_seen(group: Valkey, world: World) -> None:
    assert world.api.get(LIST).json()["streams"] == []
    add(group, 9)
    read(group, 3, "one")
    read(group, 2, "two")
    assert watch(group, stuck_after_ms=10**9) == 1
    found = get_group(world)
    names = ("org", "project", "env", "queue", "stream", "group")
    assert [found[name] for name in names] == ["org", "project", "streams", f"{STREAM}/{GROUP}", STREAM, GROUP]
    assert (found["undelivered"], found["pending"], found["load"]) == (4, 5, 9)
    assert (found["retrying"], found["in_backoff"], found["dead"]) == (0, 0, 0)
    assert [(each["name"], each["pending"], each["stuck"]) for each in found["consumers"]] == [
        ("one", 3, False),
        ("two", 2, False),
    ]
    assert (found["consumers_total"], found["stuck"], found["deliveries"]) == (2, 0, {"1": 5})
    assert found["oldest_pending_age_ms"] >= found["oldest_undelivered_age_ms"] >= 0
    assert found["longest_idle_ms"] >= 0
    assert (found["reason"], found["unknown_since"], found["stale"]) == (None, None, False)
    assert found["measured_at"] is not None
    assert found["counted"] is False  # failures are unknown


def test_reports_of_a_silent_watcher_are_stale_and_have_an_age(group: Valkey, world: World) -> None:
    add(group, 2)
    watch(group)
    seen_at = int(group.hget(RECORD, "at")) - 90_000  # pyright: ignore
    group.hset(RECORD, mapping={"at": seen_at, "looked": seen_at})
    found = get_group(world)
    assert found["stale"]
    assert found["age_ms"] >= 90_000
    assert found["undelivered"] == 2  # how it was
    group.hset(RECORD, "every", 60_000)
    assert not get_group(world)["stale"]  # it looks once a minute


def test_stuck_consumers_come_first_and_there_is_a_bound(group: Valkey, world: World) -> None:
    add(group, 2 * MAX_CONSUMERS + 3)
    for number in range(MAX_CONSUMERS + 1):
        read(group, 1 if number else 2, f"c{number}")
    group.xgroup_createconsumer(STREAM, GROUP, "aaa")
    watch(group, stuck_after_ms=0)
    found = get_group(world)
    assert len(found["consumers"]) == MAX_CONSUMERS
    assert found["consumers_total"] == MAX_CONSUMERS + 2
    assert found["stuck"] == MAX_CONSUMERS + 1
    assert found["consumers"][0]["name"] == "c0"  # of the stuck ones it holds most
    assert all(each["stuck"] for each in found["consumers"])


def test_the_length_of_the_stream_is_shown_with_its_limit(group: Valkey, world: World) -> None:
    add(group, 9)
    read(group, 5, "one")
    entries: Any = group.xrange(STREAM)
    group.xack(STREAM, GROUP, *(entry_id for entry_id, _ in entries[:4]))
    watch(group)
    found = get_group(world)
    assert (found["total_messages"], found["load"], found["hard_maxlen"]) == (9, 5, HARD_MAXLEN)


def test_a_report_of_an_earlier_release_has_no_length(group: Valkey, world: World) -> None:
    add(group, 2)
    watch(group)
    status = json.loads(group.hget(RECORD, "seen"))  # pyright: ignore
    del status["total_messages"], status["hard_maxlen"]
    group.hset(RECORD, "seen", json.dumps(status))
    found = get_group(world)
    assert (found["total_messages"], found["hard_maxlen"], found["undelivered"]) == (None, None, 2)


def test_retries_and_dead_letters_of_our_workers_are_shown(valkey: Valkey, world: World) -> None:
    valkey.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    publish(valkey, *(NewJob("note", str(number).encode()) for number in range(4)))
    ours = GroupStubs(KEYS, "headrace:me")
    held = run(valkey, ours.dequeue(3)).entries
    run(valkey, ours.nack([(held[0], 10**7)]))
    run(valkey, ours.bury([(held[1], "boom")]))
    watch(valkey)
    found = get_group(world)
    assert (found["undelivered"], found["pending"], found["load"]) == (1, 2, 3)
    assert (found["retrying"], found["in_backoff"], found["dead"]) == (1, 1, 1)
    assert [(each["name"], each["pending"]) for each in found["consumers"]] == [("headrace:me", 1)]
    assert found["counted"] is True


def test_an_unknown_depth_is_null_with_its_reason_and_since_when(
    group: Valkey, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.streams.watcher.COUNT_BOUND", 100)
    add(group, 400)
    entries: Any = group.xrange(STREAM)
    group.xgroup_setid(STREAM, GROUP, entries[200][0])
    group.xdel(STREAM, entries[300][0])
    read(group, 3, "one")
    watch(group)
    first = get_group(world)
    assert (first["undelivered"], first["pending"], first["load"]) == (None, 3, None)
    assert "does not know the lag" in first["reason"]
    assert first["unknown_since"] is not None
    assert first["consumers_total"] == 1
    watch(group)
    again = get_group(world)
    assert again["unknown_since"] == first["unknown_since"]
    monkeypatch.setattr("headrace.streams.watcher.COUNT_BOUND", 10_000)
    watch(group)
    known = get_group(world)
    assert (known["undelivered"], known["reason"], known["unknown_since"]) == (195, None, None)


def test_a_deleted_group_has_a_reason_and_no_numbers(group: Valkey, world: World) -> None:
    add(group, 2)
    watch(group)
    measured_at = get_group(world)["measured_at"]
    group.xgroup_destroy(STREAM, GROUP)
    assert watch(group) == 0
    gone = get_group(world)
    assert gone["measured_at"] == measured_at
    assert [gone[name] for name in ("undelivered", "pending", "load", "consumers", "dead")] == [None] * 5
    assert "no such group" in gone["reason"]
    assert not gone["stale"]  # it is looked at; there is nothing to see


def test_a_stream_that_never_was_is_shown_with_the_reason(valkey: Valkey, world: World) -> None:
    watch(valkey)
    found = get_group(world)
    assert (found["load"], found["measured_at"], found["age_ms"]) == (None, None, None)
    assert "stream does not exist" in found["reason"]


def test_no_server_address_is_shown(valkey: Valkey, world: World, own_valkey: EmbeddedValkey) -> None:
    with connect(own_valkey.url) as source:
        own_valkey.stop()
        Watcher(source, valkey, STUBS, [WATCHED]).run_once()
    found = get_group(world)
    assert found["reason"] == "The streams server is not responding."
    assert found["load"] is None


@pytest.fixture
def own_valkey(tmp_path: Any) -> Iterator[EmbeddedValkey]:
    """A server that a test may stop."""
    server = EmbeddedValkey(tmp_path / "valkey", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    yield server
    server.stop()


def test_groups_unmeasured_for_a_day_are_removed(group: Valkey, world: World) -> None:
    watch(group)
    other = make_watched_group("other", GROUP, *vars(WATCHED.ref.environment).values())
    every = keys.report_index(STUBS.find_shard(WATCHED.ref))
    group.zadd(every, {next(iter(group.zrange(every, 0, 0))): 1})  # pyright: ignore
    watch(group, other)
    assert list_reported_groups(group, STUBS.shards) == [other.ref]
    assert group.pttl(RECORD) > 0  # pyright: ignore


def test_names_of_foreign_consumers_may_be_any_bytes(group: Valkey, world: World) -> None:
    add(group, 1)
    group.xreadgroup(GROUP, b"\xff\xfe" + b"x" * 300, {STREAM: ">"})  # pyright: ignore
    assert watch(group) == 1
    assert len(get_group(world)["consumers"][0]["name"]) == 128


def test_pages_join_and_names_may_hold_slashes(valkey: Valkey, world: World) -> None:
    names = ["a/b", "c", "d:e", "f"]
    groups = [make_watched_group(name, GROUP, f"org{number % 2}", "p", "e") for number, name in enumerate(names)]
    watch(valkey, *groups)
    found: list[Any] = []
    params: dict[str, Any] = {"limit": 3}
    while True:
        page = world.api.get(LIST, params=params).json()
        found += page["streams"]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    assert [(each["org"], each["stream"]) for each in found] == [
        ("org0", "a/b"),
        ("org0", "d:e"),
        ("org1", "c"),
        ("org1", "f"),
    ]
    assert [each["stream"] for each in world.api.get(LIST, params={"name": "d:"}).json()["streams"]] == ["d:e"]
    assert [each["stream"] for each in world.api.get(LIST, params={"org": "org1"}).json()["streams"]] == ["c", "f"]
    alone = world.api.get(one("a/b"), params=tenant(groups[0].ref))
    assert alone.json()["stream"] == "a/b"
    assert "is not watched" in problem(world.api.get(one("a", "b/workers"), params=tenant(groups[0].ref)), 404)
    assert "cursor" in problem(world.api.get(LIST, params={"cursor": "nonsense"}), 400)
    problem(world.api.get(LIST, params={"limit": 101}), 400)


THEIRS = make_watched_group(STREAM, GROUP, "acme", "shop", "prod")
STRANGERS = {
    "another organisation": KeyScope("globex"),
    "another project": KeyScope("acme", "blog"),
    "another environment": KeyScope("acme", "shop", "test"),
    "another organisation, same names below": KeyScope("globex", "shop", "prod"),
}


def answers(api: TestClient, names: dict[str, str]) -> list[tuple[int, Any]]:
    """Return the answers of both routes about an environment, without the time and the requested names."""
    return [strip_names(api.get(path, params=names), names) for path in (LIST, one())]


def strip_names(answer: httpx.Response, names: dict[str, str]) -> tuple[int, Any]:
    text = answer.text
    for name in names.values():
        text = text.replace(name, "…")
    return answer.status_code, text.partition('"timestamp"')[0]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_get_the_same_response_for_watched_and_unwatched_groups(
    group: Valkey, world: World, stranger: str
) -> None:
    watch(group, THEIRS)
    for level in AccessLevel:
        api = world.with_key(STRANGERS[stranger], level)
        absent = {"org": "nobody", "project": "nothing", "env": "nowhere"}
        here, nowhere = answers(api, tenant(THEIRS.ref)), answers(api, absent)
        assert here == nowhere
        assert [status for status, _ in here] == [200, 404]
        assert api.get(LIST).json()["streams"] == []
        assert STREAM not in api.get(LIST).text


def test_those_who_reach_it_see_it_and_a_wider_key_must_say_which(group: Valkey, world: World) -> None:
    watch(group, THEIRS)
    ours = world.with_key(KeyScope("acme", "shop", "prod"), AccessLevel.READ)
    assert ours.get(LIST).json()["total"] == 1
    assert ours.get(one()).json()["queue"] == f"{STREAM}/{GROUP}"
    wider = world.with_key(KeyScope("acme"), AccessLevel.READ)
    assert wider.get(LIST).json()["total"] == 1
    assert "project" in problem(wider.get(one()), 400)


def test_without_a_key_nothing_is_shown(group: Valkey, world: World) -> None:
    watch(group)
    world.api.headers.pop("Authorization")
    problem(world.api.get(LIST), 401)
    problem(world.api.get(one(), params=HERE), 401)
