"""Both tiers, with crashes and pauses between any two steps of any process, against a model.

First every step of a mover and of a producer in turn, in a few stories; then whatever Hypothesis comes up with:
HEADRACE_MODEL_EXAMPLES=2000 looks longer than the suite has time for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import cast

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from psycopg.conninfo import make_conninfo

from headrace.cold import mover
from headrace.postgres.connect import connect, open_pool
from headrace.queue.scripts import WarmCaps
from tests.model.clock import HOUR_MS
from tests.model.stepping import Stop
from tests.model.test_queue_model import SETTINGS
from tests.model.tiers_machine import LOCK_MS, Act, JobSpec, TiersMachine

LONG = os.environ.get("HEADRACE_MODEL_EXAMPLES")
EXAMPLES = int(LONG or 15)
STRIDE = 1 if LONG else 3  # the suite tries every third step, each story and way to stop other ones
Make = Callable[[], TiersMachine]


@pytest.fixture
def make(valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(mover, "LOCK_VALID_MS", HOUR_MS)  # time passes only when the machine says so
    options = f"-c lock_timeout={LOCK_MS} -c idle_in_transaction_session_timeout=0"  # see `take_over`
    impatient = make_conninfo(postgres_url, options=options)
    with connect(postgres_url) as observer, ExitStack() as stack:
        pools = [stack.enter_context(open_pool(impatient)) for _ in range(3)]
        yield lambda: TiersMachine(valkey_url, pools, observer)


def acts(text: str) -> list[Act]:
    """`work, ask 3` → [("work", 0), ("ask", 3)]"""
    words = [act.rpartition(" ") for act in text.split(", ")]
    return [(what, int(number)) if number.isdigit() else (f"{what} {number}".strip(), 0) for what, _, number in words]


STORIES = {
    "a mover, while another one takes over": (
        "visit",
        "work",
        "take over, work, visit, work, ask 8",
        "ask 7, work, visit, work",
    ),
    "a mover, while jobs come and go": ("visit", "work", "work, ask 7, ask 8", "ask 6, work, cancel 8, visit, work"),
    "a mover that ends cold mode": ("visit", "work, visit, work", "ask 7, ask 8", "ask 6, work, visit, work"),
    "a mover that ends cold mode, too late": (
        "visit",
        "work, visit, work",
        "take over, ask for many",
        "ask 8, work, visit",
    ),
    "a producer, while cold mode ends": ("ask", "work", "visit, work, visit, work", "ask 7, ask 8, work, visit, work"),
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("crash", [True, False], ids=["killed", "held"])
def test_every_step(make: Make, story: str, crash: bool) -> None:
    first, before, then, last = STORIES[story]
    for after in count(1 + (list(STORIES).index(story) + 2 * crash) % STRIDE, STRIDE):
        machine = make()
        try:
            machine.begin(WarmCaps(items=3, shard_bytes=0), 500, JobSpec(1, 0, 0, 0, None, 1, ""))
            for act in acts(before):
                machine.act(act, Stop())
            stopped = machine.tell_story(first, Stop(after, crash), acts(then), Stop(syncs_late=not crash), acts(last))
        finally:
            machine.teardown()
        if not stopped:
            assert after > 5
            return


def test_no_job_is_lost_or_run_twice_whichever_process_dies_where(make: Make) -> None:
    chosen = settings(SETTINGS, max_examples=EXAMPLES, stateful_step_count=20)
    run_state_machine_as_test(cast("type[RuleBasedStateMachine]", make), settings=chosen)
