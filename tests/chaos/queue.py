"""Workers are killed with -9, one every second, until 100,000 jobs are done. Nothing may be lost or stuck.

    ./hr chaos queue --json [--jobs 100000] [--workers 4] [--wake-kills 20] [--batch-kills 20] [--hang-rounds 10]

Then, each with a server of its own: workers are killed between their wake and their dequeue (`queue_wake.py`); the
server and producers are killed in the middle of batches of concurrent enqueues (`queue_batches.py`); tasks hang past
their time limits in workers that are stopped (`queue_hangs.py`).

Ends with one line of JSON (the reports of these files and `queue_run.Report`); the exit code is 1 if a promise was
broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # This file is called like a module of the standard library that others import: its folder must not be searched.
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.queue_run import main

    main()
