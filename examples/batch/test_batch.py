"""Tests of the batch, without servers. Tasks of the process pool run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace.errors import JobFailed

from tasks import FileReport, app, count_words, list_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.joinpath("a.txt").write_text("one two\nthree\n")
    tmp_path.joinpath("b.txt").write_text("")
    tmp_path.joinpath("ignored.bin").write_bytes(b"\xff")
    return tmp_path


def test_every_text_file_has_a_result(folder: Path) -> None:
    with app.testing() as jobs:
        batch = list_folder.enqueue(str(folder))
        assert jobs.drain_sync() == {"done": 3}
        reports = [app.handle(job_id, task=count_words).result() for job_id in batch.result()]
    assert reports == [FileReport(f"{folder}/a.txt", 2, 3), FileReport(f"{folder}/b.txt", 0, 0)]


def test_a_file_is_counted_once_while_its_job_waits(folder: Path) -> None:
    with app.testing() as jobs:
        list_folder.enqueue(str(folder))
        list_folder.enqueue(str(folder))
        jobs.drain_sync(due=False)
        assert len(jobs.all(count_words)) == 2


def test_a_file_that_cannot_be_read_fails_its_own_job(folder: Path) -> None:
    folder.joinpath("broken.txt").write_bytes(b"\xff\xfe\xff")
    with app.testing() as jobs:
        list_folder.enqueue(str(folder))
        assert jobs.drain_sync(raising=False) == {"done": 3, "retry": 1, "dead": 1}
        [broken] = [job for job in jobs.all(count_words) if "broken" in job.arguments["path"]]
        with pytest.raises(JobFailed, match="UnicodeDecodeError"):
            app.handle(broken.id, task=count_words).result()
