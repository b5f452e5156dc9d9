"""tools/check_words.py finds words to avoid in texts, and nothing in names, code or ordinary English."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import check_words
from tools.check_words import check_text, list_files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("suffix", "text", "line", "word"),
    [
        (".md", "# Page\n\nThe worker is told to stop.\n", 3, "told"),
        (".md", "Whoever asks needs a key.\n", 1, "Whoever"),
        (".py", '"""Of the bucket of a histogram."""\n', 1, "Of"),
        (".py", "x = 1\n# nobody reads this\n", 2, "nobody"),
        (".py", 'def f() -> None:\n    """First.\n\n    The row is set aside.\n    """\n', 4, "set aside"),
        (".py", 'raise ValueError(f"{name} is away.")\n', 1, "is away"),
        (".lua", "local x = 1 -- mended later\n", 1, "mended"),
        (".sql", "-- name: x\n-- Rows that nobody wants.\n", 2, "nobody"),
        (".tsx", "<p>Somebody paused it.</p>\n", 1, "Somebody"),
    ],
)
def test_finds_words_to_avoid(suffix: str, text: str, line: int, word: str) -> None:
    assert [each[:2] for each in check_text(text, suffix)] == [(line, word)]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".md", "PostgreSQL runs as the user `nobody`, or as user nobody.\n"),
        (".md", "Drift: rows, totals (told), settings. The column `set_aside` counts them.\n"),
        (".md", "See [decision 10](0010-rooms-beside-rooms.md). It is half a minute away. Make room for it.\n"),
        (".md", "## [Unreleased]\n\n- Fixed.\n\n## [0.1.0] - 2026-01-01\n\n- Nobody is told.\n"),
        (".md", "A silence that nobody ends. <!-- words: allow -->\n"),
        (".py", 'row["told"] = counts["set_aside"]\nnobody = whoever(told)\n'),
        (".py", 'NOTE = "told by the user"  # words: allow\n'),
        (".py", '"""Offer a list of jobs."""\n'),
        (".lua", "local told = hungry_key(shard)\n"),
        (".ts", "for (const { id, told } of transitions) { show(told(id), change.told); }\n"),
        (".md", "Self-healing totals. Aside from that, everything stays.\n"),
    ],
)
def test_leaves_names_code_and_ordinary_english(suffix: str, text: str) -> None:
    assert check_text(text, suffix) == []


def test_migrations_are_left_out() -> None:
    assert not [path for path in list_files() if "/schema/" in path.as_posix()]


def test_prints_file_line_word_and_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("README.md").write_text("# Title\n\nNobody reads it.\n")
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", printed.append)
    assert check_words.main() == 1
    assert [line.rsplit(":", 1)[0] for line in printed] == ["README.md:3: Nobody"]


def test_texts_for_readers_are_clean() -> None:
    """Documentation outside of the tables that repeat declarations of the code."""
    repeats = {"settings.md", "events.md"} | {path.name for path in (ROOT / "docs" / "reference").glob("*-metrics.md")}
    pages = [path for path in list_files() if path.suffix == ".md" and path.name not in repeats]
    assert len(pages) > 30
    found = {str(path.relative_to(ROOT)): check_text(path.read_text("utf-8"), ".md") for path in pages}
    assert {name: words for name, words in found.items() if words} == {}
