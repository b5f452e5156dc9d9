"""A class name is unique in src/headrace, except for those that CONTRIBUTING.md lists with a reason."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
HEADING = "### Class names that occur twice"

EXCEPTIONS: dict[str, str] = {}  # class name → reason; the same as in CONTRIBUTING.md


def list_classes() -> dict[str, list[str]]:
    """Return the files that define each class at module level, by class name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return found


def list_documented_exceptions() -> set[str]:
    """Return the class names that begin an item of the list below the heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = re.split(r"^##", text.split(HEADING + "\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^- `(\w+)`: \S", section, re.MULTILINE))


def test_class_names_are_unique() -> None:
    classes = list_classes()
    assert len(classes) > 500
    assert {name: files for name, files in classes.items() if len(files) > 1 and name not in EXCEPTIONS} == {}


def test_exceptions_are_needed_and_documented() -> None:
    classes = list_classes()
    assert [name for name in EXCEPTIONS if len(classes.get(name, ())) < 2] == []
    assert set(EXCEPTIONS) == list_documented_exceptions()
