"""Producers, movers and workers are killed with -9, PostgreSQL goes away and comes back, and jobs pass both tiers.

    ./hr chaos tiers --json [--seconds 120]

Ends with one line of JSON (see `tiers_judge.Report`); the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Beside this file is a queue.py, which others would take for the standard library's.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.tiers_run import main

    main()
