"""A million jobs into one queue of which Valkey may hold 5,000: slow workers first, then fast ones.

    ./hr chaos backlog --json [--jobs 1000000]

Ends with one line of JSON (see `backlog_run.Report`); the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Beside this file is a queue.py, which others would take for the standard library's.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.backlog_run import main

    main()
