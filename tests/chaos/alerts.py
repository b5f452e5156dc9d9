"""Evaluators of alerts that are killed, and a receiver that compares what arrived with what was decided.

    ./hr chaos alerts --json [--kills 50]

Ends with one line of JSON (see `alerts_run.Report`); the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Beside this file is a queue.py, which others would take for the standard library's.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.alerts_run import main

    main()
