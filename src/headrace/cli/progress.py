"""A progress bar on standard error, for operations that take several seconds.

rich is imported only if standard error is a terminal; in a log or a pipe nothing is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

ReportProgress = Callable[[int, int], None]
"""Called with the amount done and the total amount."""


@contextmanager
def progress_bar(title: str, min_total: int = 0) -> Generator[ReportProgress]:
    """Yield a function that updates the bar. The bar is shown only if the total is at least `min_total`."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=total >= min_total)
