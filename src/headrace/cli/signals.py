"""Turns signals into events, so that a long-running command finishes its work instead of being interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType


def install_stop_event(*signals: signal.Signals) -> threading.Event:
    """Return an event that is set when one of the signals arrives. Must be called in the main thread."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for signal_number in signals:
        signal.signal(signal_number, on_signal)
    return stop


def install_async_stop_event(*signals: signal.Signals) -> asyncio.Event:
    """Return an event of the running event loop that is set when one of the signals arrives."""
    stop = asyncio.Event()
    for signal_number in signals:
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    return stop
