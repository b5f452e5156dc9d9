"""What a strict type checker says about applications: nothing about tests/types/app_ok.py, and exactly the expected
errors about tests/types/app_errors.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OK, ERRORS = (ROOT / "tests" / "types" / name for name in ("app_ok.py", "app_errors.py"))
EXPECTED = re.compile(r"# expect: (.+)$")


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, list[str]]]:
    """Check both files with the settings of the repository. Return the rules by file and line."""
    project = tmp_path_factory.mktemp("types") / "pyrightconfig.json"
    project.write_text(
        json.dumps(
            {
                "include": [str(OK), str(ERRORS)],
                "extraPaths": [str(ROOT / "src")],
                "pythonVersion": "3.11",
                "typeCheckingMode": "strict",
            }
        )
    )
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(project)]
    command += ["--pythonpath", sys.executable]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    report: dict[str, Any] = json.loads(answer.stdout)
    assert report["summary"]["filesAnalyzed"] == 2, answer.stdout + answer.stderr
    found: defaultdict[str, dict[int, list[str]]] = defaultdict(dict)
    for each in report["generalDiagnostics"]:
        lines = found[Path(each["file"]).name]
        lines.setdefault(each["range"]["start"]["line"] + 1, []).append(each.get("rule", each["message"]))
    return found


def test_correct_uses_are_accepted(errors: dict[str, dict[int, list[str]]]) -> None:
    assert errors.get(OK.name, {}) == {}


def test_mistakes_are_found(errors: dict[str, dict[int, list[str]]]) -> None:
    expected: dict[int, list[str]] = {}
    for number, line in enumerate(ERRORS.read_text().splitlines(), 1):
        if match := EXPECTED.search(line):
            expected[number] = match.group(1).split()
    assert len(expected) > 20
    assert {line: sorted(rules) for line, rules in errors[ERRORS.name].items()} == expected
