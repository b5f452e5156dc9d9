"""A process that puts, leases and acks is killed with -9 at random moments, again and again. Nothing may be lost.

    ./hr chaos spool --json [--rounds 250]

Ends with one line of JSON (see `spool_run.Report`); the exit code is 1 if a guarantee was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # the repository, not this folder
    from tests.chaos.spool_run import main

    main()
