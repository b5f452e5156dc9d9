"""The command line: exit codes, JSON on the last line, and a start-up that imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.cli import Invocation, main, pass_invocation
from headrace.cli.examples import EXAMPLES, walk_commands
from headrace.cli.extras import require_stack_extras
from headrace.cli.output import align_columns, print_table
from headrace.errors import DataDirectoryError, HeadraceError, MissingExtra, QueueUnavailable, SettingsError

HEAVY = {"chdb", "clickhouse_connect", "fastapi", "pandas", "psycopg", "pyarrow", "pyspark", "redis", "rich"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and environment, so that no settings of the developer are found."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main.headrace, arguments, env=environ)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `headrace version` raise."""

    @click.command()
    def failing() -> None:
        raise error

    def load_failing(_target: str) -> click.Command:
        return failing

    monkeypatch.setattr(main, "load_command", load_failing)


@pytest.mark.parametrize("arguments", ["['--help']", "['config', '--help']", "['version']"])
def test_start_up_imports_nothing_heavy(arguments: str) -> None:
    script = (
        "import sys; from headrace.cli.main import headrace\n"
        f"headrace({arguments}, standalone_mode=False)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not HEAVY & set(output.splitlines()[-1].split())


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, short_help) in main.COMMANDS.items():
        assert name in result.stdout
        assert short_help in result.stdout


def test_the_table_and_the_command_agree() -> None:
    for name, (target, short_help) in main.COMMANDS.items():
        assert main.load_command(target).get_short_help_str(limit=200) == short_help, name


def test_version_option() -> None:
    assert run("--version").stdout.startswith("headrace ")


class TestExitCodes:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (HeadraceError("refused"), 1),
            (SettingsError("bad setting"), 3),
            (QueueUnavailable("no answer"), 4),
            (DataDirectoryError("not ours"), 5),
        ],
    )
    def test_each_failure_has_its_own(self, monkeypatch: pytest.MonkeyPatch, error: HeadraceError, code: int) -> None:
        fail_with(error, monkeypatch)
        result = run("version")
        assert (result.exit_code, result.stderr, result.stdout) == (code, f"error: {error}\n", "")

    def test_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fail_with(KeyboardInterrupt(), monkeypatch)
        assert run("version").exit_code == 130

    def test_a_bug_keeps_its_traceback(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fail_with(ZeroDivisionError("a bug"), monkeypatch)
        monkeypatch.setattr(sys, "argv", ["headrace", "version"])
        with pytest.raises(SystemExit) as caught:
            main.main()
        assert caught.value.code == 70
        assert "Traceback" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [["cofig"], ["--set", "queue.shards", "version"], ["version", "--no"]])
    def test_usage(self, arguments: list[str]) -> None:
        assert run(*arguments).exit_code == 2

    @pytest.mark.parametrize(
        "arguments", [["--set", "queue.shard=1"], ["--set", "queue.shards=0"], ["--config", "none.toml"]]
    )
    def test_settings(self, here: Path, arguments: list[str]) -> None:
        result = run(*arguments, "config", "show")
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.startswith("error: ")

    def test_version_works_beside_a_broken_settings_file(self, here: Path) -> None:
        (here / "headrace.toml").write_text("broken")
        assert run("version").exit_code == 0
        assert run("config", "show").exit_code == 3


class TestConfigShow:
    def test_json_is_the_last_line(self, here: Path) -> None:
        (here / "headrace.toml").write_text("[queue]\nlease = '60s'")
        result = run(
            *("--set", "queue.shards=1", "--set", "queue.shards=4", "config", "show", "--json"),
            HEADRACE_REDIS_URL="redis://user:hunter2@h/0",
        )
        settings = json.loads(result.stdout.splitlines()[-1])["settings"]
        assert settings["queue.lease"] == {"value": "1m", "origin": "file headrace.toml"}
        assert settings["queue.shards"] == {"value": "4", "origin": "flag --set queue.shards"}
        assert settings["redis.url"] == {
            "value": "redis://user:***@h/0",
            "origin": "environment HEADRACE_REDIS_URL",
        }
        assert settings["postgres.url"] == {"value": None, "origin": "default"}

    def test_text_masks_passwords_too(self, here: Path) -> None:
        result = run("config", "show", HEADRACE_POSTGRES_URL="postgresql://h/db?password=hunter2")
        assert "hunter2" not in result.output
        assert "password=***" in result.stdout

    def test_the_variable_names_the_file(self, here: Path) -> None:
        (here / "other.toml").write_text("[log]\nlevel = 'debug'")
        assert "file other.toml" in run("config", "show", HEADRACE_CONFIG="other.toml").stdout


