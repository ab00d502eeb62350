"""ONNX Runtime: its single import, without telemetry, and its sessions, with threads that find room.

Importing onnxruntime 1.31 writes a telemetry store into the user's cache folder. A quantization tool must
leave no files there, so telemetry is switched off at once; versions without the switch have no telemetry.
"""

from __future__ import annotations

import logging
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as onnxruntime

from onnxfq.graph.body_reads import find_moved_reads
from onnxfq.graph.normalize.decided_branches import with_branches
from onnxfq.runtime.parallel_runs import count_cores

if hasattr(onnxruntime, "disable_telemetry_events"):
    onnxruntime.disable_telemetry_events()

log = logging.getLogger(__name__)

_THREAD_BYTES, _SPARE_BYTES = 16 << 20, 256 << 20
"""Memory of a thread, twice the usual stack, and what a session allocates before it starts its threads."""


ONLY_FATAL = 4
"""Level of ONNX Runtime's log."""


def new_options(threads: int = 0) -> onnxruntime.SessionOptions:
    """Return options of a session that logs nothing, with so many threads; 0 for one per core."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ONLY_FATAL
    options.intra_op_num_threads = threads
    return options


def open_inference_session(
    content: bytes | str, options: onnxruntime.SessionOptions, **settings: Any
) -> onnxruntime.InferenceSession:
    """Return a session of a model, given as bytes or as a path, with the settings of `InferenceSession`.

    It runs on one thread, after a note, where a limit of the process leaves too little room for the others.
    onnxruntime 1.31 never returns if the system gives some threads of its pool and refuses another.
    """
    # The caller is one thread of the pool.
    started = (options.intra_op_num_threads or count_cores()) - 1
    room = _free_bytes() >= started * _THREAD_BYTES + _SPARE_BYTES
    if started and not (room and _can_start(started)):
        _note(started + 1)
        options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, **settings)


def keep_from_ending(proto: onnx.ModelProto) -> dict[str, Any]:
    """Return the settings of a session that loads `proto`, where the usual ones would end the process."""
    reads = find_moved_reads(with_branches(proto))
    if not reads:
        return {}
    log.warning(
        f"tensor {reads[0].move.output[0]!r} is behind a pair and a {reads[0].move.op_type}, and a body "
        "reads it: ONNX Runtime ends a process that loads this with its optimizations; here it runs without "
        "QDQPropagationTransformer"
    )
    return {"disabled_optimizers": ["QDQPropagationTransformer"]}


@cache
def _note(threads: int) -> None:
    """Say it once."""
    log.warning(
        f"onnxruntime runs on 1 thread instead of {threads}: the limits of this process (`ulimit -v`, `-d`, "
        "`-u`) leave no room for more"
    )


def _free_bytes() -> float:
    """Return what this process may still allocate; infinity where nothing limits it, or not on Linux."""
    if sys.platform != "linux":
        return float("inf")
    import resource  # POSIX only

    limits = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    free = [float("inf")]
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        most = resource.getrlimit(limits[name])[0] if name in limits else resource.RLIM_INFINITY
        if most != resource.RLIM_INFINITY:
            free.append(most - 1024 * int(rest.split()[0]))
    return min(free)


def _can_start(threads: int) -> bool:
    """Tell whether that many threads can run at a time: users and containers have limits of their number."""
    end = threading.Event()
    running: list[threading.Thread] = []
    try:
        for _ in range(threads):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            running.append(thread)
    except RuntimeError:
        return False
    finally:
        end.set()
        for thread in running:
            thread.join()
    return True
