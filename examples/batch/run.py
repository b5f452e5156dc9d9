"""Count the words of a folder: `python run.py FOLDER`."""

from __future__ import annotations

import sys
import time

from headrace import JobHandle
from headrace.errors import JobFailed

from tasks import app, count_words, list_folder


def wait_with_progress(job: JobHandle[list[str]]) -> list[str]:
    """Wait for the job that lists the folder, and print its progress."""
    while True:
        try:
            return job.result(timeout=1)
        except TimeoutError:
            info = job.info()
            print("listing:", info and info.progress, file=sys.stderr)


def main() -> int:
    started = time.monotonic()
    ids = wait_with_progress(list_folder.enqueue(sys.argv[1]))
    failed = 0
    for number, job_id in enumerate(ids, 1):
        try:
            report = app.handle(job_id, task=count_words).result(timeout=600)
        except JobFailed as error:
            failed += 1
            print(error, file=sys.stderr)
        else:
            print(f"{number} of {len(ids)}: {report.path}: {report.lines} lines, {report.words} words")
    print(f"{len(ids) - failed} files, {failed} failed, {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    with app:
        raise SystemExit(main())
