"""Lease that lets one pipeline at a time read the streams of a Valkey, wherever it runs.

Two pipelines with their own spools that read the same streams would count everything twice. The lease is a key in
Valkey: the pipeline that holds it reads, and it expires if its holder dies. The holder is identified by an id stored in
the pipeline's folder. Only one process can have the spool in this folder open, so a restarted pipeline continues at
once instead of waiting for its own lease to expire.

The id of the last reader is stored in Valkey without expiry: a pipeline that was replaced must not continue from its
old position, even if the lease is free again.
"""

from __future__ import annotations

import logging
import secrets
import threading
from pathlib import Path
from typing import cast

from headrace.errors import PipelineFenced, QueueUnavailable
from headrace.runtime.lease import RENEWALS
from headrace.valkey.connect import Valkey, translate_errors
from headrace.valkey.lease import ValkeyLease, script
from headrace.valkey.scripts import ScriptCall, run

log = logging.getLogger(__name__)

LEASE_KEY = "hr:pipeline:lease"
LAST_READER_KEY = "hr:pipeline:last"
LEASE_S = 15.0
RENEW_S = LEASE_S / RENEWALS


def load_owner_id(folder: Path) -> str:
    """Return the owner id of a pipeline folder; create it on first use."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "owner"
    if not file.exists():
        incomplete = file.with_suffix(".new")  # renamed when complete: an empty id would not be unique
        incomplete.write_text(secrets.token_hex(8))
        incomplete.rename(file)
    return file.read_text()


class PipelineLease(ValkeyLease):
    fenced = PipelineFenced

    def __init__(self, client: Valkey, owner: str) -> None:
        super().__init__(client, LEASE_KEY, LEASE_S, owner)
        self._is_recorded = False

    def acquire(self) -> bool:
        """Acquire or renew the lease. Return False also if another pipeline has read the streams since `record_reader`:
        it had the lease while this process was paused. Raises QueueUnavailable."""
        if not super().acquire():
            return False
        if self._is_recorded and self.find_other_reader() is not None:
            self.release()
            self.mark_lost()
            return False
        return True

    def wait(self, stop: threading.Event) -> bool:
        """Wait until this pipeline holds the lease. Return False if stopped before."""
        while not stop.is_set():
            try:
                if self.acquire():
                    return True
            except QueueUnavailable as error:
                log.warning("%s", error, extra={"action": "lease_unknown"})
            stop.wait(1.0)
        return False

    def find_other_reader(self) -> str | None:
        """Return the owner id that read these streams last; None if it was this pipeline or there was none."""
        with translate_errors():
            last = cast(bytes | None, self._client.get(LAST_READER_KEY))
        return None if last is None or last.decode() == self.holder else last.decode()

    def record_reader(self) -> None:
        """Record this pipeline as the one that reads the streams from now on."""
        run(self._client, ScriptCall(script("record_holder"), [LAST_READER_KEY], [self.holder], bool))
        self._is_recorded = True
