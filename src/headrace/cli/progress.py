"""A progress bar on standard error, for work that takes long enough for a person to wonder.

Never imports rich unless standard error is a terminal; into a log or a pipe nothing is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""


@contextmanager
def progress_bar(title: str, least: int = 0) -> Generator[Report]:
    """Shown once the whole is at least `least`: a bar for nothing is noise."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=total >= least)
