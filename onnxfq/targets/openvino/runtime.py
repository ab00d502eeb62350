"""OpenVINO on this machine's CPU: models are read, compiled and run; the only importer of openvino."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.errors import DataError, RuntimeLibraryError
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.external.weightless import read_structure
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import output_names, with_outputs
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder
from onnxfq.targets.target import AnyModel, Values

DEVICE = "CPU"
_PROFILED_RUNS = 10
_PLACE = re.compile(r"^(Exception from|Check '|FrontEnd API failed|Model wasn't|Summary:|To facilitate)|^$")


def load_library() -> Any:
    """Return the module openvino. Raises RuntimeLibraryError with the remedy if it is missing."""
    try:
        import openvino
    except ImportError:
        raise RuntimeLibraryError(
            "package openvino is not installed, and it runs the model with OpenVINO; pip install "
            '"onnxfq[openvino]"'
        ) from None
    # The first array that OpenVINO makes looks NumPy up. Two threads that do so at a time never return: one
    # has C++'s lock of the static variable and wants the interpreter's, the other the reverse (2026.4.1).
    openvino.Tensor(np.zeros(1, np.float32)).data.sum()
    return openvino


def version_of(library: Any) -> str:
    """Return the version of the module openvino without its build number, such as 2026.4.1."""
    return str(library.__version__).partition("-")[0]


def name_release() -> str:
    """Return the name and version of OpenVINO. Raises RuntimeLibraryError as `load_library`."""
    return f"OpenVINO {version_of(load_library())}"


def name_half_type() -> str:
    """Return the 16-bit type that OpenVINO takes for the float part on this processor; empty for none."""
    found = load_library().Core().get_property(DEVICE, "INFERENCE_PRECISION_HINT").get_type_name()
    return "" if found == "f32" else str(found)


def compile_model(model: AnyModel, threads: int = 0, precision: str = "f32", profiled: bool = False) -> Any:
    """Return `model` compiled for the CPU.

    Args:
        model: the model, or its path.
        threads: of OpenVINO, 0 for one per core.
        precision: of the float part; empty for OpenVINO's choice, bf16 where the processor has it.
        profiled: whether requests count the time of each node.

    Raises RuntimeLibraryError if OpenVINO is missing, or cannot read or compile the model.
    """
    library = load_library()
    options = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERF_COUNT": profiled,
    }
    given = {name: value for name, value in options.items() if value}
    core, does = library.Core(), "read"
    with scratch_folder() as folder:
        try:
            network = core.read_model(_as_source(model, folder))
            does = "compile"
            return core.compile_model(network, DEVICE, given)
        except RuntimeError as error:  # OpenVINO has no classes for its faults
            raise RuntimeLibraryError(
                f"OpenVINO {version_of(library)} cannot {does} the model: {_last_words(error)}; use "
                "operators and an opset that this release has, or install a newer one"
            ) from None


def _as_source(model: AnyModel, folder: Path) -> Path | bytes:
    """Return what OpenVINO reads: a file, written to `folder` if the values lie in files, or the model."""
    if isinstance(model, Path):
        return model
    if not any(is_external(tensor) for tensor in model.graph.initializer):
        return bytes(model.SerializeToString())
    save(model, folder / "model.onnx")
    return folder / "model.onnx"


def open_model(model: AnyModel, threads: int = 0, precision: str = "f32") -> Callable[[Feed], Values]:
    """Return a function from a feed to the outputs of `model` by name, as OpenVINO computes them on the CPU.

    Args:
        model: the model, or its path.
        threads: of OpenVINO, 0 for one per core.
        precision: as `compile_model` takes it.

    Several threads may call the function at the same time. Raises RuntimeLibraryError as `compile_model`; so
    does the function for a feed that does not fit, and DataError for one without an input.
    """
    compiled = compile_model(model, threads, precision)
    proto = read_structure(model)
    own = threading.local()  # a request computes for one thread at a time
    names = output_names(proto)
    given_names = {value.name for value in proto.graph.input}
    taken = {name for port in compiled.inputs for name in port.names if name in given_names}

    def run(feed: Feed) -> Values:
        missing = sorted(taken - feed.keys())
        if missing:
            raise DataError(f"the feed has no input {missing[0]!r}; give one for each input of the model")
        arrays = {name: np.asarray(feed[name], order="C") for name in taken}
        # OpenVINO refuses C's long long, ONNX Runtime's int64, in arrays without axes (2026.4.1).
        given = {n: one if one.ndim else one.astype(one.dtype.name) for n, one in arrays.items()}
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        try:
            results = own.request.infer(given)
        except RuntimeError as error:
            raise RuntimeLibraryError(
                f"OpenVINO cannot run the model on this feed: {_last_words(error)}; give data that fits it"
            ) from None
        return {name: np.array(results[at]) for at, name in enumerate(names)}

    return run


def profile_model(model: AnyModel, threads: int, feed: Feed) -> dict[tuple[str, str], float]:
    """Return the seconds of a run by operator and node as OpenVINO counts them, for the model of users.

    Nodes are those that it executes: fused ones, and those that it adds. Raises as `compile_model`.
    """
    compiled = compile_model(model, threads, precision="", profiled=True)
    request = compiled.create_infer_request()
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for run in range(_PROFILED_RUNS + 1):
        request.infer({name: feed[name] for port in compiled.inputs for name in port.names if name in feed})
        for node in request.profiling_info if run else ():  # the first run prepares the others
            seconds[node.node_type, node.node_name] += node.real_time.total_seconds() / _PROFILED_RUNS
    return dict(seconds)


def run_model(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Yield the tensors of each feed; `Runner` has the arguments."""
    run = open_model(with_outputs(proto, tensors), threads)
    for feed in feeds:
        values = run(feed)
        yield {name: values[name] for name in tensors}


def _last_words(error: Exception) -> str:
    """Return the part of a message of OpenVINO that names the cause: places in its sources come first."""
    lines = [line.strip(" -") for line in str(error).splitlines()]
    said = [line for line in lines if line and not _PLACE.search(line)]
    lacking = [line for line in said if line.startswith("No conversion rule found")]
    return join_lines("; ".join(lacking or said) or str(error))[:300]
