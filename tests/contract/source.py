"""Index the Python source of the package, without importing it: modules, and what each name in them is bound to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

PACKAGE = "headrace"
ROOT = Path(__file__).parents[2] / "src" / PACKAGE

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Scoped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Module:
    """A module and the bindings of its top-level names. Imports inside functions count as top-level imports."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.is_package = path.name == "__init__.py"
        self.text = path.read_text("utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        return dict(pair for statement in _walk_statements(self.tree) for pair in _find_bound_names(statement))

    @cached_property
    def imports(self) -> dict[str, str]:
        """Map imported names to dotted names."""
        found: dict[str, str] = {}
        for node in _walk_statements(self.tree, inside=True):
            match node:
                case ast.ImportFrom(names=names):
                    home = self._find_home(node)
                    found |= {alias.asname or alias.name: f"{home}.{alias.name}" for alias in names}
                case ast.Import(names=names):
                    for alias in names:
                        first = alias.name.partition(".")[0]
                        found[alias.asname or first] = alias.name if alias.asname else first
                case _:
                    pass
        return found

    def _find_home(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*base, *([node.module] if node.module else [])])


def _walk_statements(tree: ast.AST, *, inside: bool = False) -> Iterator[ast.stmt]:
    """Yield the statements of a module, nested ones included; with `inside`, those of functions and classes too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) and (inside or not isinstance(node, Scoped)):
            yield from _walk_statements(node, inside=inside)


def _find_bound_names(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name, statement
        case ast.Assign(targets=targets):
            for target in targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name):
                        yield node.id, statement
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, statement
        case _:
            pass


@cache
def load_modules() -> dict[str, Module]:
    """Return every module of the package by dotted name."""
    found: dict[str, Module] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join([PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
        found[name] = Module(name, path)
    return found
