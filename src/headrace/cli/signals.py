"""Signals as events: a long-running command stops by finishing, not by an exception in the middle."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType


def stop_event(*signals: signal.Signals) -> threading.Event:
    """Set when one of the signals arrives."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for signal_number in signals:
        signal.signal(signal_number, on_signal)
    return stop


def stop_event_async(*signals: signal.Signals) -> asyncio.Event:
    """The same for the running event loop."""
    stop = asyncio.Event()
    for signal_number in signals:
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    return stop
