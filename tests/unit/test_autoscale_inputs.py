"""Inputs of a decision as `headrace autoscale explain` prints them."""

from __future__ import annotations

from headrace.autoscale.decide import ScalingState, decide
from headrace.autoscale.demand import LoadSource, Observation
from headrace.autoscale.worker_types import Scaling, WorkerType
from headrace.cli.autoscale_inputs import format_inputs

MAIL = WorkerType("mail", all_queues=True, scaling=Scaling(max=20))


def format_decision(*sources: LoadSource, **fields: object) -> list[str]:
    observation = Observation(sources, **fields)  # pyright: ignore[reportArgumentType]
    return format_inputs(decide(MAIL, observation, ScalingState(), 1_800_000_000_000).inputs)


def test_all_inputs_are_printed() -> None:
    emails = LoadSource("queue emails", 180, 20, 24.0, 1.25, cold=5, age_s=21.0, limit=25, env="a / b / c", due_soon=3)
    reports = LoadSource("queue reports", 238, 0, 0.0, None, paused=True, env="a / b / c")
    assert format_decision(emails, reports, env_slots={"a / b / c": 30}, workers=2) == [
        "needs 45.3 slots, 25 allowed by limits and pauses; running workers: 2",
        "queue reports in a / b / c: 238 waiting, 0 running, 0/s arriving, run time unknown, paused",
        "queue emails in a / b / c: 180 waiting (5 in PostgreSQL), 20 running, 24/s arriving, run time 1.25 s, "
        "oldest 21 s, 3 due soon, limit 25",
        "the limit of a / b / c leaves 30 slots",
    ]


def test_unknown_inputs_are_printed_as_unknown() -> None:
    lag = LoadSource("group g of stream s", None, 4, None, 0.5, scheduled=7, unknown="lag of group g")
    assert format_decision(lag)[1] == (
        "group g of stream s: unknown waiting, 4 running, unknown arriving, run time 0.5 s, 7 awaiting retry, "
        "unknown: lag of group g"
    )


def test_of_many_queues_the_first_are_printed_and_the_others_counted() -> None:
    lines = format_decision(*(LoadSource(f"queue q{number}", number, 0, 0.0, 1.0) for number in range(100)))
    assert (len(lines), lines[1].split(":")[0], lines[-1]) == (12, "queue q99", "and 90 more")


def test_inputs_of_other_releases_are_printed() -> None:
    assert format_inputs({}) == ["running workers: unknown"]
    assert format_inputs({"sources": [{"name": "queue q"}]})[1] == (
        "queue q: unknown waiting, unknown running, unknown arriving, run time unknown"
    )
