"""Values of the built-in rules about the pipeline."""

from __future__ import annotations

import pytest

from headrace.alerts.meta_rules import PIPELINE, compute_meta_rule_values

MAX_LAG_MS = 120_000


@pytest.mark.parametrize(
    ("answers", "lag_ms", "watched_ms", "expected"),
    [
        (True, 5_000, 0, {"": 0.0}),
        (True, MAX_LAG_MS + 1, 0, {"": 1.0}),
        (True, None, 0, None),  # it has never written, and may be about to
        (True, None, MAX_LAG_MS, None),
        (True, None, MAX_LAG_MS + 1, {"": 1.0}),
        (False, None, MAX_LAG_MS + 1, None),
        (False, 5_000, 0, None),
    ],
)
def test_a_pipeline_that_has_never_written_is_given_the_largest_lag(
    answers: bool, lag_ms: int | None, watched_ms: int, expected: dict[str, float] | None
) -> None:
    assert compute_meta_rule_values(answers, lag_ms, MAX_LAG_MS, 0, watched_ms, (), ())[PIPELINE.id] == expected
