"""When a failed job is retried."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Bury, Headrace, Retry, RetryLater, Snooze
from headrace.queue.validate import MAX_ATTEMPTS
from headrace.testing import run_job

durations = st.floats(0, 1e6)


@given(
    base=durations,
    longest=durations,
    factor=st.floats(1, 1e4),
    jitter=st.booleans(),
    attempt=st.integers(1, MAX_ATTEMPTS),
)
def test_a_delay_is_within_its_bounds(base: float, longest: float, factor: float, jitter: bool, attempt: int) -> None:
    policy = Retry(MAX_ATTEMPTS, base, factor, longest, jitter)
    delay_s = policy.choose_delay_s(ValueError(), attempt)
    assert delay_s is not None
    assert 0 <= delay_s <= longest
    if attempt == 1:
        assert delay_s <= base
    if not jitter:
        following = policy.choose_delay_s(ValueError(), attempt + 1)
        assert following is not None
        assert following >= delay_s


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"attempts": MAX_ATTEMPTS + 1}, {"base": -1}, {"longest": -1}, {"factor": 0.5}]
)
def test_a_policy_out_of_range_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="Retry"):
        Retry(**options)  # pyright: ignore[reportArgumentType]


def test_errors_decide() -> None:
    policy = Retry(never=(KeyError,), only=(LookupError,))
    assert policy.choose_delay_s(KeyError(), 1) is None
    assert policy.choose_delay_s(ValueError(), 1) is None
    assert policy.choose_delay_s(IndexError(), 1) is not None


def test_a_function_decides() -> None:
    policy = Retry(delay=lambda error, attempt: None if attempt > 2 else attempt * 10.0)
    assert [policy.choose_delay_s(ValueError(), attempt) for attempt in (1, 2, 3)] == [10, 20, None]


def test_a_function_that_fails_is_replaced_by_the_default() -> None:
    app = Headrace(env="acme/shop/prod")

    def choose(error: Exception, attempt: int) -> float:
        raise RuntimeError("bug")

    @app.task(retry=Retry(delay=choose))
    def send() -> None:
        raise ValueError

    outcome = asyncio.run(run_job(send.job()))
    assert outcome.state == "retry"
    assert outcome.delay is not None
    assert 0 <= outcome.delay <= 1


def test_the_policy_is_that_of_the_task_then_of_the_app() -> None:
    app = Headrace(env="acme/shop/prod", retry=Retry(attempts=7))

    @app.task
    def common() -> None: ...

    @app.task(retry=Retry(attempts=2))
    def own() -> None: ...

    with app.testing() as jobs:
        common.enqueue()
        own.enqueue()
        own.using(max_attempts=9).enqueue()
        assert [job.max_attempts for job in jobs.all()] == [7, 2, 9]


def test_outcomes_of_one_attempt() -> None:
    app = Headrace(env="acme/shop/prod", retry=Retry(jitter=False, base=3))

    @app.task
    def work(kind: str) -> str:
        match kind:
            case "bury":
                raise Bury("no")
            case "later":
                raise RetryLater(90)
            case "snooze":
                raise Snooze(60)
            case "fail":
                raise ValueError("broken")
            case _:
                return kind

    async def main() -> None:
        done = await run_job(work.job("x"))
        assert (done.state, done.value, done.error, done.delay) == ("done", "x", None, None)
        found = {kind: await run_job(work.job(kind), attempt=2) for kind in ("bury", "later", "snooze", "fail")}
        states = {kind: (outcome.state, outcome.delay) for kind, outcome in found.items()}
        assert states == {
            "bury": ("dead", None),
            "later": ("retry", 90),
            "snooze": ("snoozed", 60),
            "fail": ("retry", 6),
        }
        assert (await run_job(work.job("fail"), attempt=5)).state == "dead"
        assert (await run_job(work.job("fail"), attempt=5, max_attempts=6)).state == "retry"
        assert (await run_job(work.job("snooze"), attempt=5)).state == "snoozed"

    asyncio.run(main())


def test_a_function_may_return_a_timedelta() -> None:
    assert Retry(delay=lambda _error, attempt: timedelta(minutes=attempt)).choose_delay_s(ValueError(), 2) == 120
