"""Destination that sends samples to Prometheus, or to any other receiver of remote write 1.0.

A record is an uncompressed `WriteRequest` with at most one sample per series. It is sent as several requests if it is
large, up to `lanes` of them at once. The exporter must have one worker, so a record is sent when all requests of the
record before it have been accepted. Therefore the samples of a series arrive one at a time and in the order of their
records, whatever the number of lanes, and repeating a record is harmless: a receiver accepts the newest sample of a
series again.

Responses:
- 2xx: accepted.
- 429, 5xx and no response: the record is sent again, not before the time in `Retry-After`.
- 401, 403, 404, 405 and redirects: the credentials or the URL are wrong. The record is kept and sent again. Redirects
  are not followed, because the request may contain credentials.
- Other 4xx: the receiver refuses a sample, for example because it has a newer one of the same series. Prometheus then
  stores nothing of the request, so the request is halved until the refused series are found, and all others are
  delivered. The record moves to the dead letters, and the refused samples are counted.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from headrace.export.destination import (
    PermanentSendError,
    RetryableSendError,
    SendBatch,
    SendError,
    TooLargeSendError,
)
from headrace.export.http_status import error_for_status, parse_retry_after
from headrace.export.remote_write_format import compress_request, split_series
from headrace.spool.record import NewRecord, SpoolRecord

PROTOCOL_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": "headrace",
}
MAX_RESPONSE_BYTES = 4096
MAX_REQUESTS_TO_ISOLATE = 256  # per refused request; what was not accepted by then counts as refused
FRUITLESS_REQUESTS = 31  # the same if nothing at all was accepted: all samples are probably too old
_WRONG_ENDPOINT = frozenset({404, 405})


@dataclass(frozen=True)
class RemoteWriteTarget:
    url: str = field(repr=False)  # may contain a user name and a password, sent as basic authentication
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout_s: float = 30.0
    max_samples: int = 2000  # per request
    lanes: int = 4  # requests of one record in progress at once


@dataclass(frozen=True)
class RequestResult:
    sent: int = 0
    refused: int = 0
    refusal: str = ""
    error: SendError | None = None  # the request must be repeated


class RemoteWriteDestination:
    name = "remote_write"
    dedup_window_blocks = None

    def __init__(self, target: RemoteWriteTarget) -> None:
        self._target = target
        parts = urlsplit(target.url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {**PROTOCOL_HEADERS, **_build_basic_auth(parts.username, parts.password), **target.headers}
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._lanes = ThreadPoolExecutor(target.lanes, thread_name_prefix="remote-write")
        self._lock = threading.Lock()
        self._samples = {"sent": 0, "refused": 0}

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        try:
            series = split_series(record.payload)
        except ValueError as error:
            raise PermanentSendError(f"Record {record.id} is not a valid write request: {error}.") from error
        size = self._target.max_samples
        requests = [series[start : start + size] for start in range(0, len(series), size)]
        return [SendBatch(requests, record.token)] if requests else ()

    def send(self, batch: SendBatch) -> None:
        requests: list[list[bytes]] = batch.body
        results = list(self._lanes.map(self.send_series, requests))
        for result in results:
            if result.error is not None:
                raise result.error
        refused, sent = sum(each.refused for each in results), sum(each.sent for each in results)
        with self._lock:
            self._samples["sent"] += sent
            self._samples["refused"] += refused
        if refused:
            reason = next(each.refusal for each in results if each.refused)
            raise PermanentSendError(
                f"{refused} of {refused + sent} samples were refused, the others were accepted. {reason}"
            )

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        return ()  # `send` splits what the receiver refuses, whatever the reason

    def close(self) -> None:
        self._lanes.shutdown(wait=False, cancel_futures=True)
        while self._idle:
            self._idle.pop().close()

    def count_samples(self) -> dict[str, int]:
        """Return the number of samples by outcome: sent, refused. Samples of a record that is sent again are counted
        when it succeeds."""
        with self._lock:
            return dict(self._samples)

    def send_series(self, series: Sequence[bytes]) -> RequestResult:
        """Send series; if the receiver refuses some of them, find these by halving and send the others."""
        parts, requests, fruitless, sent, refused, refusal = deque([series]), 0, 0, 0, 0, ""
        while parts:
            part = parts.popleft()
            if requests >= MAX_REQUESTS_TO_ISOLATE or (not sent and fruitless >= FRUITLESS_REQUESTS):
                refused += len(part)
                continue
            requests += 1
            error = self._post(compress_request(part))
            fruitless += isinstance(error, PermanentSendError)
            if error is None:
                sent += len(part)
            elif not isinstance(error, PermanentSendError | TooLargeSendError):
                return RequestResult(error=error)
            else:
                refusal, half = str(error), len(part) // 2
                if half:
                    parts += (part[:half], part[half:])
                else:
                    refused += len(part)
        return RequestResult(sent, refused, refusal)

    def _post(self, body: bytes) -> SendError | None:
        """Send one request. Return the error that its response means; None if it was accepted."""
        try:
            response, text = self._exchange(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind = "timeout" if isinstance(error, TimeoutError) else "unavailable"
            message = f"No response from {self._host}: {type(error).__name__}: {error}."
            return RetryableSendError(message, outcome_unknown=True, kind=kind)
        retry_after_s = parse_retry_after(response.headers["Retry-After"], datetime.now(UTC))
        if response.status in _WRONG_ENDPOINT or 300 <= response.status < 400:
            return RetryableSendError(
                f"{self._host} responded with status {response.status}: {text[:500]!r}. Correct remote_write.url;"
                " redirects are not followed.",
                retry_after_s=retry_after_s,
                kind="wrong_url",
            )
        return error_for_status(response.status, text, retry_after_s)

    def _exchange(self, body: bytes) -> tuple[http.client.HTTPResponse, str]:
        """Send one request and read the response. Repeat it once on a new connection if the receiver had closed the
        idle one."""
        connection = self._take_idle()
        if connection is not None:
            with suppress(ConnectionError):
                return self._request(connection, body)
        return self._request(self._connect(), body)

    def _request(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[http.client.HTTPResponse, str]:
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            text = response.read(MAX_RESPONSE_BYTES).decode(errors="replace")
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._idle.append(connection)
        else:  # there is more to read, or the receiver closes it
            connection.close()
        return response, text

    def _take_idle(self) -> http.client.HTTPConnection | None:
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = self._target.timeout_s
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)


def _build_basic_auth(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    credentials = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}
