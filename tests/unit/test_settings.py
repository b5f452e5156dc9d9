"""Settings: precedence, validation, and passwords that appear in no message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.kinds import Bytes, Seconds, ValueKind, duration, size
from headrace.settings import SETTINGS, LoadedSettings, find_settings_file, load_settings, mask_secret

NOTHING: Mapping[str, str] = {}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "headrace.toml"


def load_toml(file: Path, content: str) -> LoadedSettings:
    file.write_text(content, "utf-8")
    return load_settings(NOTHING, NOTHING, file)


def read_error(flags: Mapping[str, object] = NOTHING, environ: Mapping[str, str] = NOTHING) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environ, None)
    assert caught.value.__cause__ is None  # a cause could quote a secret
    return str(caught.value)


def test_every_default_is_a_value_one_could_write() -> None:
    for each in SETTINGS.values():
        assert each.kind.parse(each.kind.format(each.default)) == each.default, each.key


def test_nothing_given_means_defaults() -> None:
    loaded = load_settings(NOTHING, NOTHING, None)
    assert loaded.settings.redis.url is None
    assert loaded.settings.queue.lease == 30.0
    assert set(map(str, loaded.origins.values())) == {"default"}
    assert loaded.origins.keys() == SETTINGS.keys()


def test_environment_names_are_unique() -> None:
    assert len({each.env for each in SETTINGS.values()}) == len(SETTINGS)


def test_a_file_sets_every_kind(toml: Path) -> None:
    settings = load_toml(
        toml,
        """
        [redis]
        url = "redis://localhost:6379/0"
        [embedded]
        data_dir = "/var/lib/headrace"
        min_free = "1GiB"
        [queue]
        shards = 8
        lease = "2m"
        [pipeline]
        master = "spark://one:7077,two:7077"
        [log]
        level = "debug"
        """,
    ).settings
    assert settings.redis.url == "redis://localhost:6379/0"
    assert settings.embedded.data_dir == Path("/var/lib/headrace")
    assert settings.embedded.min_free == 2**30
    assert (settings.queue.shards, settings.queue.lease) == (8, 120.0)
    assert settings.pipeline.master == "spark://one:7077,two:7077"
    assert settings.log.level == "debug"


class TestPrecedence:
    @given(st.tuples(*[st.none() | st.integers(1, 1024)] * 3))
    def test_flag_beats_environment_beats_file_beats_default(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        given_values: tuple[int | None, int | None, int | None],
    ) -> None:
        flag, variable, in_file = given_values
        file = tmp_path_factory.mktemp("settings") / "headrace.toml"
        file.write_text("" if in_file is None else f"queue.shards = {in_file}")
        loaded = load_settings(
            {} if flag is None else {"queue.shards": str(flag)},
            {} if variable is None else {"HEADRACE_QUEUE_SHARDS": str(variable)},
            file,
        )
        candidates = [
            (flag, "flag --set queue.shards"),
            (variable, "environment HEADRACE_QUEUE_SHARDS"),
            (in_file, f"file {file}"),
        ]
        value, origin = next((each for each in candidates if each[0] is not None), (None, "default"))
        assert (loaded.settings.queue.shards, str(loaded.origins["queue.shards"])) == (value, origin)

    def test_empty_text_unsets_what_the_environment_set(self) -> None:
        environ = {"HEADRACE_REDIS_URL": "redis://elsewhere"}
        assert load_settings({"redis.url": ""}, environ, None).settings.redis.url is None

    def test_an_overridden_bad_value_does_no_harm(self) -> None:
        loaded = load_settings({"queue.shards": "4"}, {"HEADRACE_QUEUE_SHARDS": "many"}, None)
        assert loaded.settings.queue.shards == 4

    def test_other_peoples_variables_are_ignored(self) -> None:
        load_settings(NOTHING, {"HEAD": "x", "PATH": "/bin", "HEADRACE_CONFIG": "headrace.toml"}, None)


class TestUnknownNames:
    def test_flag(self) -> None:
        assert read_error({"queue.shard": "3"}) == (
            "Unknown setting queue.shard (flag --set queue.shard): did you mean queue.shards?"
        )

    def test_variable(self) -> None:
        message = read_error(environ={"HEADRACE_REDIS_ULR": "redis://u:hunter2@h"})
        assert message.endswith("did you mean HEADRACE_REDIS_URL?")
        assert "hunter2" not in message

    def test_nothing_close(self) -> None:
        assert "see docs/reference/settings.md" in read_error({"zzz": "1"})

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[quueue]\nshards = 1", "Unknown section quueue .*: did you mean queue?"),
            ("[queue]\nlaese = '1s'", "Unknown setting queue.laese .*: did you mean queue.lease?"),
            ("[queue.retry]\nbase = '1s'", "Unknown setting queue.retry "),
            ("queue = 3", r"queue \(file .*\) is a section, not a setting: write \[queue\]"),
        ],
    )
    def test_file(self, toml: Path, content: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            load_toml(toml, content)


class TestBadValues:
    def test_the_message_names_key_value_origin_and_what_is_allowed(self) -> None:
        assert read_error(environ={"HEADRACE_QUEUE_SHARDS": "0"}) == (
            "queue.shards = '0' (environment HEADRACE_QUEUE_SHARDS) is invalid: "
            "it must be a whole number from 1 to 1024; empty = none."
        )

    @pytest.mark.parametrize(
        ("key", "raw"),
        [
            ("worker.concurrency", ""),
            *(("queue.shards", raw) for raw in ("two", "2.0", "1025", "-1", 2.5, True, [2], "9" * 5000)),
            *(("queue.lease", raw) for raw in ("30", 30, "30 weeks", "1.5s", "-1s", "0s", "999d", "s", None)),
            *(("queue.max_payload", raw) for raw in ("1MB", "0B", "1gib", 1024)),
            *(("redis.url", raw) for raw in ("localhost:6379", "http://h", "redis:h", "redis://", "redis://h:x")),
            *(("postgres.url", raw) for raw in ("mysql://h/db", "postgresql:/h", 5)),
            *(("clickhouse.url", raw) for raw in ("tcp://h:9000", "http://h:99999", "http://[::1")),
            *(("embedded.valkey_server", raw) for raw in ("bundle", "")),
            *(("embedded.data_dir", raw) for raw in ("~/headrace", "", 1)),
            *(("pipeline.master", raw) for raw in ("local[0]", "mesos://h", "local[*] x")),
            ("pipeline.driver_memory", "1"),
            ("warehouse.database", "head-race"),
            ("log.level", "LOUD"),
            ("api.host", "a b"),
            ("api.trusted_proxies", "proxy.example"),
            ("api.trusted_proxies", "10.0.0.1/8"),
            ("api.trusted_proxies", "*"),
            ("api.trusted_proxies", "127.0.0.1,,::1"),
            ("metrics.token", "short"),
            ("metrics.token", "with a blank in it"),
        ],
    )
    def test_refused(self, key: str, raw: object) -> None:
        assert read_error({key: raw}).startswith(f"{key} = ")

    @pytest.mark.parametrize(
        ("key", "raw"),
        [
            ("redis.url", "unix:///run/valkey.sock"),
            ("redis.url", "rediss://[::1]:6380/1"),
            ("postgres.url", "postgresql:///app?host=/run/postgresql"),
            ("postgres.url", "postgresql://one:5432,two:5433/app"),
            ("clickhouse.url", "clickhouses://h:8443/default"),
            ("embedded.valkey_server", "/opt/my valkey/valkey-server"),
            ("pipeline.master", "k8s://https://h:443"),
            ("queue.lease", " 90 s\n"),
            ("api.trusted_proxies", "127.0.0.1, ::1,10.0.0.0/8"),
            ("api.trusted_proxies", ""),
            ("metrics.token", "a-token-of-some-length"),
        ],
    )
    def test_accepted(self, key: str, raw: str) -> None:
        load_settings({key: raw}, NOTHING, None)

    def test_a_heartbeat_must_fit_into_the_lease(self) -> None:
        assert read_error({"worker.heartbeat": "30s"}) == (
            "worker.heartbeat = 30s (flag --set worker.heartbeat) must be shorter than "
            "queue.lease = 30s (default): change one of the two."
        )

    def test_the_first_retry_must_not_wait_longer_than_the_last(self) -> None:
        assert "must not be longer than queue.retry_max" in read_error({"queue.retry_base": "6m"})


class TestFile:
    def test_syntax_error_says_where(self, toml: Path) -> None:
        with pytest.raises(SettingsError, match=r"headrace.toml is not valid TOML: .*line 2") as caught:
            load_toml(toml, "[queue]\nshards = two")
        assert caught.value.exit_code == 3

    def test_not_utf8(self, toml: Path) -> None:
        toml.write_bytes(b"\xff\xfe")
        with pytest.raises(SettingsError, match="not valid TOML"):
            load_settings(NOTHING, NOTHING, toml)

    def test_missing(self, toml: Path) -> None:
        with pytest.raises(SettingsError, match=r"Cannot read the settings file .*headrace.toml: No such file"):
            load_settings(NOTHING, NOTHING, toml)

    def test_lookup_order(self, tmp_path: Path, toml: Path) -> None:
        variable = {"HEADRACE_CONFIG": "b.toml"}
        assert find_settings_file(None, NOTHING, tmp_path) is None
        toml.touch()
        assert find_settings_file(None, NOTHING, tmp_path) == toml
        assert find_settings_file(None, variable, tmp_path) == Path("b.toml")
        assert find_settings_file(Path("a.toml"), variable, tmp_path) == Path("a.toml")


class TestSecrets:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://:PW@h/0", "redis://:***@h/0"),
            ("redis://user@h:6379", "redis://user@h:6379"),
            ("redis://u:PW@[::1]:6379", "redis://u:***@[::1]:6379"),
            ("postgresql://me@corp:PW@h/db", "postgresql://me@corp:***@h/db"),
            (
                "postgresql://h/db?password=PW&sslmode=require",
                "postgresql://h/db?password=***&sslmode=require",
            ),
            ("redis://h:1/0?password=P@W", "redis://***"),
            ("PW", "***"),
        ],
    )
    def test_mask(self, url: str, shown: str) -> None:
        assert mask_secret(url) == shown

    # Greek letters: they occur nowhere else in a message, a repr or a URL.
    @given(st.text("ΠΩ/@:#?&=%[], ", min_size=1))
    def test_no_letter_of_a_password_is_shown(self, password: str) -> None:
        url = f"redis://user:{password}@host:6379/0"
        try:
            output = repr(load_settings({"redis.url": url}, NOTHING, None))
        except SettingsError as error:
            output = str(error)
        assert not {"Π", "Ω"} & set(output + mask_secret(url))

    def test_a_bad_url_shows_its_scheme_only(self) -> None:
        message = read_error({"redis.url": "mysql://user:PW"})
        assert message.startswith("redis.url = mysql://*** (flag")


@given(st.integers(1, 30 * 86_400_000))
def test_durations_are_shown_as_they_are_read(ms: int) -> None:
    kind: ValueKind[Seconds] = duration("1ms", "30d")
    assert kind.parse(f"{ms}ms") == ms / 1000
    assert kind.parse(kind.format(ms / 1000)) == ms / 1000


@given(st.integers(0, 2**40))
def test_sizes_are_shown_as_they_are_read(value: int) -> None:
    kind: ValueKind[Bytes] = size("0B", "1TiB")
    assert kind.parse(kind.format(value)) == value


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "200ms"), (30.0, "30s"), (90.0, "90s"), (300.0, "5m"), (86400.0, "1d")]
)
def test_durations_are_shown_short(seconds: float, shown: str) -> None:
    assert duration("1ms", "30d").format(seconds) == shown


class TestSpool:
    def test_sending_past_the_spool_is_refused_with_the_reason(self) -> None:
        message = read_error({"spool.always_queue": "false"})
        assert "spool.always_queue = false (flag --set spool.always_queue)" in message
        assert "lost" in message

    def test_a_pipeline_never_drops_by_default(self) -> None:
        spool = load_settings(NOTHING, NOTHING, None).settings.spool
        assert (spool.full_behavior, spool.segment_size, spool.always_queue) == ("block", 64 * 2**20, True)

    def test_sizes_may_be_shares_of_memory(self) -> None:
        spool = load_settings({"spool.max_bytes": "10%", "spool.inmemory_bytes": "2MiB"}, NOTHING, None).settings.spool
        assert spool.max_bytes.resolve(5000) == 500
        assert spool.inmemory_bytes.resolve(5000) == 2 * 2**20

    @pytest.mark.parametrize(
        ("given", "resolved", "shown"),
        [
            ("1Gi", 2**30, "1GiB"),
            ("512Mi", 2**29, "512MiB"),
            ("2048Ki", 2**21, "2MiB"),
            ("1Ti", 2**40, "1TiB"),
            ("0.10", 1000, "10%"),
            (0.1, 1000, "10%"),
            (".5", 5000, "50%"),
            ("0.075", 750, "7.5%"),
            ("1.0", 10_000, "100%"),
            ("12.5%", 1250, "12.5%"),
        ],
    )
    def test_sizes_as_other_queues_write_them(self, given: object, resolved: int, shown: str) -> None:
        found = load_settings({"spool.max_bytes": given}, NOTHING, None).settings.spool.max_bytes
        assert found.resolve(10_000) == resolved
        kind = SETTINGS["spool.max_bytes"].kind
        assert kind.format(found) == shown
        assert kind.parse(shown) == found

    def test_every_size_may_lack_its_last_letter(self) -> None:
        spool = load_settings({"spool.segment_size": "512Mi", "spool.write_buffer_size": "256Ki"}, NOTHING, None)
        assert (spool.settings.spool.segment_size, spool.settings.spool.write_buffer_size) == (2**29, 2**18)

    @pytest.mark.parametrize("source", ["flag", "environment", "file"])
    def test_an_earlier_name_is_still_read(self, toml: Path, source: str) -> None:
        toml.write_text("[spool]\nmax_concurrent_sends = 3\n" if source == "file" else "")
        flags = {"spool.max_concurrent_sends": "3"} if source == "flag" else NOTHING
        environ = {"HEADRACE_SPOOL_MAX_CONCURRENT_SENDS": "3"} if source == "environment" else NOTHING
        loaded = load_settings(flags, environ, toml)
        assert loaded.settings.spool.max_sends == 3
        assert source in str(loaded.origins["spool.max_sends"])

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("spool.max_bytes", "0.0"),
            ("spool.max_bytes", "1.1"),
            ("spool.max_bytes", "1G"),
            ("spool.max_bytes", "0%"),
            ("spool.max_bytes", "101%"),
            ("spool.max_bytes", "10"),
            ("spool.max_bytes", "1KiB"),
            ("spool.backoff", "yes"),
            ("spool.backoff_multiplier", "nan"),
            ("spool.backoff_multiplier", "0.5"),
            ("spool.full_behavior", "drop"),
        ],
    )
    def test_refused(self, key: str, value: str) -> None:
        assert key in read_error({key: value})

    @pytest.mark.parametrize(
        "flags",
        [
            {"spool.retry_interval": "10m"},
            {"spool.clickhouse_retry_interval": "1m"},
            {"spool.min_workers": "9", "spool.max_workers": "8"},
        ],
    )
    def test_what_does_not_fit_together(self, flags: dict[str, str]) -> None:
        assert "change one of the two" in read_error(flags)
