"""Run Python in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_apart(*words: str | Path, folder: Path | None = None, **environment: str) -> str:
    """Return what `python WORDS` prints in `folder`; a failure shows the end of its errors."""
    command, changed = [sys.executable, *map(str, words)], os.environ | environment
    done = subprocess.run(
        command, cwd=folder, env=changed, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
