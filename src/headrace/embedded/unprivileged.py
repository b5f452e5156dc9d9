"""Runs commands as the user `nobody`, without capabilities, if Headrace itself runs as root."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import EmbeddedError

NOBODY_UID = 65534
_CAP_SETPCAP = 8


def is_root() -> bool:
    return os.geteuid() == 0


def build_setpriv_prefix() -> Sequence[str]:
    """Return the `setpriv` arguments that run a command as `nobody`; empty if this process is not root.

    The command has no capabilities, cannot gain any, and does not inherit the environment, which may contain passwords:
    processes of the same user can read each other's environment. Raises EmbeddedError if `setpriv` is missing.
    """
    if not is_root():
        return ()
    if shutil.which("setpriv") is None:
        raise EmbeddedError(
            "PostgreSQL cannot run as root, and `setpriv` (util-linux), which would run it as user `nobody`, is not "
            "installed. Run Headrace as a regular user, or set HEADRACE_POSTGRES_URL to a running server."
        )
    return (
        "setpriv",
        *(f"--reuid={NOBODY_UID}", f"--regid={NOBODY_UID}", "--clear-groups", "--no-new-privs", "--reset-env"),
        *("--inh-caps=-all", "--ambient-caps=-all"),
        *(("--bounding-set=-all",) if _can_drop_bounding_set() else ()),
    )


def chown_to_nobody(path: Path) -> None:
    """Make `nobody` the owner of a file, or of a folder and everything in it, if this process is root.

    PostgreSQL refuses a cluster of another user, for example one that root has copied or unpacked.
    """
    if not is_root():
        return
    paths = [path, *(Path(parent, name) for parent, folders, names in os.walk(path) for name in (*folders, *names))]
    for each in paths:
        if each.lstat().st_uid != NOBODY_UID:
            os.chown(each, NOBODY_UID, NOBODY_UID, follow_symlinks=False)


def check_directory_owner(folder: Path) -> None:
    """Raise EmbeddedError unless a directory belongs to the own user, and no other user can write to it."""
    found = folder.lstat()
    ours = (os.geteuid(), NOBODY_UID) if is_root() else (os.geteuid(),)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ours or found.st_mode & 0o022:
        raise EmbeddedError(
            f"{folder} belongs to another user of this machine. Nothing was started. Remove it, or set TMPDIR."
        )


def ensure_accessible(folder: Path, program: Path) -> Path:
    """Return a folder with programs that `nobody` can run: `folder`, or a copy if root runs it from a private place.

    The copy is made once, in the directory for temporary files, where other users can create folders too. An existing
    copy is used only if no other user could have written to it; a new one gets an unpredictable name.
    """
    if not is_root() or _is_world_executable(program):
        return folder
    temporary = Path(tempfile.gettempdir())
    digest = hashlib.sha256(f"{folder} {program.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    name = f"headrace-programs-{digest}"
    for found in sorted(temporary.glob(f"{name}*")):
        if _is_root_only(found) and (found / program.relative_to(folder)).is_file():
            return found
    fresh = Path(tempfile.mkdtemp(prefix="headrace-copy-"))
    shutil.copytree(folder, fresh, symlinks=True, dirs_exist_ok=True)
    for each in (*fresh.rglob("*"), fresh):  # the folder itself last: until then it stays private
        if not each.is_symlink():
            each.chmod(0o755 if each.is_dir() or each.stat().st_mode & 0o100 else 0o644)
    return fresh.rename(temporary / f"{name}-{secrets.token_hex(8)}")


def _is_root_only(folder: Path) -> bool:
    """Return True if the folder and everything in it belong to root, and no other user can write to any of it."""
    try:
        is_directory = stat.S_ISDIR(folder.lstat().st_mode)
        return is_directory and all(_is_owned_by_root(each) for each in itertools.chain((folder,), folder.rglob("*")))
    except FileNotFoundError:  # its owner removed it in the meantime
        return False


def _is_owned_by_root(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == 0 and (stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o022)


def _is_world_executable(program: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in program.parents) and program.stat().st_mode & 0o005 == 0o005


def _can_drop_bounding_set() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SETPCAP & 1)
    return False
