"""The reference pages match the code: nothing is missing, and nothing documented does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from headrace import errors
from headrace.cli import main
from headrace.settings import CONFIG_ENV, CONTEXT_ENV, SETTINGS, Settings, SettingSpec

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS_PAGE = (DOCS / "reference" / "settings.md").read_text("utf-8")
CLI_PAGE = (DOCS / "reference" / "cli.md").read_text("utf-8")


def row(each: SettingSpec) -> str:
    """Return the row of a setting on the settings page; a failing test prints it for pasting."""
    shown = each.format(each.default)
    default = f"`{shown}`" if shown else "none"
    return f"| `{each.key}` | `{each.env}` | {default} | {each.kind.allowed} | {each.help} |"


def test_every_setting_is_documented_and_no_other() -> None:
    documented = {line for line in SETTINGS_PAGE.splitlines() if line.startswith("| `")}
    expected = set(map(row, SETTINGS.values()))
    assert not expected - documented, "missing:\n" + "\n".join(sorted(expected - documented))
    assert not documented - expected, "not in headrace.settings:\n" + "\n".join(sorted(documented - expected))


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    known = {each.env for each in SETTINGS.values()} | {CONFIG_ENV, CONTEXT_ENV}
    sections = "|".join(Settings.__dataclass_fields__)
    for page in DOCS.rglob("*.md"):
        text = page.read_text("utf-8")
        variables = set(re.findall(r"HEADRACE_[A-Z0-9_]*[A-Z0-9]", text))
        assert not variables - known, f"{page}: {variables - known}"
        if page.parent.name == "reference":
            keys = set(re.findall(rf"\b(?:{sections})\.[a-z_]+\b(?=`|=)", text))
            assert not keys - SETTINGS.keys(), f"{page}: {keys - SETTINGS.keys()}"


def tree(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if command is main.headrace:
        for name, (target, _) in main.COMMANDS.items():
            yield from tree(main.load_command(target), f"{path} {name}")
    elif isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from tree(each, f"{path} {name}")


def options(command: click.Command) -> set[str]:
    return {
        name
        for each in command.params
        if isinstance(each, click.Option)
        for name in [*each.opts, *each.secondary_opts]
        if name.startswith("--")
    }


def documented_commands() -> dict[str, set[str]]:
    """Return heading → options listed below it. A heading is a command if its whole text is code."""
    parts = re.split(r"^#+ (.*)$", CLI_PAGE, flags=re.MULTILINE)[1:]
    return {
        heading.strip("`"): set(re.findall(r"^- `(--[a-z0-9-]+)", body, re.MULTILINE))
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
        if re.fullmatch(r"`headrace.*`", heading)
    }


def test_every_command_and_option_is_documented_and_no_other() -> None:
    expected = {path: options(command) for path, command in tree(main.headrace, "headrace")}
    documented = documented_commands()
    assert not expected.keys() - documented.keys(), f"missing: {expected.keys() - documented.keys()}"
    assert not documented.keys() - expected.keys(), f"no such command: {documented.keys() - expected.keys()}"
    for path, names in expected.items():
        assert not names - documented[path], f"{path}: missing {names - documented[path]}"
        assert not documented[path] - names, f"{path}: no such option {documented[path] - names}"


def test_every_exit_code_is_documented() -> None:
    codes = {each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")}
    codes |= {0, 2, main.EXIT_BUG, main.EXIT_INTERRUPTED}
    documented = set(map(int, re.findall(r"^\| (\d+) \|", CLI_PAGE, re.MULTILINE)))
    assert documented == codes
