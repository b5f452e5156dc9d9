"""Webhook workers: the wanted number is sent signed, retried until accepted, and never outdated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.autoscale.webhook_workers import WebhookReceiver as To
from headrace.autoscale.webhook_workers import WebhookWorkers
from headrace.autoscale.worker_types import InvalidWorkerType, make_worker_type
from headrace.cli.main import headrace
from headrace.postgres.connect import Pool, open_pool, transaction
from tests.alerting import LOOPBACK, Received, Receiver, http_receiver
from tests.autoscaling import REF, Autoscaling, mail
from tests.conftest import wait_until
from tests.operating import open_world

SECRET = "0123456789abcdef"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def workers(receiver: Receiver) -> Iterator[WebhookWorkers]:
    made = WebhookWorkers("mail", To(receiver.url, SECRET, timeout_s=60.0, policy=LOOPBACK, repeat_s=3600.0))
    yield made
    made.stop()


def wait_for_messages(workers: WebhookWorkers, receiver: Receiver, n: int) -> list[Received]:
    def enough() -> bool:
        workers.reconcile()
        return len(receiver.received) >= n

    wait_until(enough, f"{n} messages")
    return receiver.received


def test_a_number_is_sent_once_signed_and_with_its_reason(workers: WebhookWorkers, receiver: Receiver) -> None:
    for _ in range(3):
        workers.scale(4, "Raised from 2 to 4: much to do")
    [got] = wait_for_messages(workers, receiver, 1)
    assert got.is_signed_with(SECRET)
    assert got.headers["x-headrace-delivery"] == got.document["id"]
    assert (got.document["type"], got.document["wanted"]) == ("mail", 4)
    assert got.document["sentence"] == "Raised from 2 to 4: much to do"
    workers.scale(5)
    assert [each.document["wanted"] for each in wait_for_messages(workers, receiver, 2)] == [4, 5]


def test_it_is_tried_again_under_the_same_id(workers: WebhookWorkers, receiver: Receiver) -> None:
    receiver.answer = lambda received: 200 if receiver.received else 503
    workers.scale(4)
    first, second = wait_for_messages(workers, receiver, 2)
    assert first.document == second.document


def test_a_newer_number_takes_the_place_of_one_that_was_not_taken(workers: WebhookWorkers, receiver: Receiver) -> None:
    """A hanging receiver blocks no caller, and then gets the newest number."""
    go_on = threading.Event()
    receiver.answer = lambda received: 200 if go_on.wait(60) else 503
    for wanted in (4, 5, 6):
        workers.scale(wanted)
    go_on.set()
    assert [each.document["wanted"] for each in wait_for_messages(workers, receiver, 2)] == [4, 6]


def test_the_number_is_repeated_periodically(receiver: Receiver) -> None:
    workers = WebhookWorkers("mail", To(receiver.url, SECRET, timeout_s=60.0, policy=LOOPBACK, repeat_s=0.01))
    workers.scale(4)
    first, second, *_ = wait_for_messages(workers, receiver, 2)
    assert first.document == second.document
    workers.stop()


def test_a_former_leader_sends_nothing(workers: WebhookWorkers, receiver: Receiver) -> None:
    """Zero would end all workers, although another autoscaler wants them."""
    workers.scale(4)
    wait_for_messages(workers, receiver, 1)
    workers.stand_down()
    workers.reconcile()
    workers.stop()
    assert [each.document["wanted"] for each in receiver.received] == [4]


def test_a_private_address_is_refused(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    workers = WebhookWorkers("mail", To(receiver.url, SECRET))
    workers.scale(4)

    def refused() -> bool:
        workers.reconcile()
        return "not a public address" in caplog.text

    wait_until(refused, "it is refused")
    workers.stop()
    assert receiver.received == []


def test_decisions_reach_the_receiver_and_its_address_is_not_kept(
    valkey_url: str, postgres_url: str, receiver: Receiver
) -> None:
    url = f"{receiver.url}T0KEN"
    workers = WebhookWorkers("mail", To(url, SECRET, timeout_s=60.0, policy=LOOPBACK, repeat_s=3600.0))
    pool: Pool
    with open_pool(postgres_url) as pool, open_world(valkey_url, postgres_url) as world:
        scaling = Autoscaling(pool, valkey_url, [mail(webhook=url)], {"mail": workers})
        scaling.lease.acquire()
        scaling.observe_and_decide()
        world.enqueue(REF, 2000)
        decision = scaling.observe_and_decide()
        assert decision.inputs["workers"] is None
        got = wait_for_messages(workers, receiver, 2)[-1]  # the first one was 0
        assert (got.document["wanted"], got.document["sentence"]) == (decision.wanted, decision.sentence)
        with transaction(pool) as conn:
            assert "T0KEN" not in str(conn.execute("SELECT * FROM autoscale_types").fetchall())
    workers.stop()


@pytest.mark.parametrize(
    ("webhook", "words"), [("ftp://x", "must begin with https"), (7, "must begin"), ("https://u:p@x/", "password")]
)
def test_an_impossible_address_is_refused(webhook: object, words: str) -> None:
    with pytest.raises(InvalidWorkerType, match=words):
        make_worker_type({"name": "mail", "queue": "emails", "webhook": webhook})


def test_nothing_to_sign_with_is_refused(tmp_path: Path, postgres_url: str, valkey_url: str) -> None:
    (tmp_path / "types.toml").write_text('[[worker]]\nname = "mail"\nqueue = "q"\nwebhook = "https://x.example/"\n')
    env = {
        "HEADRACE_AUTOSCALE_TYPES": str(tmp_path / "types.toml"),
        "HEADRACE_POSTGRES_URL": postgres_url,
        "HEADRACE_REDIS_URL": valkey_url,
    }
    result = CliRunner().invoke(headrace, ["autoscale", "run"], env=env)
    assert result.exit_code == 3
    assert "Set autoscale.webhook_secret" in result.stderr
