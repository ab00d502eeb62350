"""Kills commands that write a folder at random moments, and looks at what is left; minutes.

    python tests/slow/kill_commands.py [--kills 100]

Not a pytest. `quantize` with artifacts and a report, and `handoff`, half of the kills each. After a kill the
folder is absent or complete, and the next run removes what was left beside it; the exit code is 1 when not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "networks"))
from builders import conv_relu, feed_for, qdq_of, stage  # noqa: E402  of the tests

COMMANDS = {
    "quantize": "quantize m.onnx --data d.npz -o out.onnx --report out.html --artifacts made",
    "handoff": "handoff q.onnx --data d.npz -o made",
}


def start(line: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in `folder`, in its own process group."""
    words = [sys.executable, "-m", "onnxfq", *line.split()]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, cwd=folder, start_new_session=True, **quiet)


def kill_often(name: str, folder: Path, kills: int, rng: random.Random) -> int:
    """Kill one command `kills` times and run it once more; return the number of faults."""
    made, faults, late = folder / "made", 0, 0
    for _ in range(2):  # the first run reads files that are cached later
        shutil.rmtree(made, ignore_errors=True)
        begun = time.monotonic()
        if start(COMMANDS[name], folder).wait():
            sys.exit(f"{name} fails without a kill")
        seconds = time.monotonic() - begun
    whole = {path.relative_to(made) for path in made.rglob("*")}
    for _ in range(kills):
        shutil.rmtree(made, ignore_errors=True)
        run = start(COMMANDS[name], folder)
        time.sleep(seconds * (0.5 + 0.5 * rng.random()))  # files are written near the end
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        found = {path.relative_to(made) for path in made.rglob("*")}
        late += bool(found)
        if found not in (set(), whole):
            faults += 1
            print(f"{name}: {len(found)} of {len(whole)} files")
    shutil.rmtree(made, ignore_errors=True)
    start(COMMANDS[name], folder).wait()
    left = [path.name for path in folder.iterdir() if ".part" in path.name]
    print(f"{name}: {kills} kills, {late} after the folder was there, left beside it: {left or 'nothing'}")
    return faults + len(left)


def main() -> int:
    """Try all commands; 1 for anything partial or left over."""
    parser = argparse.ArgumentParser(description="Kill commands at random moments.")
    parser.add_argument("--kills", type=int, default=100)
    kills, rng, faults = parser.parse_args().kills, random.Random(0), 0
    for name in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(conv_relu(), Path(folder, "m.onnx"))
            onnx.save(qdq_of(stage(conv_relu())), Path(folder, "q.onnx"))
            np.savez(Path(folder, "d.npz"), **feed_for(conv_relu()))
            faults += kill_often(name, Path(folder), kills // len(COMMANDS), rng)
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
