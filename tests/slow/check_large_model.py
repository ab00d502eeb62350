"""Quantizes a model over 2 GB that it makes itself, and prints time and memory; minutes, and 9 GB of disk.

    python tests/slow/check_large_model.py [RECIPE ...] [--gigabytes 2.6] [--kills 10] [--folder FOLDER]

Not a pytest. Checks that the input files stay as they are, that onnxruntime reads and runs the output, that
nothing else is left, that memory is at most 1.3 times the model, that every command works within its limit
of memory, also on a Q/DQ model that is one file over 128 MB with scales over 1 KB, and that a run that is
killed, at as many random moments as --kills says, leaves nothing; the exit code is 1 when not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from onnxfq.quantizing.pipeline import quantize

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))

from networks.matmul_chain import LAYERS, write_matmul_chain

MOST = 1.3
"""Memory in times the size of the model."""


def digest(folder: Path) -> dict[str, str]:
    """Return the hash of every file."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            whole = hashlib.sha256()
            while part := stream.read(1 << 24):
                whole.update(part)
            found[path.name] = whole.hexdigest()
    return found


class Memory(threading.Thread):
    """Watches what this process itself allocates; pages of mapped files are the system's to drop.

    That it does drop them is seen where memory is limited to as much, page cache included, as with cgroups.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.start()

    def run(self) -> None:
        """Look ten times a second."""
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            self.peak = max(self.peak, *(int(x.split()[1]) for x in lines if x.startswith("RssAnon")))
            time.sleep(0.1)


def check(recipe: str, gigabytes: float, folder: Path) -> bool:
    """Quantize with one recipe and print the figures."""
    source, target = folder / "in", folder / "out"
    source.mkdir()
    target.mkdir()
    path, width = write_matmul_chain(source, gigabytes)
    size = (source / "m.onnx.data").stat().st_size
    before = digest(source)
    feeds = [{"h0": np.random.default_rng(n).normal(size=(1, width)).astype(np.float32)} for n in (0, 1)]
    memory, start = Memory(), time.perf_counter()
    result = quantize(path, feeds, target / "q.onnx", recipe=recipe)
    seconds = time.perf_counter() - start
    ratio = memory.peak * 1024 / size
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # In any other order onnxruntime dequantizes all weights first and holds them.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(target / "q.onnx", options, providers=["CPUExecutionProvider"])
    right = [
        digest(source) == before,
        len(list(target.iterdir())) <= 2,
        bool(np.isfinite(session.run(None, feeds[0])[0]).all()),
        onnx.load(target / "q.onnx", load_external_data=False).graph.output[0].name == f"h{LAYERS}",
        ratio <= MOST,
    ]
    stages = ", ".join(f"{name} {value:.0f}" for name, value in result.seconds.items())
    print(f"{recipe}: {size / 1e9:.2f} GB, {seconds:.0f} s ({stages}), {ratio:.1f} times its memory, {right}")
    return all(right)


COMMANDS = {
    "quantize in/m.onnx --data d.npz -o q.onnx": MOST,
    "check q.onnx": MOST,
    "inspect q.onnx": MOST,
    "diff q.onnx q.onnx": MOST,
    "evaluate in/m.onnx q.onnx --data d.npz": MOST,
    "compare q.onnx --data d.npz": MOST,
    "handoff q.onnx -o kit --data d.npz": MOST,
    "convert q.onnx -o c.onnx --data d.npz": 6.0,  # it has the weights as integers and floats, several times
}
"""Every command, and the memory that it may take in times the float model."""


def check_commands(gigabytes: float, folder: Path) -> bool:
    """Run every command with its limit of memory, and print how it ended.

    RLIMIT_DATA counts what a process allocates, touched or not; mapped files do not count.
    """
    (folder / "in").mkdir()
    path, width = write_matmul_chain(folder / "in", gigabytes)
    size = (folder / "in" / "m.onnx.data").stat().st_size
    np.savez(folder / "d.npz", h0=np.random.default_rng(0).normal(size=(4, width)).astype(np.float32))
    right = []
    for line, times in COMMANDS.items():
        most = int(times * size)
        start = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "onnxfq", *line.split()],
            cwd=folder,
            capture_output=True,
            text=True,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_DATA, (most, most)),
        )
        seconds = time.perf_counter() - start
        right.append(ended.returncode == 0)
        said = ended.stderr.splitlines()[-1] if ended.stderr and not right[-1] else "works"
        print(f"{line.split()[0]}: {said} in {most / 1e9:.1f} GB and {seconds:.0f} s", flush=True)
    size = (folder / "q.onnx").stat().st_size
    tensors = onnx.load(folder / "q.onnx", load_external_data=False).graph.initializer
    scales = max(len(t.raw_data) for t in tensors if t.data_type == TensorProto.FLOAT)
    print(f"Q/DQ file of {size / 1e6:.0f} MB with a scale of {scales / 1e3:.0f} kB")
    return all(right) and size > 128 << 20 and scales > 1024


def check_kills(recipe: str, gigabytes: float, kills: int, folder: Path) -> bool:
    """Kill runs at random moments; what they leave must be gone, at the latest with the next run."""
    source, target, place = (folder / name for name in ("in", "out", "tmp"))
    for made in (source, target, place):
        made.mkdir()
    path, width = write_matmul_chain(source, gigabytes)
    np.savez(folder / "data.npz", h0=np.random.default_rng(0).normal(size=(8, width)).astype(np.float32))
    command = [sys.executable, "-m", "onnxfq", "quantize", path, "--data", folder / "data.npz"]
    command += ["--batch", "1", "--recipe", recipe, "-o", target / "q.onnx", "--quiet"]
    environment = {**os.environ, "TMPDIR": str(place)}
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    whole = digest(target)
    right, drawn = [], random.Random(0)
    for number in range(kills):
        if number % 2:  # over an output that is there, and where there is none
            for written in target.iterdir():
                written.unlink()
        before = digest(target)
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        moment = drawn.uniform(0, 1.05 * seconds)
        time.sleep(moment)
        run.kill()
        run.wait()
        left = digest(target)
        right.append(left in (before, whole))
        found = "nothing" if right[-1] else sorted(left)
        print(f"killed after {moment:.1f} of {seconds:.1f} s: {found} left")
    subprocess.run(command, env=environment, check=True, capture_output=True)
    right += [digest(target) == whole, not list(place.glob("onnxfq-*"))]
    print(f"{recipe}: {kills} times killed, {right}")
    return all(right)


def main() -> int:
    """Check every recipe asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=["tensorrt-int8", "tensorrt-int4"])
    parser.add_argument("--gigabytes", type=float, default=2.6)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    right = []
    for recipe in asked.recipes:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            right.append(check(recipe, asked.gigabytes, Path(folder)))
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        right.append(check_commands(asked.gigabytes, Path(folder)))
    if asked.kills:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            right.append(check_kills(asked.recipes[0], asked.gigabytes, asked.kills, Path(folder)))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
