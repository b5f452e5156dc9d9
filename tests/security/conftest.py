"""A Valkey with ACL rules for the tests of roles and of `headrace doctor --security`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.acl_server import AclValkey
from tests.security.servers import started


@pytest.fixture(scope="module")
def module_acl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclValkey]:
    folder = tmp_path_factory.mktemp("acl")
    with started(AclValkey(folder / "data", folder / "log")) as server:
        yield server


@pytest.fixture
def acl_server(module_acl_server: AclValkey) -> Iterator[AclValkey]:
    """Yield the server of this module, without keys and with the administrator as its only user."""
    module_acl_server.reset()
    yield module_acl_server
    module_acl_server.reset()
