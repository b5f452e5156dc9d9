"""The error of an integration whose library is not installed."""

from __future__ import annotations

from headrace.errors import MissingExtra


def make_missing_extra(error: ModuleNotFoundError, extra: str) -> MissingExtra:
    """Return the error to raise instead of `error`, with the command that installs what is missing."""
    return MissingExtra(
        f"headrace.contrib.{extra} needs the Python package {error.name!r}, which is not installed. Install it with "
        f"pip install 'headrace[{extra}]'."
    )
