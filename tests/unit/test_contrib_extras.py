"""Integrations import their library only if they are imported, and say how to install it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from headrace.errors import MissingExtra

LIBRARIES = {"otel": "opentelemetry", "sentry": "sentry_sdk", "structlog": "structlog", "flask": "flask"}


@pytest.mark.parametrize(("extra", "library"), LIBRARIES.items())
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    extra: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"headrace.contrib.{extra}", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'headrace\[{extra}\]'"):
        importlib.import_module(f"headrace.contrib.{extra}")


@pytest.mark.parametrize("module", ["logs", "asgi", "wsgi"])
def test_other_integrations_need_no_library(module: str) -> None:
    libraries = ("sentry_sdk", "structlog", "flask", "starlette", "fastapi")  # redis-py imports opentelemetry itself
    code = (
        f"import sys, headrace.contrib.{module}\n"
        f"assert not [each for each in {libraries!r} if each in sys.modules], sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
