"""Runner of an engine of the installed TensorRT, by Polygraphy."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence

import onnx

from onnxfq.data import Feed
from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.io.save import save
from onnxfq.interchange.polygraphy_json import inputs_json, read_results
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder
from onnxfq.targets.profiles import ShapeCount, cover_shapes
from onnxfq.targets.target import AnyModel, Values
from onnxfq.targets.tensorrt.tools.kit import TENSORS_FILE, polygraphy_tensors


def run_engine(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Run an engine of the installed TensorRT on the GPU by Polygraphy, in a separate process.

    Raises RuntimeLibraryError if either is missing or fails.
    """
    del threads
    rtx = _is_only_rtx()
    with scratch_folder() as folder:
        save(proto, folder / "model.onnx")
        (folder / "inputs.json").write_text(inputs_json(feeds), encoding="utf-8")
        count = ShapeCount()
        feeds = list(count.over(feeds))
        shapes = cover_shapes(proto, count, {})
        # Strongly typed by default from 11 on, and always for RTX; 10 needs the option.
        release = 11 if rtx else int(importlib.import_module("tensorrt").__version__.partition(".")[0])
        words = polygraphy_tensors(release, shapes, tensors)
        environment = os.environ | ({"POLYGRAPHY_USE_TENSORRT_RTX": "1"} if rtx else {})
        try:
            ended = subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise _missing("polygraphy") from None
        if ended.returncode:
            last = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
            reason = next((line for line in reversed(last) if "rror" in line), last[-1] if last else "")
            raise RuntimeLibraryError(
                f"TensorRT cannot run the model: {join_lines(reason)[:300]}; run layers11.sh of "
                "`onnxfq handoff` on a machine with a GPU and give its results as a file"
            )
        yield from read_results(folder / TENSORS_FILE)


def refuse_times(model: AnyModel, threads: int) -> Callable[[Feed], Values]:
    """Raise RuntimeLibraryError: TensorRT's own tool measures its time on the machine with the GPU."""
    raise RuntimeLibraryError(
        "TensorRT is timed on the machine with the GPU, and no other runtime tells its time; `onnxfq "
        "handoff` writes the trtexec command for it"
    )


def _is_only_rtx() -> bool:
    """Tell whether TensorRT for RTX replaces TensorRT. Raises RuntimeLibraryError without either."""
    if importlib.util.find_spec("tensorrt") is not None:
        return False
    if importlib.util.find_spec("tensorrt_rtx") is None:
        raise _missing("tensorrt")
    return True


def _missing(package: str) -> RuntimeLibraryError:
    return RuntimeLibraryError(
        f"package {package} is not installed, and it runs the model with TensorRT; install it, or run "
        "layers11.sh of `onnxfq handoff` elsewhere and give its results"
    )
