"""Search the texts of the repository for words that its style avoids, and print `file:line: word: suggestion`.

Texts are documentation, docstrings, comments and messages in Python, comments in Lua and SQL, and the strings and
comments of the dashboard. Inline code in backticks is skipped. A line that contains `words: allow`, usually in a
comment, is not checked. CONTRIBUTING.md explains the words.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOW = "words: allow"

WORDS = {
    r"(?<!\()told(?!\))": "reported, notified, configured, recorded",  # (told) is the value of a label
    r"unless said": "(default: …)",
    r"whoever|somebody|everybody|anybody": "name the actor, or use the passive",
    r"(?<!user )nobody": "no process, no client; for the Unix user write `nobody`",
    r"thereupon|as was said|since ever|not even that": "leave it out, or say it again in full",
    r"so many": "this many, the number of",
    r"(?:set|sets|setting|put|puts) aside": "unreadable (entries), quarantined (rows, files), renamed",
    r"mend|mends|mended|mending": "fix, repair",
    r"(?<!self-)(?:heal|heals|healed|healing)": "repair, correct",
    r"hungry": "refill request",
    r"giveback": "requeue",
    r"signs? of life": "heartbeat",
    r"lets? go|letting go": "release, stop, drop",
    r"anew": "again",
    r"believe|believes|believed": "trust, use",
    r"(?:is|are|was|were|be|been) away": "is down, is unavailable",
    r"(?:is|are|was|were) ill": "is unhealthy",
    r"fates?": "outcome",
    r"patience": "retry policy, timeout, reconnect",
    r"vitals": "runtime",
    r"rooms": "packages",
    r"to the brim": "to 100 %",
}
PATTERN = re.compile("|".join(rf"(?P<w{i}>\b(?:{word})\b)" for i, word in enumerate(WORDS)), re.IGNORECASE)
SUGGESTIONS = list(WORDS.values())

OF_DOCSTRING = re.compile(r'^\s*[rf]?"""Of (?:the|a|an|its|their|all|one|this|these|those|what|which)\b')
CODE = re.compile(r"`[^`\n]*`|\"\w+\"(?=:)|\]\([^)\s]*\)")  # inline code, keys of JSON, targets of links
IDENTIFIER = re.compile(r"^[\w.:/{}*\-]*$")
TYPESCRIPT_NAMES = re.compile(
    r"(?<=[{,] )\w+(?= ?[,}])|\.\w+|\b\w+\??:|\b\w+(?=\()|data-testid=\"[^\"]*\"|\bimport .*|\bfrom \".*"
)
RELEASED = re.compile(r"^## \[\d", re.MULTILINE)


def find_words(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line (from 0), the word and a suggestion for each word to avoid."""
    for number, line in enumerate(text.split("\n")):
        for match in PATTERN.finditer(line):
            yield number, match.group(), SUGGESTIONS[int((match.lastgroup or "w0")[1:])]


def read_markdown(text: str) -> Iterator[tuple[int, str]]:
    unreleased = RELEASED.split(text)[0]  # released entries of the changelog stay as they are
    yield 1, CODE.sub("", unreleased)


def read_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and strings. A string without a space is a name or a key, not a text."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[token.type]
        if is_text and not IDENTIFIER.match(token.string.strip("rbf\"'")):
            yield token.start[0], CODE.sub("", token.string)


def read_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of Lua or SQL."""
    for number, line in enumerate(text.split("\n"), 1):
        if "--" in line:
            yield number, CODE.sub("", line.partition("--")[2])


def read_typescript(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without names of fields and functions."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, TYPESCRIPT_NAMES.sub(" ", line)


READERS = {
    ".md": read_markdown,
    ".py": read_python,
    ".lua": read_comments,
    ".sql": read_comments,
    ".ts": read_typescript,
    ".tsx": read_typescript,
}


def check_text(text: str, suffix: str) -> list[tuple[int, str, str]]:
    """Return (line, word, suggestion) for a text of a kind of file."""
    lines = text.split("\n")
    found = [
        (start + offset, word, suggestion)
        for start, part in READERS[suffix](text)
        for offset, word, suggestion in find_words(part)
    ]
    if suffix == ".py":
        found += [
            (number, "Of", "begin a docstring with a verb or a noun")
            for number, line in enumerate(lines, 1)
            if OF_DOCSTRING.match(line)
        ]
    return sorted(each for each in found if ALLOW not in lines[each[0] - 1])


def list_files() -> list[Path]:
    """Return the files to check. Released migrations are never edited, so they are left out."""
    files = [*ROOT.glob("*.md"), *(ROOT / "tests").rglob("README.md")]
    for folder in ("docs", "src/headrace", "ui/src", "tools", "bench"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in READERS]
    return sorted(path for path in files if "schema" not in path.parent.name and path != Path(__file__).resolve())


def main() -> int:
    count = 0
    for path in list_files():
        for line, word, suggestion in check_text(path.read_text("utf-8"), path.suffix):
            print(f"{path.relative_to(ROOT)}:{line}: {word}: {suggestion}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
