"""Which files `headrace worker --reload` watches, and which changes it finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli import source_watcher
from headrace.cli.source_watcher import SourceWatcher


@pytest.fixture(autouse=True)
def _scan_at_once(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(source_watcher, "SCAN_S", 0.0)
    monkeypatch.setattr(source_watcher, "SCAN_SHARE", 0)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_changed_added_and_removed_files_are_found_once(tmp_path: Path) -> None:
    changed, removed = write(tmp_path / "a.py", "one"), write(tmp_path / "package/b.py")
    write(tmp_path / "kept.py")
    watcher = SourceWatcher([tmp_path])
    assert watcher.count == 3
    assert watcher.find_changes() == []
    changed.write_text("two lines")
    removed.unlink()
    added = write(tmp_path / "package/deep/c.py")
    assert watcher.find_changes() == sorted(map(str, (changed, removed, added)))
    assert watcher.find_changes() == []


def test_a_replaced_file_of_the_same_time_and_size_is_found(tmp_path: Path) -> None:
    file, other = write(tmp_path / "a.py", "one"), write(tmp_path / "a.new", "two")
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    watcher = SourceWatcher([tmp_path])
    os.utime(other, ns=times)
    other.replace(file)
    assert watcher.find_changes() == [str(file)]


@pytest.mark.parametrize(
    "path", [".git/a.py", "__pycache__/a.py", "node_modules/x/a.py", "lib/site-packages/a.py", "notes.txt", "a.pyc"]
)
def test_other_files_are_ignored(tmp_path: Path, path: str) -> None:
    watcher = SourceWatcher([tmp_path])
    write(tmp_path / path)
    assert watcher.find_changes() == []


def test_virtual_environments_and_links_to_folders_are_ignored(tmp_path: Path) -> None:
    write(tmp_path / "env/pyvenv.cfg")
    write(tmp_path / "env/lib/a.py")
    write(tmp_path / "code/b.py")
    (tmp_path / "code/loop").symlink_to(tmp_path / "code")
    assert SourceWatcher([tmp_path]).count == 1


def test_several_folders_are_watched_and_a_removed_one_is_empty(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one/a.py"), write(tmp_path / "other/b.py")
    watcher = SourceWatcher([one.parent, other.parent])
    other.unlink()
    other.parent.rmdir()
    assert watcher.find_changes() == [str(other)]


def test_changes_before_a_restart_are_not_reported_after_it(tmp_path: Path) -> None:
    file = write(tmp_path / "a.py", "one")
    watcher = SourceWatcher([tmp_path])
    file.write_text("three")
    watcher.forget_changes()
    assert watcher.find_changes() == []


def test_nothing_is_read_before_the_next_scan_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_watcher, "SCAN_S", 1000.0)
    watcher = SourceWatcher([tmp_path])
    assert watcher.find_changes() == []
    write(tmp_path / "a.py")
    assert watcher.find_changes() == []
