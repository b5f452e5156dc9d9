"""The queue against a plain Python model of the truth, step by step."""

import pytest

pytest.register_assert_rewrite(
    "tests.model.valkey_contents",
    "tests.model.truth",
    "tests.model.machine",
    "tests.model.dying",
    "tests.model.tiers_contents",
    "tests.model.tiers_truth",
    "tests.model.tiers_machine",
    "tests.model.stepping",
)
