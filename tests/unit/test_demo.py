"""The load of the demo: reproducible and bounded."""

from __future__ import annotations

import json
import random
import traceback
from collections import Counter

import pytest

from headrace.cli import demo


def load(ticks: int) -> list[tuple[str, str, str, bytes]]:
    random_ = random.Random(demo.SEED)
    return [
        (queue.queue, job.task, job.flow, job.payload)
        for tick in range(ticks)
        for queue, jobs in demo.generate_jobs(tick, random_)
        for job in jobs
    ]


def test_the_load_is_the_same_every_time() -> None:
    assert load(200) == load(200)


def test_every_task_of_the_load_is_one_that_workers_have() -> None:
    assert {task for _, task, _, _ in load(100)} <= set(demo.tasks.names())
    assert demo.tasks.plugin


def test_every_queue_gets_jobs_and_the_bursts_fit_their_limit() -> None:
    jobs = Counter(queue for queue, _, _, _ in load(100))
    assert set(jobs) == {ref.queue for ref in (demo.STEADY, demo.SLOW, demo.STUCK, demo.BURSTY, demo.FAILING)}
    slow = [flow for flow in demo.FLOWS if flow.queue == demo.BURSTY]
    work_s = sum(flow.jobs * sum(flow.seconds) / 2 for flow in slow)
    assert work_s / demo.BURSTY_LIMIT < slow[0].every_ticks * demo.TICK_S


@pytest.mark.parametrize(("invoice", "says"), [(3, "has no tax id"), (4, "did not respond")])
def test_invoices_fail_with_tracebacks_worth_reading(invoice: int, says: str) -> None:
    with pytest.raises((ValueError, ConnectionError), match=says) as caught:
        demo._post_to_ledger(invoice, attempt=1)  # pyright: ignore[reportPrivateUsage]
    assert "_post_to_ledger" in "".join(traceback.format_exception(caught.value))


def test_the_arguments_of_the_load_fit_its_tasks() -> None:
    for _, task, _, payload in load(100):
        found = demo.tasks.find_task(task)
        assert found is not None
        assert found.prepare_codec().decode(payload) == json.loads(payload)
