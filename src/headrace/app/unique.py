"""Ids by which equal jobs are accepted once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from headrace.app.codec import encode_sorted
from headrace.app.duration import Seconds, to_ms
from headrace.app.task import JobSpec


def unique_id(job: JobSpec[Any], *, by: Sequence[str] | None = None, per: Seconds | None = None) -> str:
    """Return an id that equal jobs share, to be used with `using(id=...)`.

    Jobs are equal if they have the same task and arguments; with `by` only these arguments count. With `per` they are
    equal only within the same period, counted from 1970, for example one hour. An id is free again when its job is done
    and `queue.keep_done` has passed, or when its dead job is removed. An argument that is left out is not equal to one
    that has the value of its default. Raises KeyError for an argument in `by` that the job does not have, and
    ValueError for a period of less than a millisecond."""
    if per is not None and to_ms(per) <= 0:
        raise ValueError(f"`per` is {per!r}. Use a positive duration of at least a millisecond.")
    arguments = job.arguments if by is None else {name: job.arguments[name] for name in by}
    try:
        chosen = encode_sorted(arguments)
    except (TypeError, ValueError):  # only the codec of the task supports the types
        chosen = job.task.prepare_codec().encode_result(dict(sorted(arguments.items())))
    period = "" if per is None else str(time.time_ns() // 1_000_000 // to_ms(per))
    digest = hashlib.blake2b(b"\0".join((job.task.name.encode(), chosen, period.encode())), digest_size=16).hexdigest()
    return f"{job.task.name[:80]}-{digest}"
