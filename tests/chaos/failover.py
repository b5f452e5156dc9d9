"""Servers fail over, go back in time and move their slots, and all workers die, while jobs come and go.

    ./hr chaos failover --json

Ends with one line of JSON (see `failover_judge.Report`); the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Beside this file is a queue.py, which others would take for the standard library's.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.failover_run import main

    main()
