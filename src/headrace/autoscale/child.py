"""Run `headrace` in this process and stop it when its parent exits.

Standard input is a pipe held only by the parent, so the kernel closes it however the parent ends. This process then
stops as on SIGTERM: jobs finish or are returned.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from threading import Thread


def end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    Thread(target=end_with_parent, name="parent", daemon=True).start()
    sys.argv[0] = "headrace"
    runpy.run_module("headrace", run_name="__main__")


if __name__ == "__main__":
    main()
