"""Names of tasks, included tasks, external tasks and aliases."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from headrace import Headrace, Retry, Tasks
from headrace.app.duration import to_seconds
from headrace.errors import TaskInvalid, TaskNotBound
from headrace.settings import load_settings
from headrace.worker.task_runner import TaskRunner

ENV = "acme/shop/prod"


def declare(tasks: Tasks, name: str = "send", **options: Any) -> None:
    def send() -> None: ...

    tasks.task(name, **options)(send)


def test_two_tasks_of_one_name_are_refused_with_both_places() -> None:
    app = Headrace(env=ENV)
    declare(app)
    with pytest.raises(ValueError, match=r"two tasks named 'send': .*test_app_registration.py:\d+ and .*:\d+"):
        declare(app)
    with pytest.raises(ValueError, match="two tasks named 'send'"):
        declare(app, "other", aliases=["send"])
    assert app.names() == ["send"]


@pytest.mark.parametrize("is_included_first", [False, True])
def test_a_name_of_included_tasks_is_taken(is_included_first: bool) -> None:
    app, tasks = Headrace(env=ENV), Tasks()
    if is_included_first:
        app.include(tasks)
        declare(tasks)
        with pytest.raises(ValueError, match="two tasks named 'send'"):
            declare(app)
    else:
        declare(app)
        declare(tasks)
        with pytest.raises(ValueError, match="two tasks named 'send'"):
            app.include(tasks)


def test_a_task_declared_after_the_include_needs_a_free_name() -> None:
    app, tasks = Headrace(env=ENV), Tasks()
    declare(app)
    app.include(tasks)
    with pytest.raises(ValueError, match="two tasks named 'send'"):
        declare(tasks)
    assert tasks.typed == {}


def test_included_tasks_have_a_prefix_and_belong_to_one_app() -> None:
    app, tasks = Headrace(env=ENV), Tasks(prefix="billing")

    @tasks.task
    def charge() -> None: ...

    with pytest.raises(TaskNotBound, match=r"app\.include"):
        charge.enqueue()
    app.include(tasks)
    app.include(tasks)
    with pytest.raises(ValueError, match="another app"):
        Headrace().include(tasks)
    with app.testing() as jobs:
        charge.enqueue()
        assert jobs.drain_sync() == {"done": 1}
        assert jobs.all()[0].task == "billing.charge"


def test_an_external_task_is_enqueued_but_not_run() -> None:
    app = Headrace(env=ENV)

    @app.task(external=True)
    def resize(path: str) -> int: ...

    assert app.names() == []
    with app.testing() as jobs:
        resize.enqueue("a.png")
        jobs.assert_enqueued(resize, "a.png")
        assert jobs.drain_sync() == {}
    with pytest.raises(TaskInvalid, match="external"):
        app.task(external=True, pool="process")(lambda: None)


def test_jobs_of_a_former_name_run() -> None:
    app = Headrace(env=ENV)
    declare(app, "new", aliases=["old"])
    assert app.names() == ["new", "old"]
    assert app.find_task("old") is app.find_task("new")


def test_unknown_options_and_names_are_refused() -> None:
    app = Headrace(env=ENV)
    with pytest.raises(TypeError, match="no option 'dealy'"):
        declare(app, dealy=5)
    with pytest.raises(ValueError, match="no pool 'greenlet'"):
        declare(app, pool="greenlet")
    with pytest.raises(TaskInvalid, match="task name"):
        declare(app, "x" * 200)

    @app.task
    def send() -> None: ...

    with pytest.raises(TypeError, match="no option 'dealy'"):
        send.using(dealy=5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="`delay` or `at`"):
        send.using(delay=5, at=None)  # pyright: ignore[reportArgumentType]


def test_a_local_function_cannot_run_in_a_child_process() -> None:
    app = Headrace(env=ENV)
    declare(app, pool="process")
    with pytest.raises(ValueError, match="child process"):
        TaskRunner(app, 1, 1, None)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": float("nan")},
        {"ttl": -1},
        {"result_ttl": 0},
        {"result_ttl": float("inf")},
        {"priority": 101},
        {"priority": True},
        {"retry": 5},
    ],
)
def test_options_with_which_no_job_could_run_are_refused(options: Any) -> None:
    app = Headrace()
    with pytest.raises(TaskInvalid, match=rf"Task 'work' .*: {next(iter(options))}="):
        app.task("work", **options)(print_nothing)
    assert not app.names()


def print_nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize("given", [classmethod(cast(Any, print_nothing)), 5, partial(print_nothing)])
def test_what_is_no_function_with_a_name_is_refused(given: Any) -> None:
    with pytest.raises(TaskInvalid):
        Headrace().task(given)


def test_aliases_are_a_list() -> None:
    with pytest.raises(TypeError, match="aliases"):
        Headrace().task("work", aliases="former")(print_nothing)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", [True, 1.5, "1", None])
@pytest.mark.parametrize("name", ["priority", "max_attempts"])
def test_options_of_jobs_that_need_integers_accept_nothing_else(name: str, value: Any) -> None:
    task = Headrace().task(print_nothing)
    with pytest.raises(TypeError, match=name):
        task.using(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("options", [{"attempts": True}, {"attempts": 2.5}, {"base": float("nan")}])
def test_a_retry_policy_has_numbers_that_make_sense(options: Any) -> None:
    with pytest.raises(ValueError, match="Retry"):
        Retry(**options)


@pytest.mark.parametrize("duration", ["30", True, None])
def test_a_duration_is_a_number_or_a_timedelta(duration: object) -> None:
    with pytest.raises(TypeError, match="is no duration"):
        to_seconds(duration)  # pyright: ignore[reportArgumentType]


def test_the_settings_of_a_command_replace_the_retry_policy_of_earlier_settings() -> None:
    app = Headrace(env="acme/shop/prod")
    assert app.retry.base == 1
    settings = load_settings({"queue.retry_base": "7s"}, {}, None).settings
    app.adopt_settings(settings)
    assert app.retry.base == 7
