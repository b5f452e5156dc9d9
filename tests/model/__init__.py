"""The queue against a plain Python model of the truth, step by step."""

import pytest

pytest.register_assert_rewrite(
    "tests.model.sight",
    "tests.model.truth",
    "tests.model.machine",
    "tests.model.dying",
    "tests.model.tiers_sight",
    "tests.model.tiers_truth",
    "tests.model.tiers_machine",
    "tests.model.stepping",
)
