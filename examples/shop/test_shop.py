"""Tests of the shop, without servers."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from fastapi.testclient import TestClient
from headrace import JobState, current_env
from headrace.testing import Recorder

from tasks import Item, Mailer, Order, app, open_mailer, place_order, send_email
from web import web

ACME, GLOBEX = {"X-Api-Key": "key-of-acme"}, {"X-Api-Key": "key-of-globex"}
ORDER = {"number": 7, "email": "ann@example.com", "items": [{"sku": "tea", "price": "4.50"}]}


class FakeMailer(Mailer):
    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []

    def send(self, to: str, subject: str) -> None:
        self.sent.append((current_env().org, to, subject))


@pytest.fixture
def mailer() -> FakeMailer:
    return FakeMailer()


@pytest.fixture
def jobs(mailer: FakeMailer) -> Iterator[Recorder]:
    with app.testing(overrides={open_mailer: lambda: mailer}) as jobs:
        yield jobs


@pytest.fixture
def client(jobs: Recorder) -> Iterator[TestClient]:
    with TestClient(web) as client:
        yield client


def test_an_order_is_charged_and_its_receipt_sent(client: TestClient, jobs: Recorder, mailer: FakeMailer) -> None:
    assert client.post("/orders", json=ORDER, headers=ACME).status_code == 202
    jobs.assert_enqueued(place_order, Order(7, "ann@example.com", [Item("tea", Decimal("4.50"))]))
    assert jobs.drain_sync() == {"done": 2}
    assert mailer.sent == [("acme", "ann@example.com", "Order 7: 4.50")]
    assert client.get("/orders/7?wait=1", headers=ACME).json() == {"state": "done", "total": "4.50"}


def test_customers_are_tenants_with_ids_of_their_own(client: TestClient, jobs: Recorder) -> None:
    for headers in (ACME, GLOBEX, ACME):
        client.post("/orders", json=ORDER, headers=headers)
    assert [job.env.org for job in jobs.all(place_order)] == ["acme", "globex"]  # the third is known
    assert client.get("/orders/7", headers=GLOBEX).json() == {"state": JobState.READY}


def test_a_request_without_a_key_is_refused(client: TestClient, jobs: Recorder) -> None:
    assert client.post("/orders", json=ORDER).status_code == 401
    jobs.refute_enqueued(place_order)


def test_an_empty_order_is_dead_without_a_retry(client: TestClient, jobs: Recorder) -> None:
    client.post("/orders", json=ORDER | {"items": []}, headers=ACME)
    assert jobs.drain_sync(raising=False) == {"dead": 1}
    jobs.refute_enqueued(send_email)
    assert client.get("/orders/7?wait=1", headers=ACME).json()["state"] == "dead"
