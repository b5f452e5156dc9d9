"""Kill the pipeline and ClickHouse with -9 and cut connections to Valkey, under load; then compare all counts.

    ./hr chaos exactly-once --json [--seconds 200] [--workers 4] [--clickhouse-away SECONDS]

Ends with one line of JSON (see `exactly_once_judge.Report`); the exit code is 1 if history and queues disagree.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # This folder contains a queue.py, which must not shadow the module of the standard library.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.exactly_once_run import main

    main()
