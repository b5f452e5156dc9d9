"""Programs that tests need and Headrace does not: a browser, promtool, command-line clients of the servers."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    """Skip the test on a laptop, fail it in CI: there, a missing program would hide failures."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def find_tool(package: str, *names: str) -> str:
    """Return the path of the first of these executables that is installed; `package` is Debian's package with one."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        absent(f"no {' or '.join(names)} found: `apt-get install -y {package}`")
    return found
