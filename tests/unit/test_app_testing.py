"""`app.testing()` and `run_job`: what applications use in their tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from headrace import Bury, Headrace, JobState, Middleware, Retry, RetryLater, RunningJob, Snooze, current_job
from headrace.app.clients import ServerTransport
from headrace.errors import ArgumentsInvalid, InvalidJob, InvalidName, JobFailed, NoEnvironment, ResultUnknown
from headrace.queue.tasks import CannotRunYet
from headrace.testing import run_job

ENV = "acme/shop/prod"


@dataclass
class Item:
    sku: str
    price: Decimal


class Shop:
    """An app with a few tasks."""

    def __init__(self, **options: object) -> None:
        self.app = app = Headrace(env=ENV, queue="orders", retry=Retry(attempts=3, base=10, jitter=False), **options)  # pyright: ignore[reportArgumentType]
        self.runs: list[str] = []

        @app.task(result_ttl=3600)
        async def charge(order: int, items: list[Item], note: str = "none") -> Decimal:
            self.runs.append(f"charge {order} attempt {current_job().attempt}")
            await receipt.using(delay=5, queue="mail").aenqueue(order)
            return sum((item.price for item in items), Decimal())

        @app.task
        def receipt(order: int) -> None:
            self.runs.append(f"receipt {order}")

        @app.task(result_ttl=3600)
        def fail(kind: str = "error") -> None:
            self.runs.append(f"fail {current_job().attempt}")
            match kind:
                case "bury":
                    raise Bury("refused")
                case "later":
                    raise RetryLater(60)
                case "snooze":
                    raise Snooze(60)
                case "old":
                    raise CannotRunYet("version 2")
                case _:
                    raise ValueError("broken")

        self.charge, self.receipt, self.fail = charge, receipt, fail


ITEMS = [Item("tea", Decimal("4.50")), Item("milk", Decimal("1.20"))]


def test_jobs_are_recorded_and_run_on_request() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        handle = shop.charge.enqueue(7, ITEMS)
        assert (handle.accepted, handle.state(), shop.runs) == (True, JobState.READY, [])
        jobs.assert_enqueued(shop.charge, 7, items=ITEMS)
        jobs.assert_enqueued(shop.charge, 7, ITEMS, note="none")
        jobs.refute_enqueued(shop.receipt)
        assert jobs.drain_sync() == {"done": 2}
        assert shop.runs == ["charge 7 attempt 1", "receipt 7"]
        assert (handle.state(), handle.result()) == (JobState.DONE, Decimal("5.70"))
        job = jobs.assert_enqueued_like(
            shop.receipt, queue="mail", env=ENV, delay=timedelta(seconds=5), args={"order": 7}
        )
        assert (job.state, job.attempts, job.delay) == (JobState.DONE, 1, 5)


def test_an_assertion_that_fails_shows_what_was_enqueued() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        with pytest.raises(AssertionError, match=r"No job receipt\(order=1\) was enqueued\.\nNothing was enqueued\."):
            jobs.assert_enqueued(shop.receipt, 1)
        shop.receipt.using(delay=5).enqueue(2)
        with pytest.raises(AssertionError, match=r"receipt\(order=2\) in acme/shop/prod, queue orders, delay 5 s"):
            jobs.assert_enqueued(shop.receipt, 1)
        for options in ({"queue": "mail"}, {"env": "a/b/c"}, {"delay": 6}, {"args": {"order": 1}}):
            with pytest.raises(AssertionError, match=r"Enqueued were:\n  receipt"):
                jobs.assert_enqueued_like(shop.receipt, **options)  # pyright: ignore[reportArgumentType]
        with pytest.raises(AssertionError, match="Jobs of task 'receipt' were enqueued"):
            jobs.refute_enqueued(shop.receipt)
        for number in range(30):
            shop.receipt.enqueue(number)
        with pytest.raises(AssertionError, match="and 11 more"):
            jobs.assert_enqueued(shop.receipt, 99)


def test_an_assertion_with_impossible_arguments_is_an_error() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        with pytest.raises(ArgumentsInvalid):
            jobs.assert_enqueued(shop.receipt, "x")  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="assert_enqueued_like"):
            jobs.assert_enqueued(shop.receipt.using(queue="x"), 1)
        with pytest.raises(TypeError, match="no parameter 'oder'"):
            jobs.assert_enqueued_like(shop.receipt, args={"oder": 1})


def test_the_first_error_is_raised_as_it_is() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        shop.fail.enqueue()
        with pytest.raises(ValueError, match="broken") as caught:
            jobs.drain_sync()
        assert caught.traceback[-1].name == "fail"
        assert jobs.all()[0].state == JobState.SCHEDULED


@pytest.mark.parametrize(
    ("kind", "counts", "passed_s"),
    [
        ("error", {"retry": 2, "dead": 1}, 30),
        ("later", {"retry": 2, "dead": 1}, 120),
        ("bury", {"dead": 1}, 0),
        ("old", {"deferred": 120, "dead": 1}, 3600),
    ],
)
def test_failures_are_handled_like_by_a_worker(kind: str, counts: dict[str, int], passed_s: float) -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        started = jobs.now
        handle = shop.fail.enqueue(kind)
        assert jobs.drain_sync(raising=False) == counts
        assert (jobs.now - started).total_seconds() == passed_s
        assert handle.state() == JobState.DEAD
        info = handle.info()
        assert info is not None
        assert info.error is not None
        with pytest.raises(JobFailed):
            handle.result()


def test_attempts_are_kept() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        handle = shop.fail.enqueue()
        jobs.drain_sync(raising=False)
        assert [each.state for each in handle.attempts()] == ["failed", "failed", "dead"]
        jobs.advance(timedelta(hours=2))
        assert handle.attempts() == []


def test_a_job_that_snoozes_for_ever_is_named() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        shop.fail.using(id="endless").enqueue("snooze")
        with pytest.raises(AssertionError, match=r"More than 20 runs: .*fail\(kind='snooze'\).*endless.* 20 times"):
            jobs.drain_sync(most=20)
        assert set(shop.runs) == {"fail 1"}


def test_without_due_jobs_of_later_are_left() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        handle = shop.receipt.using(delay=60).enqueue(1)
        shop.receipt.using(at=datetime.now(UTC) + timedelta(days=1)).enqueue(2)
        shop.receipt.using(priority=-1).enqueue(3)
        shop.receipt.using(priority=1).enqueue(4)
        assert jobs.drain_sync(due=False) == {"done": 2}
        assert shop.runs == ["receipt 4", "receipt 3"]
        assert handle.state() == JobState.SCHEDULED
        jobs.advance(60)
        assert handle.state() == JobState.READY
        assert jobs.drain_sync(due=False) == {"done": 1}
        assert jobs.drain_sync() == {"done": 1}
        with pytest.raises(ValueError, match="forward"):
            jobs.advance(-1)


def test_jobs_expire() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        handle = shop.receipt.using(ttl=10, delay=20).enqueue(1)
        assert jobs.drain_sync() == {"expired": 1}
        assert (handle.state(), shop.runs) == (None, [])


def test_an_id_is_accepted_once_per_environment() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        receipt = shop.receipt.using(id="1")
        assert [receipt.enqueue(1).accepted, receipt.enqueue(2).accepted] == [True, False]
        assert receipt.using(env="globex/shop/prod").enqueue(3).accepted
        assert [job.arguments["order"] for job in jobs.all()] == [1, 3]
        jobs.drain_sync()
        assert not receipt.enqueue(4).accepted
        jobs.advance(shop.app.settings.queue.keep_done + 1)
        assert receipt.enqueue(4).accepted


def test_jobs_are_checked_like_by_servers() -> None:
    shop = Shop()

    @shop.app.task
    def store(text: str) -> None: ...

    with shop.app.testing() as jobs:
        for options in ({"priority": 101}, {"delay": -1}, {"ttl": 0}, {"max_attempts": 1001}, {"max_attempts": 0}):
            with pytest.raises(InvalidJob):
                shop.receipt.using(**options).enqueue(1)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidJob, match="max_payload"):
            store.enqueue("x" * (shop.app.settings.queue.max_payload + 1))
        with pytest.raises(InvalidName):
            shop.receipt.using(queue="\n").enqueue(1)
        with pytest.raises(ValueError, match="time zone"):
            shop.receipt.using(at=datetime(2026, 1, 1)).enqueue(1)
        assert jobs.all() == []


def test_waiting_for_a_result_that_no_worker_computes_is_refused() -> None:
    shop = Shop()
    with shop.app.testing():
        handle = shop.charge.enqueue(1, [])
        with pytest.raises(ResultUnknown, match=r"jobs\.drain\(\)"):
            handle.result()
        with pytest.raises(ResultUnknown, match="result_ttl"):
            shop.receipt.enqueue(1).result()


def test_jobs_can_be_cancelled() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        handle = shop.receipt.using(id="1").enqueue(1)
        assert handle.cancel() == JobState.READY
        assert (handle.cancel(), handle.state(), jobs.all()[0].state) == (None, None, "cancelled")
        assert jobs.drain_sync() == {}
        assert shop.receipt.using(id="1").enqueue(2).accepted


def test_a_running_job_can_be_cancelled() -> None:
    app = Headrace(env=ENV)

    @app.task
    async def on_loop() -> None:
        assert await app.handle(current_job().id).acancel() == JobState.RUNNING
        assert await app.handle(current_job().id).acancel(running=True) == JobState.RUNNING
        await asyncio.Event().wait()

    @app.task
    def in_thread() -> None:
        assert app.handle(current_job().id).cancel(running=True) == JobState.RUNNING
        current_job().check()

    with app.testing() as jobs:
        on_loop.enqueue()
        in_thread.enqueue()
        assert jobs.drain_sync() == {"cancelled": 2}


def test_other_threads_record_too_and_testing_ends() -> None:
    shop = Shop()
    with shop.app.testing() as jobs:
        thread = threading.Thread(target=lambda: shop.receipt.enqueue(1))
        thread.start()
        thread.join()
        assert len(jobs.all()) == 1
        with pytest.raises(RuntimeError, match="nested"), shop.app.testing():
            pass
        shop.receipt.enqueue(2)
    assert isinstance(shop.app.transport, ServerTransport)
    assert shop.app.uses_processes


def test_the_lifespan_runs_around_jobs() -> None:
    states: list[object] = []

    @asynccontextmanager
    async def lifespan(app: Headrace) -> AsyncGenerator[str]:
        states.append("start")
        yield "state"
        states.append("end")

    app = Headrace(env=ENV, lifespan=lifespan)

    @app.task
    def work() -> None:
        states.append(app.state)

    with app.testing() as jobs:
        work.enqueue()
        jobs.drain_sync()
        asyncio.run(run_job(work.job()))
    assert states == ["start", "state", "end"] * 2
    assert app.state is None


def test_drain_is_not_called_by_a_job() -> None:
    app = Headrace(env=ENV)
    with app.testing() as jobs:

        @app.task
        async def work() -> None:
            await jobs.drain()

        work.enqueue()
        with pytest.raises(RuntimeError, match="runs already"):
            jobs.drain_sync()


class TestInline:
    def test_a_job_runs_when_it_is_enqueued(self) -> None:
        shop = Shop()
        with shop.app.testing(inline=True) as jobs:
            handle = shop.charge.using(delay=3600).enqueue(7, ITEMS)
            assert (handle.state(), handle.result()) == (JobState.DONE, Decimal("5.70"))
            assert shop.runs == ["charge 7 attempt 1", "receipt 7"]
            assert [job.state for job in jobs.all()] == [JobState.DONE] * 2

    def test_on_an_event_loop_too(self) -> None:
        shop = Shop()

        async def main() -> None:
            await shop.charge.aenqueue(1, ITEMS)
            await shop.receipt.aenqueue(2)
            with pytest.warns(RuntimeWarning, match="aenqueue"):
                shop.charge.enqueue(3, ITEMS)
            with pytest.warns(RuntimeWarning, match="aenqueue"):
                shop.receipt.enqueue(4)

        with shop.app.testing(inline=True):
            asyncio.run(main())
        assert shop.runs == [
            *("charge 1 attempt 1", "receipt 1", "receipt 2", "charge 3 attempt 1", "receipt 3", "receipt 4")
        ]

    @pytest.mark.parametrize("kind", ["error", "bury", "later"])
    def test_errors_are_raised_at_the_caller(self, kind: str) -> None:
        shop = Shop()
        expected = {"error": ValueError, "bury": Bury, "later": RetryLater}[kind]
        with shop.app.testing(inline=True):
            with pytest.raises(expected) as caught:
                shop.fail.enqueue(kind)
            assert caught.traceback[-1].name == "fail"

            async def main() -> None:
                with pytest.raises(expected):
                    await shop.fail.aenqueue(kind)

            asyncio.run(main())

    def test_a_job_that_a_job_runs_has_its_own_arguments(self) -> None:
        class Passing(Middleware):
            async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
                return await call_next()

        app = Headrace(env=ENV, middleware=[Passing()])
        other = Headrace(env=ENV)
        seen: list[str] = []

        @app.task
        def outer(name: str) -> None:
            inner.enqueue("inner")
            seen.append(name)

        @other.task
        def inner(name: str) -> None:
            seen.append(name)

        with app.testing(inline=True), other.testing(inline=True):
            outer.enqueue("outer")
        assert seen == ["inner", "outer"]

    def test_a_function_that_is_not_async_runs_in_the_thread_of_its_caller(self) -> None:
        app = Headrace(env=ENV)
        seen: list[int] = []

        @app.task
        def outer() -> None:
            seen.append(threading.get_ident())
            inner.enqueue()
            assert current_job().task == "outer"

        @app.task
        def inner() -> None:
            assert current_job().task == "inner"
            current_job().run_async(asyncio.sleep(0))
            seen.append(threading.get_ident())

        with app.testing(inline=True):
            outer.enqueue()
        assert seen == [threading.get_ident()] * 2


def test_one_attempt_runs_without_servers() -> None:
    shop = Shop()

    async def main() -> None:
        outcome = await run_job(shop.charge.job(7, ITEMS), attempt=2)
        assert (outcome.state, outcome.value) == ("done", Decimal("5.70"))
        assert [job.describe() for job in outcome.enqueued] == [
            "receipt(order=7) in acme/shop/prod, queue mail, delay 5 s"
        ]

    asyncio.run(main())
    assert shop.runs == ["charge 7 attempt 2"]
    assert isinstance(shop.app.transport, ServerTransport)


def test_a_run_has_the_environment_and_headers_that_are_given() -> None:
    app = Headrace()

    @app.task
    def work() -> list[str]:
        return [current_job().env.org, *current_job().headers.values()]

    with pytest.raises(NoEnvironment):
        asyncio.run(run_job(work.job()))
    assert asyncio.run(run_job(work.job(), env="a/b/c", headers={"x": "1"})).value == ["a", "1"]


def test_a_run_is_cancelled_after_a_time() -> None:
    app = Headrace(env=ENV)

    @app.task
    async def on_loop() -> None:
        await asyncio.Event().wait()

    @app.task
    def in_thread() -> None:
        while True:
            current_job().check()

    @app.task
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return str(current_job().cancel_reason)
        return ""

    async def main() -> None:
        for task in (on_loop, in_thread):
            assert (await run_job(task.job(), cancel_after=0)).state == "cancelled"
        outcome = await run_job(stubborn.job(), cancel_after=timedelta(0))
        assert (outcome.state, outcome.value) == ("done", "requested")

    asyncio.run(main())
