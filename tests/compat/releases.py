"""Older versions from the repository's history, and their processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.model.names import QueueRef
from tests.processes import ROOT
from tests.programs import absent

CLIENT = Path(__file__).with_name("remote_client.py")


@dataclass(frozen=True)
class Release:
    """The source of one version; its processes import `headrace` from there."""

    name: str
    source: Path

    def start(
        self, command: Sequence[str], folder: Path, name: str, env: Mapping[str, str], *, piped: bool = False
    ) -> subprocess.Popen[str]:
        """Start a Python process of this version. Its log is `name`.log in the folder."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        paths = os.pathsep.join((str(self.source), str(ROOT)))
        pipe = subprocess.PIPE if piped else None
        with (folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                env={**inherited, "PYTHONPATH": paths, **env},
                cwd=folder,
                stdin=pipe,
                stdout=pipe or log,
                stderr=log,
                text=True,
            )


CURRENT = Release("current", ROOT / "src")


def extract_release(commit: str, folder: Path) -> Release:
    """Extract a version. Skips the test where the history is missing, as in a shallow clone; fails it in CI."""
    made = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=False)
    if made.returncode:
        reason = f"the repository's history has no {commit}: {made.stderr.decode(errors='replace').strip()}"
        absent(reason)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return Release(commit, folder / "src")


class RemoteClient:
    """A client of one version, in a process of its own."""

    def __init__(self, release: Release, folder: Path, valkey_url: str, postgres_url: str) -> None:
        command = [str(CLIENT), valkey_url, postgres_url]
        self._process = release.start(command, folder, f"client-{release.name}", {}, piped=True)
        self._log = folder / f"client-{release.name}.log"
        assert Path(self._read()).is_relative_to(release.source)

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[dict[str, Any]]) -> list[bool]:
        return self.ask("enqueue_many", ref, jobs=jobs)

    def ask(self, do: str, ref: QueueRef, **fields: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "queue": list(vars(ref).values()), **fields}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text(errors="replace")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
