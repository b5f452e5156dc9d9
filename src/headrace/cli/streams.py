"""`headrace streams`: shows, watches and fills Redis Streams, including those of other applications."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from headrace.app.clients import build_queue_options
from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.formatting import ABSENT, escape_control, format_age, format_time
from headrace.cli.logs import configure_logs
from headrace.cli.metrics_server import metrics_port_option, serve_loop_metrics
from headrace.cli.output import json_option, print_json, print_json_or_table, print_json_or_text, print_table
from headrace.cli.signals import install_stop_event
from headrace.errors import HeadraceError, NotAStream, UnknownGroup
from headrace.model.job import NewJob
from headrace.queue.client import SyncClient
from headrace.queue.validate import check_queue
from headrace.settings import Settings
from headrace.streams import keys
from headrace.streams.broker import Broker, BrokerOptions
from headrace.streams.codec import StreamCodec
from headrace.streams.consumers import GroupConsumers, read_consumers
from headrace.streams.dead_letters import DeadLetter, count_dead, read_dead_letters
from headrace.streams.dead_letters import redrive as redrive_letters
from headrace.streams.depth import GroupDepth, read_depth
from headrace.streams.keys import GroupKeys
from headrace.streams.watcher import WatchedGroup, Watcher, make_watched_group
from headrace.valkey.connect import ScriptError, Valkey, connect, read_server_time_ms
from headrace.valkey.stream_groups import find_streams, list_groups, translate_group_errors

COLUMNS = (
    *("stream", "group", "undelivered", "pending", "load", "oldest", "idle"),
    *("consumers", "stuck", "dead", "messages", "state"),
)
FIELD_CHARS = 100


@click.group()
def streams() -> None:
    """Work with jobs on plain Redis Streams."""


_stream_option = click.option("--stream", "names", multiple=True, help="Stream name. Repeatable.")
_group_option = click.option("--group", help="Consumer group (default: streams.group; `list` shows every group).")
_required_stream_option = click.option("--stream", required=True, help="Stream name.")
_single_group_option = click.option("--group", help="Consumer group (default: streams.group).")


class DeadLetterId(click.ParamType[str]):
    """Id of a dead letter, as printed by `headrace streams dead`."""

    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value and not re.fullmatch(r"\d{1,20}-\d{1,20}", value):
            self.fail(
                f"Invalid dead-letter id {value!r}: expected a stream entry id such as 1700000000000-0.", param, ctx
            )
        return value


@dataclass(frozen=True)
class StreamListRow:
    """Current state of a consumer group, or the reason why it cannot be read."""

    stream: str
    group: str
    depth: GroupDepth | None = None
    holders: GroupConsumers | None = None
    dead: int | None = None
    hard_maxlen: int | None = None
    problem: str = ""

    @property
    def state(self) -> str:
        if self.depth is None:
            return self.problem
        if self.depth.reason:
            return f"unknown: {self.depth.reason}"
        return "stuck" if self.holders and self.holders.stuck else "ok"


@streams.command("list")
@_stream_option
@_group_option
@json_option
@pass_invocation
def list_streams(invocation: Invocation, names: tuple[str, ...], group: str | None, as_json: bool) -> None:
    """Show the outstanding work of each consumer group.

    Without --stream, lists the groups in streams.watch or, if that is not set, every stream on the server.
    """
    settings = invocation.settings
    with connect_streams(settings) as client:
        with translate_group_errors("*", "*"):
            now_ms = read_server_time_ms(client)
        rows = [_read_list_row(client, settings, *pair) for pair in _select_groups(client, settings, names, group)]
    document = {"at_ms": now_ms, "streams": [_build_document(row, now_ms) for row in rows]}
    print_json_or_table(as_json, document, COLUMNS, [_format_cells(row, now_ms) for row in rows])


@streams.command()
@_stream_option
@_group_option
@click.option("--once", is_flag=True, help="Record every group once, then exit.")
@metrics_port_option("streams.metrics_port")
@pass_invocation
def watch(
    invocation: Invocation, names: tuple[str, ...], group: str | None, once: bool, metrics_port: int | None
) -> None:
    """Record the history of streams until stopped.

    Reads each group every streams.every and writes metric events, as queues do. Applications that use the streams need
    no change. Running several watchers is safe: nothing is counted twice.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    pairs = [(name, group or settings.streams.group) for name in names] or list_watched_groups(settings)
    if not pairs:
        raise click.UsageError("Nothing to watch: use --stream, or set streams.watch.")
    groups = [_build_watch_target(settings, *pair) for pair in pairs]
    options = build_queue_options(settings)
    with connect_streams(settings) as source, SyncClient(resolve_endpoints(settings, "redis").redis, options) as target:
        target.check_shards()
        stuck_after_ms = int(settings.streams.stuck_after * 1000)
        watcher = Watcher(
            *(source, target.redis, target.options.make_stubs(), groups, stuck_after_ms, settings.streams.hard_maxlen)
        )
        if not once:
            with serve_loop_metrics(settings, metrics_port, settings.streams.metrics_port, watcher.metrics):
                watcher.run_forever(install_stop_event(), settings.streams.every)
        elif (recorded := watcher.run_once()) < len(groups):
            raise HeadraceError(
                f"Could not read {len(groups) - recorded} of {len(groups)} groups; see the log lines above."
            )


