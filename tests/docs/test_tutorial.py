"""The tutorial works word by word: its files are written and its commands run in order, in an empty folder.

Blocks with the label `install` are not run; `tests.docs.reader` describes the others.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, make_environment, read_blocks
from tests.docs.reader import Reader, find_lines
from tests.stack import PATIENT

TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_works_word_by_word(tmp_path: Path) -> None:
    folder = tmp_path / "hello-headrace"
    folder.mkdir()
    env = make_environment(**PATIENT, PYTHONUNBUFFERED="1", COLUMNS="200") | {"HOME": os.environ.get("HOME", "")}
    env.pop("VIRTUAL_ENV", None)
    with ExitStack() as stack:
        reader = Reader(folder, env, stack)
        for block in read_blocks(TUTORIAL):
            if block.label != "install":
                reader.follow(block)


def test_the_tutorial_installs_extras_that_exist() -> None:
    import tomllib

    extras = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]["optional-dependencies"]
    [block] = [block for block in read_blocks(TUTORIAL) if block.label == "install"]
    [named] = re.findall(r"headrace\[([\w,]+)\]", block.text)
    assert set(named.split(",")) <= extras.keys()


def test_expected_lines_are_found_in_order() -> None:
    output = "one\ntwo 22 three\nfour\n"
    assert find_lines("one\n…\ntwo … three\n", output) == len("one\ntwo 22 three")
    assert find_lines("four\none\n", output) is None
