"""Who computes: each runner gives the wanted tensors of a model for each feed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.errors import DataError, RuntimeLibraryError, nearest
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import with_outputs
from onnxfq.passes.integer_matmul import integer_products
from onnxfq.runtime.session import Session
from onnxfq.support.records import one_line
from onnxfq.support.temporary import scratch_folder
from onnxfq.targets.tensorrt.builder.profiles import covering, profiles
from onnxfq.targets.tensorrt.tools.commands import TENSORS_FILE, polygraphy_tensors
from onnxfq.targets.tensorrt.tools.polygraphy_json import inputs_json, read_results

Values = dict[str, NDArray[Any]]
Runner = Callable[[onnx.ModelProto, Sequence[Feed], Sequence[str], int], Iterator[Values]]
"""Takes a model, feeds, names of tensors and a number of threads."""


def onnxruntime(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Q and DQ as their definition says, every product in float32."""
    session = Session(with_outputs(proto, tensors), threads, exact=True)
    for feed in feeds:
        yield dict(zip(tensors, session.run(feed, tensors), strict=True))


def integer(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """As `onnxruntime`, but int8 products are summed in whole numbers, as fused kernels do."""
    return onnxruntime(integer_products(proto).proto, feeds, tensors, threads)


def tensorrt(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """An engine of the installed TensorRT on the GPU, run by Polygraphy in a process of its own.

    Raises RuntimeLibraryError when one of them is missing or fails.
    """
    del threads
    rtx = _only_rtx()
    with scratch_folder() as folder:
        save(proto, folder / "model.onnx")
        (folder / "inputs.json").write_text(inputs_json(feeds), encoding="utf-8")
        shapes = covering(profiles(proto, {}), feeds)
        # Strongly typed by itself from 11 on, and always for RTX; 10 is told.
        release = 11 if rtx else _release()
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
                f"TensorRT cannot run the model: {one_line(reason)[:300]}; run layers11.sh of "
                "`onnxfq handoff` on a machine with a GPU and give its results as a file"
            )
        yield from read_results(folder / TENSORS_FILE)


def saved(path: Path) -> Runner:
    """Return a runner that reads what Polygraphy saved: `polygraphy run --save-outputs`.

    Running it raises DataError for a file without such results, or with another number of feeds.
    """

    def run(
        proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
    ) -> Iterator[Values]:
        del proto, tensors, threads
        found = read_results(path)
        if len(found) != len(feeds):
            raise DataError(
                f"{path} has results for {len(found)} feeds, the data has {len(feeds)}; give the data and "
                "the --batch that it was made with"
            )
        yield from found

    return run


RUNNERS: dict[str, Runner] = {"onnxruntime": onnxruntime, "integer": integer, "tensorrt": tensorrt}


def runner(name: str) -> Runner:
    """Return the runner called `name`, or that of a file. Raises DataError for neither."""
    if name in RUNNERS:
        return RUNNERS[name]
    if Path(name).suffix == ".json":
        return saved(Path(name))
    raise DataError(
        f"nothing is called {name!r} that could run the model{nearest(name, RUNNERS)}; or give a .json file "
        "of `polygraphy run --save-outputs`"
    )


def _only_rtx() -> bool:
    """Tell whether TensorRT for RTX stands in for TensorRT. Raises RuntimeLibraryError without either."""
    if importlib.util.find_spec("tensorrt") is not None:
        return False
    if importlib.util.find_spec("tensorrt_rtx") is None:
        raise _missing("tensorrt")
    return True


def _release() -> int:
    version = str(importlib.import_module("tensorrt").__version__)
    return int(version.partition(".")[0])


def _missing(package: str) -> RuntimeLibraryError:
    return RuntimeLibraryError(
        f"package {package} is not installed, which runs the model with TensorRT; install it, or run "
        "layers11.sh of `onnxfq handoff` where it is and give its results as a file"
    )
