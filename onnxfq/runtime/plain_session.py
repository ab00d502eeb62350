"""Sessions as users of ONNX Runtime open them on a CPU: all optimizations, nothing kept back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.errors import ModelError
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.external.weightless import read_structure, split_weights
from onnxfq.runtime.custom_ops import register_libraries
from onnxfq.runtime.ort import keep_from_ending, new_options, onnxruntime, open_inference_session
from onnxfq.runtime.providers import CPU_PROVIDER
from onnxfq.runtime.session import run_fault
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import room_for_scratch, scratch_folder

_PROFILED_RUNS = 10
_NODE_TIME = "_kernel_time"
"""End of the name of an event that has the time of a node (onnxruntime 1.31.1)."""


def open_plain_session(
    model: onnx.ModelProto | Path, threads: int = 0, *, wide_sums: bool = False
) -> Callable[[Feed], Mapping[str, NDArray[Any]]]:
    """Return a function from a feed to the outputs of `model`, in a session with default optimizations.

    Args:
        model: a ModelProto, or the path of a model.
        threads: of the session; 0 for its default, one per core.
        wide_sums: whether int8 products are summed without saturation on processors without VNNI too. It
            makes another graph on all others: ask for it where sums saturate.

    Raises ModelError if ONNX Runtime cannot load the model; the function raises DataError if a run fails.
    """
    options = new_options(threads)
    if wide_sums:
        options.add_session_config_entry("session.x64quantprecision", "1")
    return as_function(_open(model, options))


def profile_plain_session(
    model: onnx.ModelProto | Path, threads: int, feed: Feed
) -> dict[tuple[str, str], float]:
    """Return the seconds of a run by operator and node, as ONNX Runtime's own profile has them.

    Nodes are those that it executes: fused ones, and those that it adds. Raises as `open_plain_session`.
    """
    options = new_options(threads)
    with scratch_folder() as folder:
        options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
        session = _open(model, options)
        for _ in range(_PROFILED_RUNS):
            _run(session, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        name = event["name"]
        if event.get("cat") == "Node" and name.endswith(_NODE_TIME):
            node = event["args"]["op_name"], name.removesuffix(_NODE_TIME)
            seconds[node] += event["dur"] / 1e6 / _PROFILED_RUNS
    return dict(seconds)


def _open(model: onnx.ModelProto | Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    light = read_structure(model)
    register_libraries(options, light)
    with scratch_folder() as folder:
        content: str | bytes = str(model)
        if isinstance(model, onnx.ModelProto) and any(map(is_external, model.graph.initializer)):
            with room_for_scratch():
                onnx.save(split_weights(model, folder / "weights"), folder / "model.onnx")
            content = str(folder / "model.onnx")
        elif isinstance(model, onnx.ModelProto):
            content = model.SerializeToString()
        try:
            return open_inference_session(
                content, options, providers=[CPU_PROVIDER], **keep_from_ending(light)
            )
        except Exception as error:  # onnxruntime raises its own classes, one per status code
            raise ModelError(
                "onnxruntime cannot load the model with its default optimizations: "
                f"{join_lines(error)[:300]}; set ORT_ENABLE_BASIC in its session"
            ) from None


def as_function(
    session: onnxruntime.InferenceSession,
) -> Callable[[Feed], Mapping[str, NDArray[Any]]]:
    """Return a function from a feed to the outputs of a session, which raises DataError if a run fails."""
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, _run(session, feed), strict=True))


def _run(session: onnxruntime.InferenceSession, feed: Feed) -> list[Any]:
    try:
        return list(session.run(None, feed))
    except Exception as error:  # onnxruntime raises its own classes, one per status code
        raise run_fault("cpu", feed, error) from None
