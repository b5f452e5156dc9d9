"""A client of any version in a process of its own: one JSON document per line in, one per line out.

    python remote_client.py VALKEY_URL POSTGRES_URL

Only the public names of `headrace` are used: older versions run this file too.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import headrace
from headrace import DeadFilter, EnvRef, NewJob, QueueRef, SyncClient, Tiers


def answer(client: SyncClient, asked: dict[str, Any]) -> Any:
    ref = QueueRef(*asked["queue"])
    env = EnvRef(ref.org, ref.project, ref.env)
    match asked["do"]:
        case "enqueue_many":
            jobs = [NewJob(**{**job, "payload": job["payload"].encode()}) for job in asked["jobs"]]
            return client.enqueue_many(ref, jobs)
        case "state":
            found = client.get(env, asked["id"])
            return None if found is None else str(found.state)
        case "cancel":
            state = client.cancel(env, asked["id"])
            return None if state is None else str(state)
        case "redrive":
            return client.redrive(ref, DeadFilter(tuple(asked["ids"])))
        case "limits":
            return client.limits(ref, asked["limit"])
        case "env_limits":
            return client.limits(env, asked["limit"], asked["burst"])
        case "caps":
            return client.caps(ref, asked["items"], None)
        case "pause":
            return client.pause(ref) if asked["paused"] else client.resume(ref)
        case other:
            raise ValueError(f"unknown request {other!r}")


def main() -> None:
    valkey_url, postgres_url = sys.argv[1:]
    with SyncClient(valkey_url, None, Tiers(valkey_url, postgres_url)) as client:
        print(json.dumps(str(headrace.__file__)), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(client, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
