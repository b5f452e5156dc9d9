"""The producer's side of the tutorial."""

import json
import os

from headrace import NewJob, QueueRef, SyncClient

emails = QueueRef(org="acme", project="shop", env="prod", queue="emails")


def main() -> None:
    with SyncClient(os.environ["HEADRACE_REDIS_URL"]) as queue:  # Client is the same for asyncio
        accepted = queue.enqueue(emails, NewJob("send_email", json.dumps({"to": "ann@example.com"}).encode()))

    print("accepted" if accepted else "a job with this id already exists")


if __name__ == "__main__":
    main()
