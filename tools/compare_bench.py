"""Run one benchmark on the working tree and on an older commit in turns, and print the ratios of their results.

Both trees are copied to a temporary folder and run with the packages of this .venv, each with its own `src` and
`bench`. The order changes every round (A B, B A, …), so that a machine that slows down favours neither tree. Ends with
one line of JSON: per result the median ratio (working tree / commit) with its smallest and largest value, and `missed`,
the results whose median is below the bar for "as before".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.ratios import compute_ratios, count_missed, find_missed  # noqa: E402

DASHBOARD = Path("src/headrace/api/static")  # built, so not part of a commit
ROUNDS = 5


@dataclass(frozen=True)
class Tree:
    """One copy of the repository."""

    label: str
    folder: Path

    def env(self) -> dict[str, str]:
        """Return an environment in which `headrace` and `bench` are imported from this copy."""
        path = [str(self.folder / "src"), str(self.folder), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def check(self) -> None:
        """Raise unless `headrace` is imported from this copy."""
        command = [sys.executable, "-c", "import headrace; print(headrace.__file__)"]
        found = subprocess.run(command, env=self.env(), cwd=self.folder, capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_relative_to(self.folder):
            raise SystemExit(f"compare: {self.label} would measure {found.stdout.strip()}, not {self.folder}")

    def run(self, name: str, args: Sequence[str]) -> Mapping[str, Any]:
        """Run the benchmark once and return its line of JSON."""
        program = self.folder / "bench" / f"{name}.py"
        command = [sys.executable, str(program), "--json", *args]
        done = subprocess.run(command, env=self.env(), cwd=self.folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"compare: {name} of {self.label} ended with exit code {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1])


def parse_args(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the arguments into this program's own and those passed on to the benchmark."""
    parser = argparse.ArgumentParser(prog="./hr bench", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", help="a program of bench/")
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"runs per tree (default {ROUNDS})")
    options, rest = parser.parse_known_args(args)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    options.name = options.name.replace("-", "_")
    return options, [arg for arg in rest if arg != "--json"]


def copy_working_tree(folder: Path) -> Tree:
    """Copy every file that git tracks or would track, as it is on disk."""
    listed = run_git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # a tracked file may be deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return Tree("the working tree", add_dashboard(folder))


def extract_commit(commit: str, folder: Path) -> Tree:
    folder.mkdir(parents=True)
    archive = run_git("archive", "--format=tar", commit)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return Tree(commit, add_dashboard(folder))


def add_dashboard(folder: Path) -> Path:
    if (ROOT / DASHBOARD).is_dir():
        shutil.copytree(ROOT / DASHBOARD, folder / DASHBOARD, dirs_exist_ok=True)
    return folder


def run_git(*args: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"compare: git {' '.join(args)}: {done.stderr.decode().strip()}")
    return done.stdout


def main() -> None:
    options, rest = parse_args(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="headrace-compare-") as temporary:
        current = copy_working_tree(Path(temporary).resolve() / "current")
        older = extract_commit(options.against, Path(temporary).resolve() / "older")
        for tree in (current, older):
            if not (tree.folder / "bench" / f"{options.name}.py").is_file():
                raise SystemExit(f"compare: there is no benchmark '{options.name}' in {tree.label}")
            tree.check()
        results: dict[str, list[Mapping[str, Any]]] = {current.label: [], older.label: []}
        for number in range(options.rounds):
            for tree in (current, older) if number % 2 == 0 else (older, current):
                print(
                    f"[{datetime.now(UTC):%H:%M:%S}] round {number + 1} of {options.rounds}: {tree.label}",
                    file=sys.stderr,
                    flush=True,
                )
                results[tree.label].append(tree.run(options.name, rest))
    ratios = compute_ratios(results[current.label], results[older.label])
    report = {
        "bench": options.name,
        "against": options.against,
        "rounds": options.rounds,
        "ratios": {key: ratio.as_json() for key, ratio in ratios.items()},
        "missed": find_missed(options.name, ratios),
        "missed_own_bars": {
            "current": count_missed(results[current.label]),
            "older": count_missed(results[older.label]),
        },
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
