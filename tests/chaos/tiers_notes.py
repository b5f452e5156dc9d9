"""What producers and workers write down, apart from the queue. A line is one write: a kill cannot tear it."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.model.job import NewJob
from tests.chaos.tiers_plan import make_call

SENT, ANSWERED, REFUSED, PUT_OFF = "asked", "answered", "refused", "put_off"


class Notes:
    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, ("\t".join(map(str, words)) + "\n").encode())


def read_notes(file: Path) -> Iterator[list[str]]:
    for line in file.read_text().splitlines() if file.exists() else ():
        yield line.split("\t")


@dataclass
class ProducerCalls:
    """Calls of a producer, with the results that it received."""

    producer: int
    times: Counter[int] = field(default_factory=Counter[int])  # call → how often it was made
    answers: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])  # how it ended, flags
    refusals: int = 0  # jobs, each time

    @classmethod
    def read(cls, folder: Path, producer: int) -> ProducerCalls:
        found = cls(producer)
        for what, call, *rest in read_notes(find_notes_file(folder, producer)):
            if what == SENT:
                found.times[int(call)] += 1
            else:
                flags = rest[0]
                if what in (ANSWERED, REFUSED):
                    found.answers[int(call)] = what, flags
                found.refusals += flags.count("0") if what in (REFUSED, PUT_OFF) else 0
        return found

    @property
    def open(self) -> list[int]:
        """Return the calls without a known result."""
        return sorted(self.times.keys() - self.answers.keys())

    def jobs(self) -> Iterator[tuple[NewJob, str, bool, bool]]:
        """Yield each job whose call has ended: (job, how, its own flag, called more than once)."""
        for call, (how, flags) in self.answers.items():
            for job, flag in zip(make_call(self.producer, call)[1], flags, strict=True):
                yield job, how, flag == "1", self.times[call] > 1


def find_notes_file(folder: Path, producer: int) -> Path:
    return folder / f"producer-{producer}.notes"


def ready_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.ready"


def to_flags(accepted: Iterable[bool]) -> str:
    return "".join("1" if one else "0" for one in accepted)


@dataclass(frozen=True, order=True)
class Execution:
    lease: int  # grows with every delivery of a shard
    attempt: int
    fine: bool  # the task did not raise
    worker: str


def read_executions(folder: Path, workers: Sequence[str]) -> dict[str, list[Execution]]:
    """Job id → its executions, in the order of their deliveries."""
    found: defaultdict[str, list[Execution]] = defaultdict(list)
    for worker in workers:
        for job_id, lease, attempt, fine in read_notes(folder / f"{worker}.notes"):
            found[job_id].append(Execution(int(lease), int(attempt), fine == "1", worker))
    return {job_id: sorted(executions) for job_id, executions in found.items()}
