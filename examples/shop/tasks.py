"""Tasks of the shop. Each job belongs to the customer whose request enqueued it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from headrace import Bury, Depends, Headrace, Retry, current_env

app = Headrace(queue="orders")  # without a default environment: every job must have a tenant


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    number: int
    email: str
    items: list[Item]


class Mailer:
    """Sends email. This one prints it."""

    def send(self, to: str, subject: str) -> None:
        print(f"{current_env().org}: {subject!r} to {to}", flush=True)


def open_mailer() -> Iterator[Mailer]:
    yield Mailer()  # a real one would connect before, and disconnect after


@app.task(retry=Retry(attempts=8), result_ttl=3600)
async def place_order(order: Order) -> Decimal:
    if not order.items:
        raise Bury(f"order {order.number} is empty")  # a retry cannot help
    total = sum((item.price for item in order.items), Decimal())
    receipt = send_email.using(id=f"receipt-{order.number}", queue="mail")  # sent once, also if this job is retried
    await receipt.aenqueue(order.email, f"Order {order.number}: {total}")
    return total


@app.task(timeout=30)
def send_email(to: str, subject: str, mailer: Mailer = Depends(open_mailer)) -> None:
    mailer.send(to, subject)