@streams.command()
@click.argument("task")
@click.option("--payload", default="", metavar="TEXT", help="Payload for the task, as text.")
@click.option("--stream", help="Target stream (default: the task's entry in streams.routes, then streams.stream).")
@click.option("--count", default=1, type=click.IntRange(1, 10_000), help="Number of jobs to publish (default: 1).")
@json_option
@pass_invocation
def publish(invocation: Invocation, task: str, payload: str, stream: str | None, count: int, as_json: bool) -> None:
    """Add jobs to a stream."""
    settings = invocation.settings
    options = build_broker_options(settings)
    jobs = [NewJob(task, payload.encode(), max_attempts=settings.streams.max_attempts) for _ in range(count)]
    where = stream or options.route(jobs[0])
    with connect_streams(settings) as client:
        entries = Broker(client, options).publish_many(where, jobs)
    text = f"published {len(entries)} jobs to {escape_control(where)}"
    print_json_or_text(as_json, {"stream": where, "entries": entries}, text)


@streams.command()
@_required_stream_option
@_single_group_option
@click.option("--after", default="", type=DeadLetterId(), metavar="ID", help="Show only dead letters after this id.")
@click.option(
    "--limit", default=20, type=click.IntRange(1, 1000), help="Maximum number of dead letters to show (default: 20)."
)
@json_option
@pass_invocation
def dead(invocation: Invocation, stream: str, group: str | None, after: str, limit: int, as_json: bool) -> None:
    """List the dead letters of a group, oldest first."""
    settings = invocation.settings
    where = GroupKeys(stream, group or settings.streams.group)
    with connect_streams(settings) as client:
        letters, count = read_dead_letters(client, where, after, limit), count_dead(client, where)
    if as_json:
        print_json({"dead": count, "letters": [asdict(letter) for letter in letters]})
        return
    print_table(("id", "buried", "deliveries", "reason", "fields"), [_format_dead_letter(letter) for letter in letters])
    if count > len(letters):
        click.echo(f"showing {len(letters)} of {count}")


@streams.command()
@_required_stream_option
@_single_group_option
@click.option(
    "--id",
    "ids",
    multiple=True,
    type=DeadLetterId(),
    metavar="ID",
    help="Redrive only the dead letter with this id. Repeatable.",
)
@click.option(
    "--every-group", is_flag=True, help="Redrive even if other groups of the stream will run the jobs again too."
)
@json_option
@pass_invocation
def redrive(
    invocation: Invocation, stream: str, group: str | None, ids: tuple[str, ...], every_group: bool, as_json: bool
) -> None:
    """Redrive the dead letters of a group, with their attempts reset."""
    settings = invocation.settings
    with connect_streams(settings) as client:
        where = GroupKeys(stream, group or settings.streams.group)
        moved = redrive_letters(client, where, ids, every_group=every_group)
    print_json_or_text(as_json, {"redriven": moved}, f"{moved} dead letters redriven")


def resolve_streams_url(settings: Settings) -> str:
    return settings.streams.url or resolve_endpoints(settings, "redis").redis


def connect_streams(settings: Settings) -> Valkey:
    return connect(resolve_streams_url(settings))


def build_stream_codec(settings: Settings) -> StreamCodec:
    given = settings.streams
    return StreamCodec(given.field, given.type_key, given.id_key, given.max_attempts)


