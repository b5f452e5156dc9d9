"""What tests of integrations share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

import pytest


@contextmanager
def import_process_app(url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Yield `tests.process_app`, with an app that uses this server: a child process finds the tasks of a module by
    their names."""
    monkeypatch.setenv("HEADRACE_REDIS_URL", url)
    monkeypatch.delitem(sys.modules, "tests.process_app", raising=False)
    module: Any = importlib.import_module("tests.process_app")
    with module.app:
        yield module
    forkserver._forkserver._stop()  # pyright: ignore
