"""A server of commands for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_server import CommandServer, command_server


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    """One server, whose forks run all commands."""
    with command_server() as running:
        yield running
