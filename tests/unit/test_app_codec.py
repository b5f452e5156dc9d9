"""Arguments as JSON: what arrives, what is refused at the enqueue, and what happens to payloads of other versions."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from headrace import Bury, Headrace, Json, LeasedJob, QueueRef, Renamed, unique_id
from headrace.app.codec import Codec, Undecodable, UnknownArguments
from headrace.app.signature import TaskSignature
from headrace.codecs import Offload, Pydantic, Zlib
from headrace.errors import ArgumentsInvalid, MissingExtra, TaskInvalid
from headrace.model.envelope import Envelope
from headrace.queue.tasks import CannotRunYet


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Parcel:
    weight: float


class Address(TypedDict):
    city: str


class Point(NamedTuple):
    x: int
    y: int


class Person(pydantic.BaseModel):
    name: str
    born: date


ANN = Person(name="Ann", born=date(1990, 1, 2))
VALUES: list[tuple[Any, Any]] = [
    (int, 5),
    (float, 0.5),
    (str, "ä\u2028"),
    (bool, True),
    (bytes, b"\xff\x00"),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678, UTC)),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(days=1, seconds=90)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("4.50")),
    (Colour, Colour.RED),
    (Item, Item("tea", Decimal("4.50"))),
    (Address, {"city": "Rome"}),
    (Point, Point(1, 2)),
    (Person, ANN),
    (list[Person], [ANN, ANN]),
    (Person | None, ANN),
    (Person | None, None),
    (dict[str, Person], {"a": ANN}),
    (list[Item], [Item("tea", Decimal("4.50"))]),
    (set[int], {1, 2}),
    (tuple[int, ...], (1, 2)),
    (dict[UUID, int], {UUID(int=7): 1}),
    (int | str | None, "a"),
    (dict[str, Any], {"a": [1, None, {"b": 2.5}]}),
    (Any, [1, "a", None]),
]


def prepare(annotation: Any, codec: Codec | None = None, **more: Any) -> Any:
    """Return the codec of a task with one argument `value` and an optional one `count`."""

    def send(value: Any, count: int = 1) -> None: ...

    send.__annotations__ = {"value": annotation, "count": int, "return": None, **more}
    return (codec or Json()).prepare(TaskSignature(send, "send"))


@pytest.mark.parametrize("codec", [Json(), Pydantic(), Zlib(above=0), Zlib(Pydantic())], ids=lambda each: each.name)
@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=str)
def test_a_value_arrives_as_it_was(annotation: Any, value: Any, codec: Codec) -> None:
    app = Headrace(env="acme/shop/prod", codec=codec)
    seen: list[Any] = []

    def send(value: Any) -> None:
        seen.append(value)

    send.__annotations__ = {"value": annotation, "return": None}
    with app.testing() as jobs:
        app.task(send).enqueue(value)
        assert jobs.drain_sync() == {"done": 1}
    assert seen == [value]
    assert type(seen[0]) is type(value)


@pytest.mark.parametrize("codec", [Json(), Pydantic()], ids=["json", "pydantic"])
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "5"),
        (str, 5),
        (Item, Parcel(1.0)),
        (list[Person], [Item("tea", Decimal(1))]),
        (float, float("nan")),
        (float | None, float("nan")),
        (list[float | None], [1.0, float("inf")]),
        (Any, datetime(2026, 1, 1, tzinfo=UTC)),
        (Any, (1, 2)),
        (dict[str, Any], {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        (list, [Decimal(1)]),
        (Any, Colour),
        (str, "\ud800"),
    ],
    ids=str,
)
def test_a_value_that_would_not_arrive_as_it_is_is_refused(annotation: Any, value: Any, codec: Codec) -> None:
    with pytest.raises(ArgumentsInvalid, match=r"Nothing was written\."):
        prepare(annotation, codec).encode({"value": value})


def test_further_arguments_without_annotation_must_arrive_as_they_are() -> None:
    def send(**more: Any) -> None: ...

    codec = Json().prepare(TaskSignature(send, "send"))
    assert codec.decode(codec.encode({"a": [1]})) == {"a": [1]}
    with pytest.raises(ArgumentsInvalid, match="Annotate the parameter"):
        codec.encode({"a": date(2026, 1, 1)})


def test_defaults_are_not_stored() -> None:
    app = Headrace(env="acme/shop/prod")

    @app.task
    def send(to: str, count: int = 1) -> None: ...

    assert send.job("ann").body == b'{"to":"ann"}'
    assert send.job("ann", 1).body == b'{"to":"ann","count":1}'


@pytest.mark.parametrize("codec", [Json(), Pydantic()], ids=["json", "pydantic"])
def test_an_unsupported_type_is_refused_with_its_parameter(codec: Codec) -> None:
    class Odd:
        __slots__ = ()

    if codec.name == "json" and isinstance(codec, Json):
        with pytest.raises(TaskInvalid, match=r"'value' cannot be read from JSON.*Pydantic"):
            prepare(Item | Parcel, codec)
    else:
        with pytest.raises(TaskInvalid, match="'value' has a type that pydantic cannot handle"):
            prepare(Odd, codec)


def test_pydantic_supports_unions_of_dataclasses() -> None:
    codec = prepare(list[Item | Parcel], Pydantic())
    value = [Parcel(1.5), Item("tea", Decimal("4.5"))]
    body = codec.encode({"value": value})
    assert msgspec.json.decode(body) == {"value": [{"weight": 1.5}, {"sku": "tea", "price": "4.5"}]}
    assert codec.decode(body) == {"value": value}


@pytest.mark.parametrize("codec", [Json(), Pydantic()], ids=["json", "pydantic"])
class TestEvolution:
    """What happens to payloads that older or newer code has written."""

    @pytest.mark.parametrize("body", [b"", b"no", b"[1]", b'"x"', b"{", b'{"value":', b'{"value":"\xff"}', b"\xff"])
    def test_a_payload_that_is_no_json_object_is_undecodable(self, codec: Codec, body: bytes) -> None:
        with pytest.raises(Undecodable):
            prepare(str, codec).decode(body)

    def test_a_missing_argument_is_undecodable(self, codec: Codec) -> None:
        with pytest.raises(Undecodable, match="value"):
            prepare(str, codec).decode(b"{}")

    def test_a_mistyped_argument_is_undecodable_with_its_path(self, codec: Codec) -> None:
        with pytest.raises(Undecodable, match=r"\$\.value\[1\]\.price"):
            prepare(list[Item], codec).decode(b'{"value":[{"sku":"a","price":"1"},{"sku":"b","price":"x"}]}')

    def test_the_error_of_a_model_has_its_path_and_no_values(self, codec: Codec) -> None:
        secret = "-".join(["4111", "1111"])
        body = json.dumps({"value": {"name": "Ann", "born": secret}}).encode()
        with pytest.raises(Undecodable, match=r"born.*\$\.value|\$\.value\.born") as raised:
            prepare(Person, codec).decode(body)
        assert secret not in "".join(traceback.format_exception(raised.value))

    def test_an_unknown_argument_waits_for_newer_code(self, codec: Codec) -> None:
        with pytest.raises(UnknownArguments, match="dry_run"):
            prepare(str, codec).decode(b'{"value":"a","dry_run":true}')

    def test_an_unknown_field_of_a_dataclass_is_ignored(self, codec: Codec) -> None:
        body = b'{"value":{"sku":"a","price":"1","new":2}}'
        assert prepare(Item, codec).decode(body) == {"value": Item("a", Decimal(1))}

    def test_a_payload_with_and_without_an_optional_argument_is_decoded(self, codec: Codec) -> None:
        assert prepare(str, codec).decode(b'{"value":"a"}') == {"value": "a"}
        assert prepare(str, codec).decode(b'{"value":"a","count":2}') == {"value": "a", "count": 2}

    def test_a_former_name_is_read(self, codec: Codec) -> None:
        renamed = prepare(str, codec, count=Annotated[int, Renamed("number")])
        assert renamed.decode(b'{"value":"a","number":2}') == {"value": "a", "count": 2}


def run_payload(app: Headrace, task: str, payload: bytes, *, has_envelope: bool = False) -> object:
    """Run a job with this payload on an event loop, like a worker."""
    registered = app.get(task)
    assert registered is not None
    queue = QueueRef("acme", "shop", "prod", "default")
    job = LeasedJob(queue, "1", task, payload, 1, 5, "lease", 0, 0, "", "", has_envelope)
    handler: Callable[[LeasedJob], Any] = registered.handler
    return asyncio.run(handler(job))


def test_a_changed_default_applies_to_waiting_jobs() -> None:
    app, seen = Headrace(env="acme/shop/prod"), list[int]()

    @app.task
    async def send(count: int = 2) -> None:
        seen.append(count)

    run_payload(app, "send", b"{}")
    assert seen == [2]


def test_payloads_of_other_code_are_buried_or_wait() -> None:
    app = Headrace(env="acme/shop/prod")

    @app.task
    async def send(to: str) -> None: ...

    with pytest.raises(Bury, match="cannot be decoded"):
        run_payload(app, "send", b"{")
    with pytest.raises(Bury, match=r"`to`|'to'"):
        run_payload(app, "send", b"{}")
    with pytest.raises(Bury, match="envelope"):
        run_payload(app, "send", b"no envelope", has_envelope=True)
    with pytest.raises(CannotRunYet, match="dry_run"):
        run_payload(app, "send", b'{"to":"ann","dry_run":true}')
    unknown = Envelope(b"x", "zstd").pack()
    with pytest.raises(CannotRunYet, match="zstd"):
        run_payload(app, "send", unknown, has_envelope=True)


class Store(dict[str, bytes]):
    """A BlobStore in memory."""

    def put(self, key: str, data: bytes) -> None:
        self[key] = data


LARGE = "tea " * 2000


def test_large_arguments_are_compressed_and_small_ones_are_plain_json() -> None:
    app = Headrace(env="acme/shop/prod", codec=Zlib())

    @app.task
    def send(text: str) -> str:
        return text

    small, large = send.job("tea"), send.job(LARGE)
    assert (small.codec, small.body) == ("json", b'{"text":"tea"}')
    assert large.codec == "zlib"
    assert len(large.body) < 200
    with app.testing() as jobs:
        app.enqueue_many([small, large])
        jobs.assert_enqueued(send, LARGE)
        assert jobs.drain_sync() == {"done": 2}
        assert [job.outcomes[0].value for job in jobs.all()] == ["tea", LARGE]


@pytest.mark.parametrize("body", [b"no", b"", b"cut"])
def test_a_damaged_compressed_payload_is_buried(body: bytes) -> None:
    app = Headrace(env="acme/shop/prod", codec=Zlib(above=0))

    @app.task
    async def send(text: str) -> None: ...

    given = send.job(LARGE).body[:-4] if body == b"cut" else body
    with pytest.raises(Bury, match="cannot be decoded"):
        run_payload(app, "send", Envelope(given, "zlib").pack(), has_envelope=True)


def test_offloaded_arguments_are_kept_in_the_store() -> None:
    store = Store()
    app, seen = Headrace(env="acme/shop/prod", codec=Offload(Zlib(above=100), store, above=30)), list[str]()

    @app.task
    async def send(text: str) -> None:
        seen.append(text)

    texts = {"json": "tea", "offload": "x" * 40, "zlib+offload": "".join(map(str, range(200)))}
    with app.testing() as jobs:
        specs = [send.job(text) for text in texts.values()]
        assert [each.codec for each in specs] == [*texts]
        assert len(store) == 2
        send.enqueue(texts["offload"])
        app.enqueue_many(specs)
        asyncio.run(send.aenqueue(texts["offload"]))  # pyright: ignore[reportUnusedCallResult]
        assert len(store) == 2
        assert jobs.drain_sync() == {"done": 5}
        assert set(seen) == set(texts.values())


def test_a_job_whose_offloaded_arguments_are_missing_or_damaged_is_buried() -> None:
    store = Store()
    app = Headrace(env="acme/shop/prod", codec=Offload(None, store, above=0))

    @app.task
    def send(text: str) -> None: ...

    with app.testing() as jobs:
        send.enqueue("lost")
        send.enqueue("damaged")
        (lost, damaged) = store
        del store[lost]
        store[damaged] += b" "
        assert jobs.drain_sync(raising=False) == {"dead": 2}
        assert [type(job.error) for job in jobs.all()] == [Bury, Bury]
        assert "missing in the store" in str(jobs.all()[0].error)
        assert "damaged" in str(jobs.all()[1].error)


def test_a_store_that_fails_refuses_the_enqueue_or_fails_the_attempt() -> None:
    class BrokenStore(Store):
        def get(self, key: str, default: Any = None) -> Any:
            raise OSError("unavailable")

    class FullStore(Store):
        def put(self, key: str, data: bytes) -> None:
            raise OSError("full")

    app = Headrace(env="acme/shop/prod")

    def send(text: str) -> None: ...

    full = app.task("full", codec=Offload(None, FullStore(), above=0))(send)
    broken = app.task("broken", codec=Offload(None, BrokenStore(), above=0))(send)
    with app.testing() as jobs, pytest.raises(OSError, match="full"):
        full.enqueue("a")
    assert jobs.all() == []
    with app.testing() as jobs:
        broken.enqueue("a")
        assert jobs.drain_sync(due=False, raising=False) == {"retry": 1}


def test_plain_json_is_read_whatever_the_codec_is() -> None:
    seen: list[str] = []
    for codec in (Zlib(), Pydantic(), Offload(None, Store())):
        app = Headrace(env="acme/shop/prod", codec=codec)

        @app.task
        async def send(text: str) -> None:
            seen.append(text)

        run_payload(app, "send", b'{"text":"tea"}')
    assert seen == ["tea"] * 3


def test_pydantic_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydantic", None)
    with pytest.raises(MissingExtra, match=r"headrace\[pydantic\]"):
        Pydantic()


def test_the_codec_is_prepared_once_for_all_options() -> None:
    prepared: list[str] = []

    class Counting(Json):
        def prepare(self, signature: TaskSignature) -> Any:
            prepared.append(signature.name)
            return super().prepare(signature)

    app = Headrace(env="acme/shop/prod", codec=Counting())

    @app.task
    def send(to: str) -> None: ...

    for delay in range(3):
        send.using(delay=delay).job("ann")
    assert prepared == ["send"]


def test_ids_of_jobs_are_text_in_arguments_and_results() -> None:
    app = Headrace()

    @app.task
    def follow(job_id: str, anything: Any) -> str:
        return job_id

    job_id = follow.job("a", 1).id
    assert type(job_id) is not str
    codec = follow.prepare_codec()
    arguments = codec.decode(codec.encode({"job_id": job_id, "anything": [job_id]}))
    assert arguments == {"job_id": job_id, "anything": [job_id]}
    assert type(arguments["job_id"]) is str
    assert codec.decode_result(codec.encode_result(job_id)) == job_id


def test_a_long_value_is_not_repeated_in_an_error() -> None:
    with pytest.raises(ArgumentsInvalid) as raised:
        prepare(Any, Json()).encode({"value": ("x" * 10_000,)})
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("codec", [Json(), Pydantic()], ids=["json", "pydantic"])
def test_equal_arguments_share_a_unique_id(codec: Codec) -> None:
    app = Headrace(codec=codec)

    @app.task
    def work(prices: dict[str, int], names: set[str]) -> None:
        """Do nothing."""

    names = ["ann", "bob", "cat", "dan", "eve"]
    ids = {
        unique_id(work.job({"tea": 1, "milk": 2}, set(names))),
        unique_id(work.job({"milk": 2, "tea": 1}, {*names[::-1]})),
    }
    assert len(ids) == 1
    for per in (0, -1, 0.0001):
        with pytest.raises(ValueError, match="per"):
            unique_id(work.job({}, set()), per=per)
