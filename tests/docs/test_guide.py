"""Every example of the guide runs, as it is printed, on a real Valkey."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import headrace
from tests.docs.blocks import (
    OTHER,
    PROGRAM,
    ROOT,
    collect_files,
    find_used_names,
    make_environment,
    read_blocks,
    run,
    write_files,
)

PAGES = [*sorted(ROOT.joinpath("docs", "guide").glob("*.md")), ROOT / "docs" / "coming-from.md"]
PLUGIN = "headrace.testing.plugin"
EXECUTED = [page for page in PAGES if collect_files(read_blocks(page))]


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, valkey_url: str) -> None:
    """Files are written, and the blocks without a name run as one program. A page with tests runs them, too."""
    files = collect_files(read_blocks(page))
    write_files(tmp_path, files)
    env = make_environment(HEADRACE_REDIS_URL=valkey_url)
    if PROGRAM in files:
        run([sys.executable, PROGRAM], tmp_path, env)
    for name in files:
        if name.startswith("test_"):
            run([sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *load_plugin(), name], tmp_path, env)


def load_plugin() -> list[str]:
    """Return the options with which pytest loads the plugin; none if the installed package has registered it."""
    registered = {each.value for each in entry_points(group="pytest11")}
    return [] if PLUGIN in registered else ["-p", PLUGIN]


def test_every_public_name_has_an_example_that_runs() -> None:
    texts = [text for page in EXECUTED for text in collect_files(read_blocks(page)).values()]
    used = set[str]().union(*map(find_used_names, texts))
    assert not set(headrace.__all__) - used


def test_code_for_other_libraries_is_valid_python() -> None:
    for page in PAGES:
        for block in read_blocks(page):
            if block.language == "python" and block.label == OTHER:
                ast.parse(block.text, f"{page.name}:{block.line}")


def test_a_type_checker_accepts_the_examples(tmp_path: Path) -> None:
    """Each page in a folder of its own, with the rules of this repository."""
    for page in [*EXECUTED, ROOT / "README.md"]:
        folder = tmp_path / page.stem
        folder.mkdir()
        write_files(folder, collect_files(read_blocks(page)))
    for name in ("shop", "batch"):  # Django has no types, and the test client of FastAPI has some only
        copied = tmp_path / f"example-{name}"
        shutil.copytree(ROOT / "examples" / name, copied, ignore=shutil.ignore_patterns("test_*.py"))
    python = Path(sys.executable)
    settings = {
        "include": ["."],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "src")],
        "executionEnvironments": [
            {"root": str(each), "extraPaths": [str(ROOT / "src")]} for each in sorted(tmp_path.iterdir())
        ],
    }
    tmp_path.joinpath("pyrightconfig.json").write_text(json.dumps(settings))
    checker = python.with_name("basedpyright")
    command = [str(checker), "--pythonpath", str(python), "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
