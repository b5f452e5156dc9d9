"""Rewrite the record of the contract, tests/contract/record, from the source; prints how many lines changed.

.venv/bin/python tools/record_contract.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "contract" / "record"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.contract.sections import read_contract

    RECORD.mkdir(exist_ok=True)
    contract = read_contract()
    for path in RECORD.glob("*.txt"):
        if path.stem not in contract:
            path.unlink()
    for section, lines in contract.items():
        path = RECORD / f"{section}.txt"
        before = set(path.read_text("utf-8").splitlines()) if path.exists() else set[str]()
        path.write_text("\n".join([*lines, ""]), "utf-8")
        if before != set(lines):
            print(
                f"{path.relative_to(ROOT)}: {len(set(lines) - before)} lines added, {len(before - set(lines))} removed"
            )


if __name__ == "__main__":
    main()
