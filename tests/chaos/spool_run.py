"""The chaos run of the spool, in any size: `spool.py` is its command, `test_spool_short.py` a small run.

The judge reads the notes of all rounds in order and determines, at every lease, what must be in the spool and what may
be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.spool_child import PRODUCERS

ROOT = Path(__file__).parents[2]
APART = 1_000_000  # distance between the numbers of two rounds
ROUND_S = 600.0
MOST_NOTES = 600  # maximum notes after which a process is killed
POLL_S = 0.001


@dataclass
class Report:
    rounds: int = 0
    records: int = 0  # records whose durable put returned
    delivered: int = 0  # leases in total
    redelivered: int = 0  # of unfinished records, which is allowed
    replaced: int = 0
    torn: int = 0  # incomplete writes truncated at open
    lost: int = 0  # durable and never delivered
    reordered: int = 0  # leases that overtook an older record in the spool
    duplicates_of_acked: int = 0
    wrong_payloads: int = 0
    attempts_lost: int = 0  # leases with fewer attempts than were noted
    marks_wrong: int = 0  # marks that went backwards, or beyond what was put
    corrupt: int = 0
    unbalanced: int = 0  # snapshots in which the counters do not add up
    left: int = 0  # in the spool at the end
    seconds: float = 0.0
    details: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        broken = (self.lost, self.reordered, self.duplicates_of_acked, self.wrong_payloads, self.attempts_lost)
        return not any((*broken, self.marks_wrong, self.corrupt, self.unbalanced, self.left))


class Judge:
    def __init__(self) -> None:
        self.report = Report()
        self.certain: dict[str, tuple[int, int]] = {}  # certainly in the spool and unfinished: token → position
        self.places: dict[str, tuple[int, int]] = {}
        self.ended: set[str] = set()
        self.ending: set[str] = set()  # finished or not are both correct: the kill came before the end was noted
        self.delivered: set[str] = set()
        self.durable: set[str] = set()
        self.leases: Counter[str] = Counter()
        self.parts: dict[str, list[str]] = {}  # parts of replacements that may or may not have happened
        self.started = [-1] * PRODUCERS
        self.confirmed = [-1] * PRODUCERS
        self.flying: set[str] = set()
        self.new: set[str] = set()  # put in this round: a lease may be noted before the put is

    def round(self, lines: Iterable[str]) -> None:
        self.flying.clear()
        self.new.clear()
        for line in lines:
            verb, *words = line.split()
            getattr(self, verb)(*words)

    def broken(self, promise: str, text: str) -> None:
        setattr(self.report, promise, getattr(self.report, promise) + 1)
        if sum(each.startswith(promise) for each in self.report.details) < 5:
            self.report.details.append(f"{promise}: {text}")

    # One method per note

    def opened(self, corrupt: str, torn: str, balanced: str, *marks: str) -> None:
        self.report.corrupt += int(corrupt)
        self.report.torn += int(torn)
        self.report.unbalanced += balanced != "1"
        for producer, mark in enumerate(map(int, marks)):
            if not self.confirmed[producer] <= mark <= self.started[producer]:
                self.broken("marks_wrong", f"{self.confirmed[producer]} <= {mark} <= {self.started[producer]}")

    def putting(self, name: str) -> None:
        producer, number = map(int, name.split("-"))
        self.started[producer] = number
        self.new.add(name)

    def put(self, name: str, id: str) -> None:
        producer, number = map(int, name.split("-"))
        self.confirmed[producer] = number
        self.report.records += 1
        self.durable.add(name)
        self.places[name] = (int(id), int(id))
        if name not in self.ended and name not in self.ending:  # its lease may be noted before its put
            self.certain[name] = self.places[name]

    def taken(self, name: str, id: str) -> None:
        self.places[name] = (int(id), int(id))

    def leased(self, token: str, id: str, attempts: str) -> None:
        parent = token.rpartition(".")[0]
        place = self.places.setdefault(token, (self.places[parent][0] if parent else int(id), int(id)))
        if token in self.ended:
            self.broken("duplicates_of_acked", token)
        if int(attempts) < self.leases[token]:
            self.broken("attempts_lost", f"{token}: {attempts} of {self.leases[token]}")
        overtaken = [
            each
            for each, other in self.certain.items()
            if other < place and each not in self.flying and each not in self.new
        ]
        if overtaken:
            self.broken("reordered", f"{token} before {overtaken[:3]}")
        self.report.delivered += 1
        self.report.redelivered += self.leases[token] > 0
        self.leases[token] += 1
        self.delivered.add(token)
        self.flying.add(token)
        if parent and token not in self.certain:  # a replacement whose note was lost
            self.happened(parent)

    def wrong(self, token: str, id: str, attempts: str) -> None:
        self.broken("wrong_payloads", token)

    def nacked(self, token: str) -> None:
        self.flying.discard(token)

    def acking(self, token: str) -> None:
        self.certain.pop(token, None)
        self.ending.add(token)

    def acked(self, token: str) -> None:
        self.ended.add(token)
        self.flying.discard(token)

    def replacing(self, token: str, *parts: str) -> None:
        self.certain.pop(token, None)
        self.ending.add(token)
        self.parts[token] = list(parts)

    def replaced(self, token: str, *words: str) -> None:
        for part, id in zip(self.parts[token], words[len(self.parts[token]) :], strict=True):
            self.places[part] = (self.places[token][0], int(id))
        self.happened(token)

    def happened(self, token: str) -> None:
        """Record that a replacement happened: its parts are there and the record is not."""
        self.report.replaced += 1
        self.ended.add(token)
        self.flying.discard(token)
        parts = self.parts.pop(token, [])
        first = next((self.places[part][1] - number for number, part in enumerate(parts) if part in self.places), 0)
        for number, part in enumerate(parts):
            self.durable.add(part)
            self.places.setdefault(part, (self.places[token][0], first + number))
            if part not in self.ended:
                self.certain[part] = self.places[part]

    def drained(self, left: str) -> None:
        self.report.left = int(left)

    def finish(self) -> Report:
        missing = sorted(self.durable - self.delivered)
        self.report.lost = len(missing)
        self.report.details += [f"lost: {name}" for name in missing[:5]]
        return self.report


def run_chaos(rounds: int, folder: Path, *, seed: int = 0) -> Report:
    began = time.monotonic()
    random = Random(seed)
    judge = Judge()
    for number in range(rounds):
        notes = folder / f"notes-{number}"
        life = random.choice([0, random.randrange(MOST_NOTES)])
        run_child(folder / "spool", notes, random.randrange(2**32), number * APART, life, random.uniform(0.0, 0.01))
        judge.round(whole_lines(notes))
        notes.unlink()
        judge.report.rounds += 1
    notes = folder / "notes-drain"
    run_child(folder / "spool", notes, 0, 0, None, 0.0)
    judge.round(whole_lines(notes))
    report = judge.finish()
    report.seconds = round(time.monotonic() - began, 1)
    return report


def run_child(spool: Path, notes: Path, seed: int, first: int, life: int | None, moment_s: float) -> None:
    """Run a process; kill it a moment after it made `life` notes, or let it drain the spool."""
    drain = "drain" if life is None else "work"
    command = [sys.executable, "-m", "tests.chaos.spool_child", str(spool), str(notes), str(seed), str(first), drain]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env) as child:
        if life is None:
            child.wait(ROUND_S)
        elif child.stdout is not None and child.stdout.readline() == "ready\n":
            deadline = time.monotonic() + ROUND_S
            while notes.read_bytes().count(b"\n") <= life and time.monotonic() < deadline:
                time.sleep(POLL_S)
            time.sleep(moment_s)
            child.kill()
    if life is None and child.returncode != 0:
        raise RuntimeError(f"the draining process ended with {child.returncode}")
    if life is not None and child.returncode != -9:
        raise RuntimeError(f"the process ended by itself with {child.returncode}")


def whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos spool")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        report = run_chaos(given.rounds, Path(folder), seed=given.seed)
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)