def test_version_json() -> None:
    versions = json.loads(run("version", "--json").stdout.splitlines()[-1])
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["redis"]


def test_settings_are_read_once(here: Path) -> None:
    seen: list[object] = []

    @click.command()
    @pass_invocation
    def command(invocation: Invocation) -> None:
        seen.extend([invocation.settings, invocation.settings])

    CliRunner().invoke(command, obj=Invocation(None, {"queue.shards": "7"}, {}))
    assert seen[0] is seen[1]


@pytest.mark.parametrize("app", [":tasks", "", ".tasks:tasks"])
def test_an_app_without_a_module_is_refused(app: str) -> None:
    refused = CliRunner().invoke(main.headrace, ["worker", app])
    assert refused.exit_code == 2
    assert "no module name" in refused.output


def test_plain_tables_are_aligned() -> None:
    assert align_columns([["a", "b", ""], ["long", "x", "y"]]) == ["a     b", "long  x  y"]


def test_a_terminal_gets_a_rich_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(["setting"], [["local[*]"], ["[red]"]])
    output = capsys.readouterr().out
    assert "local[*]" in output
    assert "[red]" in output


@pytest.mark.parametrize("missing", [("pyspark",), ("fastapi", "pyspark", "chdb")])
def test_up_names_all_extras_in_one_command_and_starts_nothing(
    here: Path, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    result = run("up")
    assert result.exit_code == 4
    assert "pip install 'headrace[embedded,pipeline,server]'" in result.stderr
    assert not (here / ".headrace").exists()


def test_up_does_not_need_embedded_servers_where_all_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chdb", None)
    require_stack_extras(())
    with pytest.raises(MissingExtra):
        require_stack_extras(("clickhouse",))


def test_a_stack_that_is_not_found_is_named_with_its_whole_path(here: Path) -> None:
    result = run("queues")
    assert result.exit_code == 4
    assert f"no Headrace stack is running on {here / '.headrace'}. Start one with `headrace up`" in result.stderr


def walk_all_commands() -> dict[str, click.Command]:
    return {
        path: command
        for name, (target, _) in main.COMMANDS.items()
        for path, command in walk_commands(name, main.load_command(target))
    }


def test_the_help_of_every_command_has_an_example() -> None:
    assert walk_all_commands().keys() == EXAMPLES.keys()
    assert "Example:\n    headrace dead list" in run("dead", "list", "--help").stdout


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_is_a_valid_command_line(path: str) -> None:
    match = re.search(r"headrace (?:--set \S+ )?(.*?)(?:\)\"|$)", EXAMPLES[path])
    assert match is not None
    words = shlex.split(match[1])
    name = path.split()
    assert words[: len(name)] == name
    command = walk_all_commands()[path]
    context = click.Context(command, resilient_parsing=True)
    command.parse_args(context, words[len(name) :])
    missing = [
        parameter.name
        for parameter in command.params
        if parameter.required and context.params.get(parameter.name or "") in (None, ())
    ]
    assert not missing


def test_a_former_name_still_works() -> None:
    result = run("audit", "--help")
    assert result.exit_code == 0
    assert "headrace history verify" in result.stdout
    assert "is now called" in result.stderr
    assert "audit" not in main.COMMANDS


@pytest.mark.parametrize(
    ("words", "completed"),
    [("headrace que", ["queues"]), ("headrace queues --wat", ["--watch"]), ("headrace dead li", ["list"])],
)
def test_shells_complete_commands_and_options(words: str, completed: list[str]) -> None:
    asked = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    script = "from headrace.cli.main import main; main()"
    environ = {**os.environ, **asked}
    answer = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert [line.partition(",")[2] for line in answer.stdout.splitlines()] == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_HEADRACE_COMPLETE" in result.stdout
