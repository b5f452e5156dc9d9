"""Code blocks of the documentation, and a folder in which they run as a reader would run them.

A block that starts with ```` ```python app.py ```` is a file of that name. Blocks of Python without a name are one
program, `page.py`, which runs after all files of its page are written. ```` ```python other ```` marks code for other
libraries, which does not run here.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "page.py"
OTHER = "other"
BLOCK = re.compile(r"^```(?P<info>\w[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_S = 120.0


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a page."""

    language: str
    label: str  # what follows the language: a file name, OTHER, or nothing
    text: str
    line: int  # of the page, from 1: where the text starts


def read_blocks(page: Path) -> list[CodeBlock]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    found: list[CodeBlock] = []
    for match in BLOCK.finditer(text):
        language, _, label = match["info"].partition(" ")
        found.append(CodeBlock(language, label.strip(), match["text"], text.count("\n", 0, match.start("text")) + 1))
    return found


def collect_files(blocks: Iterable[CodeBlock]) -> dict[str, str]:
    """Return the Python files of a page by name. Lines keep their numbers, so that tracebacks name lines
    of the page."""
    files: dict[str, str] = {}
    for block in blocks:
        if block.language != "python" or block.label == OTHER:
            continue
        name = block.label or PROGRAM
        before = files.get(name, "")
        files[name] = before + "\n" * (block.line - 1 - before.count("\n")) + block.text
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        folder.joinpath(name).write_text(text, "utf-8")


def make_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program that imports the package of this repository, with its commands on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return kept | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error::RuntimeWarning"} | variables


def run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    """Run a command and return its standard output. Fails with what it printed if its exit code is not 0."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def find_used_names(text: str) -> set[str]:
    """Return the names that Python code uses. Importing a name is no use of it."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
