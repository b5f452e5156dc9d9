"""A plugin of pytest: the fixtures `headrace_jobs` and `headrace_server`.

Every run of pytest imports this module, so it imports nothing else before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace
    from headrace.testing.recorder import Recorder

READY_S = 60.0


@pytest.fixture
def headrace_app() -> Headrace:
    """The app under test. Define this fixture in `conftest.py`."""
    pytest.fail(
        "The fixture `headrace_jobs` needs your app. Define a fixture `headrace_app` in conftest.py that returns it.",
        pytrace=False,
    )


@pytest.fixture
def headrace_jobs(headrace_app: Headrace) -> Iterator[Recorder]:
    """Record the jobs of the app instead of sending them to servers; see `Headrace.testing`."""
    with headrace_app.testing() as jobs:
        yield jobs


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Valkey in a temporary directory, for the whole run, and return its URL. Use it with `Headrace(url)` and
    `await app.worker().run_until_idle()`. Needs the extra `embedded`."""
    from headrace.embedded.valkey import EmbeddedValkey
    from headrace.errors import EmbeddedError

    class TestValkey(EmbeddedValkey):
        rules = "+@all"  # a test may empty the server

    folder = tmp_path_factory.mktemp("headrace-valkey")
    server = TestValkey(folder / "data", folder / "log", extra=("--appendfsync", "no"))
    try:
        server.start()
    except (EmbeddedError, ImportError) as error:
        pytest.fail(
            "The fixture `headrace_server` needs a Valkey server. Install the extra: pip install 'headrace[embedded]'. "
            f"({error})",
            pytrace=False,
        )
    try:
        server.wait_ready(READY_S)
        yield server.url
    finally:
        server.stop()
