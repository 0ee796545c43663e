"""The address of the server."""

from __future__ import annotations

import pytest

from fileq.core.errors import ConfigError
from fileq.server.role import listening


def test_an_address_that_can_not_be_resolved_is_not_called_a_problem_of_the_port() -> None:
    with pytest.raises(
        ConfigError, match=r"^server\.bind is '256\.0\.0\.1', which is not an address of this machine: "
    ):
        listening("256.0.0.1", 0)
