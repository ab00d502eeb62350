"""Python processes that a command starts: none of them runs a file that lies in the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HOME = str(Path(__file__).parents[2])
"""The folder with this package, which counts even if it is the working folder."""


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the words that run `code` in this Python, without the working folder on its path of modules."""
    safe = sys.version_info >= (3, 11)
    how = ["-P", "-c", code] if safe else ["-c", f"import sys; del sys.path[0]; {code}"]
    return [sys.executable, *how, *arguments]


def python_environment() -> dict[str, str]:
    """Return the variables with which a Python process finds the modules that this one finds.

    The working folder is left out, which an empty entry stands for too.
    """
    here = os.path.realpath(os.getcwd())
    folders = [one for one in sys.path if one and (one == _HOME or os.path.realpath(one) != here)]
    return {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}
