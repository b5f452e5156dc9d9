"""Which functions can be tasks, and how their parameters are bound."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import headrace
from headrace import Depends, Headrace, LeasedJob, Renamed
from headrace.errors import ArgumentsInvalid, DependencyMissing, TaskInvalid
from headrace.testing import run_job

if TYPE_CHECKING:
    from decimal import Decimal
    from uuid import UUID


def make_app() -> Headrace:
    return Headrace(env="acme/shop/prod")


def provide() -> str:
    return "value"


def provide_order() -> UUID:
    raise NotImplementedError


@pytest.mark.parametrize("source", ["def send(*to): ...", "def send(to, /): ..."])
def test_a_parameter_without_a_name_is_refused(source: str) -> None:
    scope: dict[str, Any] = {}
    exec(source, scope)
    with pytest.raises(TaskInvalid, match="without a name"):
        make_app().task(scope["send"])


def test_a_generator_is_refused() -> None:
    def generate() -> Generator[int]:
        yield 1

    async def generate_async() -> AsyncGenerator[int]:
        yield 1

    for function in (generate, generate_async):
        with pytest.raises(TaskInvalid, match="is a generator"):
            make_app().task(function)


def test_a_coroutine_that_a_decorator_hides_is_an_error() -> None:
    app = make_app()

    async def send(to: str) -> None: ...

    @app.task
    @functools.wraps(send)
    def wrapper(to: str) -> Any:
        return send(to)

    outcome = asyncio.run(run_job(wrapper.job("ann")))
    assert isinstance(outcome.error, TypeError)
    assert "async def" in str(outcome.error)


def test_a_forward_reference_is_resolved_on_first_use() -> None:
    app = make_app()

    @app.task
    def send(item: LaterItem) -> None: ...

    assert send.job(LaterItem()).body == b'{"item":{"sku":"tea"}}'


def test_an_annotation_that_only_type_checkers_know_is_refused_with_its_parameter() -> None:
    app = make_app()

    @app.task
    def send(to: str, order: UUID) -> None: ...

    with pytest.raises(TaskInvalid, match=r"annotation of 'order' names 'UUID'"):
        app.check()
    with pytest.raises(TaskInvalid, match="'order'"):
        send.enqueue("ann", "x")  # pyright: ignore[reportArgumentType]


def test_annotations_that_no_job_needs_may_be_known_to_type_checkers_only() -> None:
    app = make_app()

    @app.task
    def send(to: str, order: UUID = Depends(provide_order)) -> Decimal | None: ...  # noqa: B008

    app.check()
    assert send.job("ann").arguments == {"to": "ann"}


def test_further_arguments_are_checked_by_their_annotation() -> None:
    app = make_app()

    @app.task
    def send(to: str, **counts: int) -> None: ...

    assert send.job("ann", a=1).arguments == {"to": "ann", "a": 1}
    with pytest.raises(ArgumentsInvalid, match=r"\$\.a"):
        send.job("ann", a="x")  # pyright: ignore[reportArgumentType]


def test_an_argument_is_found_under_its_former_name() -> None:
    app = make_app()

    @app.task
    def send(to: Annotated[str, Renamed("email")]) -> None: ...

    codec = send.prepare_codec()
    assert codec.decode(b'{"email":"ann"}') == codec.decode(b'{"to":"ann"}') == {"to": "ann"}


@pytest.mark.parametrize("kind", ["imported", "attribute"])
def test_a_function_that_takes_the_job_as_it_is_has_no_arguments(kind: str) -> None:
    app = make_app()
    if kind == "imported":

        @app.task
        def raw(job: LeasedJob) -> None: ...
    else:

        @app.task
        def raw(job: headrace.LeasedJob) -> None: ...

    assert raw.signature.is_raw
    app.check()
    with pytest.raises(ArgumentsInvalid, match="takes a LeasedJob"):
        raw.enqueue(None)  # pyright: ignore[reportArgumentType]


def test_options_among_the_arguments_are_explained() -> None:
    app = make_app()

    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(ArgumentsInvalid, match=r"task\.using\(delay=\.\.\.\)\.enqueue"):
        send.job("ann", delay=5)  # pyright: ignore[reportCallIssue]


def test_a_single_parameter_named_job_takes_the_job_as_it_is() -> None:
    app = make_app()

    @app.task
    def answer(job): ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]

    assert answer.signature.is_raw


def test_wrong_arguments_are_refused() -> None:
    app = make_app()

    @app.task
    def send(to: str, count: int = 1) -> None: ...

    for args, kwargs in (((), {}), (("ann", 1, 2), {}), (("ann",), {"size": 1}), ((3,), {}), (("ann", "x"), {})):
        with pytest.raises(ArgumentsInvalid, match=r"Nothing was written\."):
            send.job(*args, **kwargs)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_dependency_cannot_be_enqueued() -> None:
    app = make_app()

    @app.task
    def send(to: str, db: str = Depends(provide), count: int = 1) -> None: ...

    with pytest.raises(ArgumentsInvalid, match="'db' is a dependency"):
        send.job("ann", db="other")
    with pytest.raises(ArgumentsInvalid, match="'db' is a dependency"):
        send.job("ann", "2")  # the second parameter, not the next argument that is stored
    with pytest.raises(ArgumentsInvalid, match="'db' is a dependency"):
        send.job("ann", Depends(provide))
    assert send.job("ann", count=2).arguments == {"to": "ann", "count": 2}


def test_a_direct_call_must_pass_the_dependencies() -> None:
    app = make_app()

    @app.task
    def send(to: str, db: str = Depends(provide)) -> str:
        return to + db

    @app.task
    async def send_async(to: str, *, db: str = Depends(provide)) -> str:
        return to + db

    assert send("a", "b") == send("a", db="b") == "ab"
    for call in (send, send_async):
        with pytest.raises(DependencyMissing, match="db=\\.\\.\\."):
            call("a")  # pyright: ignore[reportUnusedCoroutine]


class LaterItem:
    sku: str = "tea"

    def model_dump(self, mode: str) -> dict[str, str]:
        return {"sku": self.sku}

    @classmethod
    def model_validate(cls, value: Any) -> LaterItem:
        return cls()
