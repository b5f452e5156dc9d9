"""`manage.py headrace_worker`: runs the jobs of a backend until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from headrace.app.worker import AppWorker, AppWorkerOptions
from headrace.contrib.django.worker import find_backend
from headrace.errors import HeadraceError

log = logging.getLogger(__name__)

EXIT_RESTART = 75  # EX_TEMPFAIL, as `headrace worker` exits if it must be restarted


class Command(BaseCommand):
    help = (
        "Run the tasks of a Headrace backend. On SIGTERM or Ctrl-C, running jobs have worker.grace to finish. Exits "
        "with code 75, to be restarted, if too many threads hang."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", help="alias in TASKS (default: the only one of Headrace, or 'default')")
        parser.add_argument(
            "--concurrency", type=int, help="number of jobs to run at once (default: worker.concurrency)"
        )
        parser.add_argument(
            "--queue",
            dest="queues",
            action="append",
            default=[],
            help="serve only this queue, in every environment; repeatable (default: QUEUES of the backend)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            backend = find_backend(options["backend"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        given: AppWorkerOptions = {"queues": tuple(options["queues"] or sorted(backend.queues))}
        if options["concurrency"] is not None:
            if options["concurrency"] < 1:
                raise CommandError("--concurrency must be at least 1.")
            given["concurrency"] = options["concurrency"]
        worker = backend.app.worker(**given)
        log.info(
            "worker of Django tasks (backend %s) on %s, tasks: %s",
            *(backend.alias, ", ".join(given["queues"]) or "all queues", ", ".join(backend.app.names()) or "none"),
            extra={"action": "worker_started"},
        )
        try:
            asyncio.run(_run(worker))
        except HeadraceError as error:
            raise CommandError(str(error)) from error
        if worker.needs_restart:
            log.warning(
                "exiting with code %d to be restarted: %s",
                *(EXIT_RESTART, worker.needs_restart),
                extra={"action": "worker_recycled"},
            )
            sys.exit(EXIT_RESTART)


async def _run(worker: AppWorker) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await worker.run_forever(stop)
