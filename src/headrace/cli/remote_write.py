"""Builds the options of the remote write to Prometheus from the settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from headrace.cli.spool_options import build_exporter_options, build_spool_options
from headrace.export.remote_write import RemoteWriteTarget
from headrace.pipeline.remote_write import RemoteWriteOptions
from headrace.settings import Settings
from headrace.spool.options import SpoolOptions

FLUSH_S = 1.0  # samples not older than this are lost by kill -9; the next start repairs what they said


def find_remote_write_path(settings: Settings) -> Path:
    return settings.remote_write.path or settings.embedded.data_dir / "remote_write"


def build_remote_write_options(settings: Settings) -> RemoteWriteOptions | None:
    """Return the options; None if no URL is set."""
    chosen = settings.remote_write
    if (target := build_remote_write_target(settings)) is None:
        return None
    return RemoteWriteOptions(
        target=target,
        spool=build_remote_write_spool(settings),
        exporter=build_exporter_options(settings, clickhouse=False),
        labels=_split_pairs(chosen.labels, "="),
        repeat_s=chosen.repeat,
    )


def build_remote_write_target(settings: Settings) -> RemoteWriteTarget | None:
    chosen = settings.remote_write
    if chosen.url is None:
        return None
    token = {} if chosen.bearer_token is None else {"Authorization": f"Bearer {chosen.bearer_token}"}
    return RemoteWriteTarget(
        url=chosen.url,
        headers={**token, **_split_pairs(chosen.headers, ":")},
        timeout_s=chosen.timeout,
        max_samples=chosen.max_samples,
        lanes=chosen.lanes,
    )


def build_remote_write_spool(settings: Settings) -> SpoolOptions:
    common = build_spool_options(settings, find_remote_write_path(settings))
    return replace(
        common,
        max_bytes=settings.remote_write.max_bytes,
        full_behavior="drop_oldest",
        block_timeout=0.0,
        stale_flush=min(common.stale_flush, FLUSH_S),
    )


def _split_pairs(texts: Iterable[str], separator: str) -> dict[str, str]:
    pairs = (text.partition(separator) for text in texts)
    return {name.strip(): value.strip() for name, _, value in pairs}
