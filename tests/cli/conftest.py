"""A server of commands for the tests of this folder, and sound inputs of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_server import CommandServer, command_server
from fuzzed_inputs import write_inputs


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    """One server, whose forks run all commands."""
    with command_server() as running:
        yield running


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, server: CommandServer) -> Path:
    """Sound inputs of every command, to be copied."""
    folder = tmp_path_factory.mktemp("sound") / "inputs"
    write_inputs("shared_weight", folder, server)
    return folder
