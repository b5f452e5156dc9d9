"""Tasks of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace import Headrace, Retry, current_job, unique_id

app = Headrace(env="acme/batch/prod", queue="files")


@dataclass
class FileReport:
    path: str
    lines: int
    words: int


@app.task(queue="folders", result_ttl=86_400)
def list_folder(folder: str) -> list[str]:
    """Enqueue a job for each text file of a folder. Return the ids of the jobs."""
    paths = sorted(Path(folder).glob("*.txt"))
    ids: list[str] = []
    for number, path in enumerate(paths, 1):
        current_job().check()  # ends here if the job was cancelled
        spec = count_words.job(str(path))
        ids.append(count_words.using(id=unique_id(spec)).enqueue(str(path)).id)
        current_job().progress(number, len(paths), path.name)
    return ids


@app.task(pool="process", timeout=600, retry=Retry(attempts=2), result_ttl=86_400)
def count_words(path: str) -> FileReport:
    lines = words = 0
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            lines += 1
            words += len(line.split())
    return FileReport(path, lines, words)
