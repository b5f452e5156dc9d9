"""Compare the contract with its record: what users, stored data and other processes rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.sections import SECTIONS, read_contract

RECORD = Path(__file__).parent / "record"
REWRITE = ".venv/bin/python tools/record_contract.py"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_contract_is_as_recorded(section: str) -> None:
    recorded = (RECORD / f"{section}.txt").read_text("utf-8").splitlines()
    now = read_contract()[section]
    assert recorded == now, "\n".join(
        [
            f"The contract changed ({section}). A removed line can break users, stored data or other processes.",
            f"If the change is intended, rewrite the record and commit it: {REWRITE}",
            *describe_changes(set(recorded), set(now)),
        ]
    )


def test_the_record_has_no_other_sections() -> None:
    assert {path.stem for path in RECORD.iterdir()} == set(SECTIONS)


def test_a_changed_list_is_described_by_its_changed_items() -> None:
    recorded, now = {"document: a, b, c", "same", "gone"}, {"document: a, c, d", "same", "new"}
    assert describe_changes(recorded, now) == ["- document: a, b, c", "    now with d, without b", "- gone", "+ new"]


def describe_changes(recorded: set[str], now: set[str]) -> list[str]:
    """Return removed and added lines. A removed list is followed by how the most similar list differs."""
    added = now - recorded
    found: list[str] = []
    for line in sorted(recorded - now):
        found.append(f"- {line}")
        head, before = split_line(line)
        similar = max(
            (each for each in added if split_line(each)[0] == head),
            key=lambda each: (len(split_line(each)[1] & before), each),
            default="",
        )
        after = split_line(similar)[1]
        if len(after & before) * 2 > len(before):
            added.discard(similar)
            changes = [("with", after - before), ("without", before - after)]
            shown = [f"{word} {', '.join(sorted(names))}" for word, names in changes if names]
            found.append(f"    now {', '.join(shown)}")
    return [*found, *(f"+ {line}" for line in sorted(added))]


def split_line(line: str) -> tuple[str, set[str]]:
    """Return the head and the items of a line such as `document: a, b`; without a colon, all of it is the head."""
    head, colon, rest = line.partition(": ")
    return head, set(rest.split(", ")) if colon else set[str]()
