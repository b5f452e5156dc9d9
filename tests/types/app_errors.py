"""Mistakes that a strict type checker must find: each line with a comment `expect` has exactly these errors.

Checked by tests/unit/test_app_types.py; excluded from the checks of the repository.
"""

from __future__ import annotations

from headrace import Depends, Headrace, JobHandle, Shared
from headrace.codecs import Offload

app = Headrace(env="acme/shop/prod")


def connect() -> int:
    return 1


class WrongStore:
    def put(self, key: str, data: bytes) -> None: ...


@app.task
def send(to: str, count: int = 1) -> int:
    return len(to) * count


@app.task
async def charge(order: int) -> str:
    return str(order)


@app.task(timout=5)  # expect: reportCallIssue reportUntypedFunctionDecorator
def misspelt() -> None: ...


@app.task
def wrong_dependency(db: str = Depends(connect)) -> None: ...  # expect: reportArgumentType


@app.task
def wrong_shared(db: str = Shared(connect)) -> None: ...  # expect: reportArgumentType


async def use() -> None:
    send.enqueue(1)  # expect: reportArgumentType
    send.enqueue()  # expect: reportCallIssue
    send.enqueue("ann", size=1)  # expect: reportCallIssue
    send.enqueue("ann", 1, 2)  # expect: reportCallIssue
    send.job(1)  # expect: reportArgumentType
    send.using(dealy=5)  # expect: reportCallIssue
    send.using(delay="5")  # expect: reportArgumentType
    send.using(delay=5).enqueue(1)  # expect: reportArgumentType
    send.aenqueue("ann")  # expect: reportUnusedCoroutine
    charge(1)  # expect: reportUnusedCoroutine
    charge.aenqueue("x")  # expect: reportArgumentType reportUnusedCoroutine
    a: JobHandle[str] = send.enqueue("ann")  # expect: reportAssignmentType
    b: str = send.enqueue("ann").result()  # expect: reportAssignmentType
    c: int = await charge.enqueue(1).aresult()  # expect: reportAssignmentType
    app.enqueue_many([send])  # expect: reportArgumentType
    Offload(None, WrongStore())  # expect: reportArgumentType
    print(a, b, c)


async def test() -> None:
    with app.testing() as jobs:
        jobs.assert_enqueued(send, 1)  # expect: reportArgumentType
        jobs.assert_enqueued(send)  # expect: reportCallIssue
        jobs.assert_enqueued_like(send, que="x")  # expect: reportCallIssue
        jobs.drain()  # expect: reportUnusedCoroutine
