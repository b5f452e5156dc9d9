"""Workers of streams are killed with -9, one every second, for two minutes. Nothing may be lost or stuck.

    ./hr chaos streams --json [--seconds 120] [--workers 4]

Ends with one line of JSON (see `streams_run.Report`); the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.chaos.streams_run import main

    main()
