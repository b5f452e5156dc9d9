"""The files of named queries: every query is described and used, and every name that is used exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.model.query_file import QUERY

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
PACKAGES = sorted(file.parent.name for file in SOURCE.glob("*/queries.sql"))

TEXT = """\
-- A heading

-- name: first
-- Return 1.
-- A second line.
SELECT 1 -- 100%%
WHERE true

-- Another heading
-- name: second
-- Return 2.
SELECT 2
"""


def find_uses(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield package and name of each query that Python files below a folder use."""
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        if "QUERIES" not in text and "render_query" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and imports_queries(node)]
        for node in nodes:
            match node:
                case ast.Subscript(value=ast.Name(id="QUERIES"), slice=name) if modules:
                    assert isinstance(name, ast.Constant), f"{path} line {node.lineno}: not a literal name"
                    yield modules[0].split(".")[1], str(name.value)
                case ast.Call(func=ast.Name(id="render_query"), args=[ast.Constant(value=name)]):
                    yield "warehouse", str(name)
                case _:
                    pass


def imports_queries(node: ast.ImportFrom) -> bool:
    return (node.module or "").endswith(".queries") and any(each.name == "QUERIES" for each in node.names)


def test_a_query_has_a_name_a_description_and_sql_up_to_a_blank_line() -> None:
    assert QUERY.findall(TEXT) == [
        ("first", "-- Return 1.\n-- A second line.\n", "SELECT 1 -- 100%%\nWHERE true\n"),
        ("second", "-- Return 2.\n", "SELECT 2\n"),
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_query_is_described_once_and_complete(package: str) -> None:
    text = (SOURCE / package / "queries.sql").read_text("utf-8")
    found = QUERY.findall(text)
    names = [name for name, _, _ in found]
    assert len(names) == len(set(names)) == text.count("-- name:")
    for name, description, _ in found:
        assert description.rstrip().endswith((".", ".)")), f"{name} has no description in sentences"
    rest = QUERY.sub("", text).split("\n")
    assert not [line for line in rest if line and not line.startswith("--")], "SQL behind a blank line"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_query_is_used(package: str) -> None:
    """PostgreSQL's in their package; ClickHouse's anywhere, or included by another."""
    queries = {name: sql for name, _, sql in QUERY.findall((SOURCE / package / "queries.sql").read_text("utf-8"))}
    uses = find_uses(SOURCE if package == "warehouse" else SOURCE / package)
    included = {part for sql in queries.values() for part in re.findall(r"\{(\w+)\}", sql)} & {*queries}
    assert {*queries} == {name for whose, name in uses if whose == package} | included


def test_tests_and_benchmarks_use_queries_that_exist() -> None:
    for package, name in {*find_uses(ROOT / "tests"), *find_uses(ROOT / "bench")}:
        assert f"-- name: {name}\n" in (SOURCE / package / "queries.sql").read_text("utf-8")
