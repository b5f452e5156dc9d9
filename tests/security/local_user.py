"""Runs Python as another user of this machine, which owns nothing and is in no group."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

STRANGER = 65533

CAN_SWITCH = os.geteuid() == 0 and shutil.which("setpriv") is not None
"""Tests of CI run as root."""

needs_another_user = pytest.mark.skipif(
    not CAN_SWITCH and os.environ.get("CI") != "true", reason="needs root and setpriv to become another user"
)


def run_as_stranger(script: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code with an empty environment and `text` as its input."""
    become = (
        "setpriv",
        f"--reuid={STRANGER}",
        f"--regid={STRANGER}",
        "--clear-groups",
        "--no-new-privs",
        "--reset-env",
    )
    command: Sequence[Any] = [*become, sys.executable, "-c", script, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd="/")
