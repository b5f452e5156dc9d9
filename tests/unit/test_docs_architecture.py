"""Every file named in docs/architecture.md exists, and every function or class is defined in the file of its step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
STEP = re.compile(r"^ *(?:\d+\.|-) \*\*`([^`]+)`\*\*(.*?)(?=^ *(?:\d+\.|-) \*\*`|^#|^$|\Z)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([A-Za-z_][\w.]*\(\)|[A-Z][a-z]+[A-Za-z]*)`")


def find_file(name: str) -> Path:
    """Return the file of this name, relative to the repository or to src/headrace."""
    return next((path for path in (ROOT / name, ROOT / "src" / "headrace" / name) if path.is_file()), Path(name))


def list_definitions(path: Path) -> set[str]:
    """Return the names of functions and classes defined in a file; methods as `Class.method`."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"function (\w+)", text))
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(text), "")
    return found


def list_imports(path: Path) -> set[str]:
    """Return the names that a Python file imports: a step may mention a class that its file uses."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes for alias in node.names}


def list_steps() -> Iterator[tuple[str, list[str]]]:
    """Yield the file and the names of each step of the page."""
    for file, text in STEP.findall(PAGE):
        yield file, [name.removesuffix("()") for name in NAME.findall(text)]


def test_every_file_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|lua|sql|ts|tsx))`", PAGE))
    assert len(named) > 50
    assert sorted(name for name in named if not find_file(name).is_file()) == []


@pytest.mark.parametrize(("file", "names"), list_steps())
def test_every_name_is_defined_in_the_file_of_its_step(file: str, names: list[str]) -> None:
    path = find_file(file)
    known = list_definitions(path)
    if path.suffix == ".py":
        known |= list_imports(path)
    assert [name for name in names if name not in known] == []
