"""One job in the process of one tool: counts sessions, measures costs, and writes what the tool says.

Its folder has `model.onnx`, `feeds.npz` and, if the job needs classes, `labels.npy`. This file needs NumPy
and onnxruntime only, so that it runs in the environment of every tool. Each session gets one thread, or the
number of the option `threads`.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

sys.path.append(str(Path(__file__).resolve().parents[1]))

from timing import peak_bytes  # noqa: E402  (its folder was just added)

Feed = dict[str, np.ndarray]
Task = Callable[..., dict[str, Any]]
"""Called with the folder and the options of the job; returns what belongs into the result."""

sessions = 0


def count_sessions(threads: int) -> None:
    """Count the sessions that this process creates, and give each this number of threads."""
    create = onnxruntime.InferenceSession.__init__

    def counted(self: Any, path_or_bytes: Any, sess_options: Any = None, *rest: Any, **more: Any) -> None:
        global sessions
        sessions += 1
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = threads
        create(self, path_or_bytes, sess_options, *rest, **more)

    onnxruntime.InferenceSession.__init__ = counted


def read_feeds(folder: Path) -> list[Feed]:
    """Return the feeds of the job in their order."""
    with np.load(folder / "feeds.npz") as held:
        feeds: dict[int, Feed] = {}
        for key in held.files:
            place, _, name = key.partition("|")
            feeds.setdefault(int(place), {})[name] = held[key]
    return [feeds[place] for place in sorted(feeds)]


def write_feeds(folder: Path, feeds: list[Feed]) -> None:
    """Write feeds for `read_feeds`."""
    held = {f"{place}|{name}": value for place, feed in enumerate(feeds) for name, value in feed.items()}
    np.savez(folder / "feeds.npz", **held)


def top1(session: Any, feeds: list[Feed], labels: np.ndarray) -> float:
    """Return the share of rows whose largest output is the class of the row."""
    found = np.concatenate([session.run(None, feed)[0].argmax(-1) for feed in feeds])
    return float((found == labels[: len(found)]).mean())


def sqnr_db(reference: list[np.ndarray], got: list[np.ndarray]) -> float:
    """Return the signal to quantization noise of first outputs in dB."""
    signal = sum(float(np.square(a, dtype=np.float64).sum()) for a in reference)
    pairs = zip(reference, got, strict=True)
    noise = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in pairs)
    return 10 * float(np.log10(signal / max(noise, 1e-30)))


def work(tasks: Mapping[str, Task]) -> None:
    """Run the task of the command line, `TASK FOLDER OPTIONS-AS-JSON`, and print its result as JSON.

    A tool that fails gives {"error": its message}.
    """
    task, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    count_sessions(options.pop("threads", 1))
    start, processor = time.perf_counter(), time.process_time()
    try:
        result = tasks[task](folder, **options)
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        result = {"error": f"{type(error).__name__}: {lines[0][:160]}"}
    result |= {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
    print("\n" + json.dumps(result | {"sessions": sessions, "peak": peak_bytes()}))
