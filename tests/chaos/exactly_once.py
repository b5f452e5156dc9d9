"""The pipeline and ClickHouse are killed with -9 and connections to Valkey are cut, under load; then all is counted.

    ./hr chaos exactly-once --json [--seconds 200] [--clickhouse-away SECONDS]

Ends with one line of JSON (see `exactly_once_judge.Report`); the exit code is 1 if history and queues disagree.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Beside this file is a queue.py, which others would take for the standard library's.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.exactly_once_run import main

    main()
