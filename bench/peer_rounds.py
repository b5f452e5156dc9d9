"""Measure the contenders of `./hr bench peers` in turns; a peer that fails does not end the run."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from bench.peer_contenders import OWN, Contender, Runtime
from bench.peer_environment import PeerRuntime, PeersUnavailable, ensure_node_peers, ensure_python_peers
from bench.peer_measure import ContenderBench, ContenderFailed, Size
from bench.peer_results import merge_rounds, round_figures
from bench.report import note
from bench.server import Bench

RUNTIMES: dict[Runtime, Callable[[], PeerRuntime]] = {
    "repository": lambda: PeerRuntime([sys.executable], {}, {"headrace": version("headrace")}),
    "peers": lambda: ensure_python_peers("peers"),
    "peers-redis6": lambda: ensure_python_peers("peers-redis6"),
    "peers-redis5": lambda: ensure_python_peers("peers-redis5"),
    "node": ensure_node_peers,
}


def prepare_runtimes(contenders: Sequence[Contender], absent: dict[str, str]) -> dict[Runtime, PeerRuntime]:
    """Return the environments that contenders need. Adds contenders whose environment cannot be made to `absent`."""
    runtimes: dict[Runtime, PeerRuntime] = {}
    for name, make in RUNTIMES.items():
        if all(each.runtime != name for each in contenders):
            continue
        try:
            runtimes[name] = make()
        except PeersUnavailable as error:
            absent.update({each.name: str(error) for each in contenders if each.runtime == name})
            note(f"absent: {error}")
    return runtimes


@dataclass(frozen=True)
class Measured:
    """The best figures of each contender, and the load of the machine after each of its rounds.

    Ratios between contenders that ran at very different loads mean little.
    """

    table: dict[str, dict[str, float]]
    loads: dict[str, list[float]]


def measure_all(
    bench: Bench,
    contenders: Sequence[Contender],
    runtimes: dict[Runtime, PeerRuntime],
    size: Size,
    absent: dict[str, str],
) -> Measured:
    """Measure the contenders in turns. A peer that fails is added to `absent` and not measured again."""
    loads: defaultdict[str, list[float]] = defaultdict(list)
    rounds: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in contenders}
    for number in range(size.rounds):
        for contender in contenders[:: -1 if number % 2 else 1]:
            if contender.name in absent:
                continue
            folder = bench.folder / f"{contender.name}-{number}"
            folder.mkdir()
            figures: dict[str, float] = {}
            try:
                ContenderBench(bench, contender, runtimes[contender.runtime], folder).measure(size, number, figures)
            except ContenderFailed as error:
                if contender.name in OWN:
                    raise
                absent[contender.name] = str(error)
                note(f"{contender.name}: {error}")
            rounds[contender.name].append(figures)
            loads[contender.name].append(round(os.getloadavg()[0], 1))
            note(f"round {number + 1} of {size.rounds}: {contender.name} {round_figures(figures)}")
    return Measured({name: merge_rounds(each) for name, each in rounds.items() if any(each)}, dict(loads))
