"""Declaring tasks stays cheap: it imports no driver, framework or integration."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, make_environment, run

HEAVY = {
    "clickhouse_connect",
    "click",
    "django",
    "fastapi",
    "flask",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "pydantic",
    "pyspark",
    "redis",
    "rich",
    "sentry_sdk",
    "structlog",
}
PAGE = ROOT / "docs" / "reference" / "dependencies.md"
DECLARE = """
from headrace import Headrace

app = Headrace(env="acme/shop/prod")

@app.task
async def send(to: str) -> None: ...

send.job("ann")
app.check()
"""


@pytest.mark.parametrize("code", ["import headrace", "import headrace.app", DECLARE])
def test_declaring_a_task_imports_nothing_heavy(code: str, tmp_path: Path) -> None:
    printing = f"{code}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    assert not HEAVY & set(run([sys.executable, "-c", printing], tmp_path, make_environment()).split())


def test_the_page_lists_the_core_dependencies_and_no_others() -> None:
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
    names = {each.partition(">")[0].partition("[")[0] for each in project["dependencies"]}
    listed = PAGE.read_text("utf-8").partition("## Import times")[0]
    rows = [line for line in listed.splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == names