def build_broker_options(settings: Settings) -> BrokerOptions:
    given = settings.streams
    routes = dict(each.strip().split("=") for each in (given.routes or "").split(",") if each)
    codec, largest = build_stream_codec(settings), settings.queue.max_payload
    return BrokerOptions(given.stream, routes, given.maxlen, given.hard_maxlen, largest, codec)


def list_watched_groups(settings: Settings) -> list[tuple[str, str]]:
    """Return the (stream, group) pairs of streams.watch."""
    pairs = (settings.streams.watch or "").split(",")
    return [(stream, group) for stream, _, group in (each.strip().rpartition("/") for each in pairs) if stream]


def _build_watch_target(settings: Settings, stream: str, group: str) -> WatchedGroup:
    given = settings.streams
    found = make_watched_group(stream, group, given.org, given.project, given.env)
    check_queue(found.ref)
    return found


def _select_groups(
    client: Valkey, settings: Settings, names: Sequence[str], group: str | None
) -> list[tuple[str, str]]:
    if not names and (pairs := list_watched_groups(settings)):
        return [pair for pair in pairs if group in (None, pair[1])]
    found = names or [name for name in find_streams(client, "*") if not keys.is_headrace_stream(name)]
    return [(name, each) for name in found for each in _list_groups(client, name, group)]


def _list_groups(client: Valkey, stream: str, group: str | None) -> list[str]:
    if group is not None:
        return [group]
    try:
        return list_groups(client, stream) or [""]
    except (UnknownGroup, NotAStream, ScriptError):
        return [""]  # `_read_list_row` reports the reason


def _read_list_row(client: Valkey, settings: Settings, stream: str, group: str) -> StreamListRow:
    try:
        return StreamListRow(
            stream,
            group,
            read_depth(client, stream, group),
            read_consumers(client, stream, group, stuck_after_ms=int(settings.streams.stuck_after * 1000)),
            count_dead(client, GroupKeys(stream, group)),
            settings.streams.hard_maxlen,
        )
    except UnknownGroup:
        return StreamListRow(
            stream, group, problem="no such stream or group" if group else "no such stream, or it has no groups"
        )
    except NotAStream:
        return StreamListRow(stream, group, problem="not a stream")
    except ScriptError as error:
        return StreamListRow(stream, group, problem=f"server error: {error}")


def _compute_oldest_age_ms(depth: GroupDepth, now_ms: int) -> int | None:
    """Return the age of the oldest unfinished entry in milliseconds, or None if there is none."""
    times = [at for at in (depth.oldest_pending_ms, depth.oldest_undelivered_ms) if at is not None]
    return max(0, now_ms - min(times)) if times else None


def _format_cells(row: StreamListRow, now_ms: int) -> list[str]:
    names, depth, holders = [escape_control(row.stream), escape_control(row.group) or ABSENT], row.depth, row.holders
    if depth is None or holders is None:
        return [*names, *[ABSENT] * (len(COLUMNS) - 3), row.state]
    counts = (depth.undelivered, depth.pending, depth.load)
    return [
        *names,
        *("unknown" if count is None else str(count) for count in counts),
        *(format_age(_compute_oldest_age_ms(depth, now_ms)), format_age(depth.longest_idle_ms)),
        *(str(len(holders.consumers)), str(len(holders.stuck)), str(row.dead)),
        *(f"{depth.total_messages}/{row.hard_maxlen}", row.state),
    ]


def _build_document(row: StreamListRow, now_ms: int) -> dict[str, object]:
    named: dict[str, object] = {"stream": row.stream, "group": row.group, "state": row.state}
    if row.depth is None or row.holders is None:
        return named
    return {
        **named,
        **asdict(row.depth),
        "load": row.depth.load,
        "oldest_age_ms": _compute_oldest_age_ms(row.depth, now_ms),
        "consumers": [asdict(consumer) for consumer in row.holders.consumers],
        "stuck": [consumer.name for consumer in row.holders.stuck],
        "deliveries": row.holders.deliveries,
        "dead": row.dead,
        "hard_maxlen": row.hard_maxlen,
    }


def _format_dead_letter(letter: DeadLetter) -> list[str]:
    fields = " ".join(f"{name}={value}" for name, value in letter.fields.items())[:FIELD_CHARS]
    reason = letter.reason.strip().splitlines()[-1:] or [""]  # the last line of a traceback names the error
    texts = (escape_control(reason[0])[:FIELD_CHARS], escape_control(fields).replace("\n", " "))
    return [letter.id, format_time(letter.buried_at_ms), str(letter.deliveries), *texts]
