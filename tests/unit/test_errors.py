"""Errors: default messages and former names."""

from __future__ import annotations

import pytest

from headrace import errors


def test_the_default_message_is_the_docstring_on_one_line() -> None:
    message = str(errors.DatabaseRestored())
    assert "\n" not in message
    assert message == " ".join((errors.DatabaseRestored.__doc__ or "").split())


@pytest.mark.parametrize(
    ("former", "current"), [("AnotherPipeline", "PipelineFenced"), ("NoSuchGroup", "UnknownGroup")]
)
def test_a_former_name_works_with_a_warning(former: str, current: str) -> None:
    with pytest.warns(DeprecationWarning, match=current):
        assert getattr(errors, former) is getattr(errors, current)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        getattr(errors, "Nothing")  # noqa: B009  (the type checker refuses the attribute)
