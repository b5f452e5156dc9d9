"""One example of each command, shown by its `--help`. A test parses every example."""

from __future__ import annotations

from collections.abc import Iterator

import click

EXAMPLES = {
    "up": "headrace up --demo",
    "url": 'psql "$(headrace url postgres)"',
    "doctor": "headrace doctor --security",
    "worker": "headrace worker shop.tasks:app --concurrency 50 --queue emails",
    "workers": "headrace workers --running",
    "tasks": "headrace tasks shop.tasks:app --compare tasks.json",
    "run": "headrace run shop.tasks:app send_receipt --args '{\"order\": 42}'",
    "context use": "headrace context use acme/shop/prod",
    "context show": "headrace context show",
    "context clear": "headrace context clear",
    "mover": "headrace mover --metrics-port 9102",
    "tiers events": "headrace tiers events",
    "tiers adopt": "headrace tiers adopt --yes",
    "enqueue": "headrace enqueue acme shop prod emails send_receipt --args '{\"order\": 42}'",
    "queues": "headrace queues --env prod --watch",
    "job": "headrace job acme shop prod 0190a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b",
    "cancel": "headrace cancel acme shop prod 0190a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b --running",
    "dead list": "headrace dead list acme shop prod emails --error Timeout",
    "dead delete": "headrace dead delete acme shop prod emails --task send_receipt",
    "redrive": "headrace redrive acme shop prod emails --error Timeout --dry-run",
    "discard": "headrace discard acme shop prod emails --task send_receipt",
    "pause": 'headrace pause acme shop prod emails --reason "mail server is down"',
    "resume": "headrace resume acme shop prod emails",
    "close": "headrace close acme shop prod emails",
    "open": "headrace open acme shop prod emails",
    "limits": "headrace limits acme shop prod emails --limit 10",
    "caps": "headrace caps acme shop prod emails --items 10000 --bytes 64MiB",
    "quotas show": "headrace quotas show acme shop prod",
    "quotas set": "headrace quotas set acme shop prod --quota warm_jobs=10000",
    "quotas unset": "headrace quotas unset acme shop prod --quota warm_jobs",
    "activity": "headrace activity --org acme --limit 50",
    "metrics on": "headrace metrics on",
    "metrics off": "headrace metrics off",
    "metrics status": "headrace metrics status --json",
    "pipeline": "headrace pipeline --trigger 5s",
    "spool inspect": "headrace spool inspect",
    "spool verify": "headrace spool verify --json",
    "spool drain": "headrace spool drain --to-file records.jsonl",
    "spool quarantine": "headrace spool quarantine",
    "streams list": "headrace streams list --stream jobs",
    "streams watch": "headrace streams watch --stream jobs --group workers",
    "streams publish": "headrace streams publish send_receipt --payload 42 --stream jobs",
    "streams dead": "headrace streams dead --stream jobs --group workers",
    "streams redrive": "headrace streams redrive --stream jobs --group workers",
    "api": "headrace --set api.port=8080 api",
    "keys create": "headrace keys create --name dashboards --org acme --level read --expires 90d",
    "keys list": "headrace keys list",
    "keys revoke": "headrace keys revoke key_4f1c",
    "keys link": "headrace keys link",
    "acl": "headrace acl worker --password-file worker.password",
    "sessions list": "headrace sessions list",
    "sessions revoke": "headrace sessions revoke ses_4f1c",
    "alerts run": "headrace alerts run --metrics-port 9103",
    "alerts list": "headrace alerts list",
    "alerts apply": "headrace alerts apply alerts.toml --dry-run",
    "alerts silence": 'headrace alerts silence acme shop prod --for 2h --reason "planned maintenance"',
    "alerts ack": "headrace alerts ack inc_4f1c",
    "alerts test": "headrace alerts test acme shop prod on-call",
    "snapshot run": "headrace snapshot run --metrics-port 9104",
    "snapshot show": "headrace snapshot show --text",
    "snapshot diff": "headrace snapshot diff",
    "autoscale run": "headrace autoscale run --dry-run",
    "autoscale explain": "headrace autoscale explain mail --changes",
    "autoscale status": "headrace autoscale status",
    "autoscale simulate": "headrace autoscale simulate mail --load burst --for 1h",
    "demo": "headrace demo --seconds 60",
    "migrate": "headrace migrate --print",
    "reconcile": "headrace reconcile --wait 60",
    "history verify": "headrace history verify --from 2027-01-15T08:00Z --to 2027-01-15T10:00Z",
    "backfill": "headrace backfill --from 2027-01-15T08:00Z --to 2027-01-15T10:00Z",
    "config show": "headrace config show",
    "config apply": "headrace --set queue.warm_max_items=5000 config apply",
    "completion": 'eval "$(headrace completion bash)"',
    "version": "headrace version --json",
}
"""Path of a command → a command line that can be pasted into a shell."""


def add_examples(name: str, command: click.Command) -> None:
    """Add their example to the help of a command and its subcommands."""
    for path, each in walk_commands(name, command):
        if path in EXAMPLES:
            each.epilog = f"\b\nExample:\n  {EXAMPLES[path]}"


def walk_commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands without subcommands below a command, with their paths."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from walk_commands(f"{path} {name}", child)
