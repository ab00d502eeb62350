"""OpenVINO on this machine's CPU: models are read, compiled and run; the only importer of openvino."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from onnxfq.data import Feed
from onnxfq.errors import DataError, RuntimeLibraryError
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import output_names, with_outputs
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder
from onnxfq.targets.target import Values

DEVICE = "CPU"
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
    return openvino


def version_of(library: Any) -> str:
    """Return the version of the module openvino without its build number, such as 2026.4.1."""
    return str(library.__version__).partition("-")[0]


def compile_model(proto: onnx.ModelProto, threads: int = 0) -> Any:
    """Return `proto` compiled for the CPU, with what stays in float in float32.

    Args:
        proto: the model.
        threads: of OpenVINO, 0 for one per core.

    Raises RuntimeLibraryError if OpenVINO is missing, or cannot read or compile the model.
    """
    library = load_library()
    options = {"INFERENCE_PRECISION_HINT": "f32"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
    core, does = library.Core(), "read"
    with scratch_folder() as folder:
        try:
            if any(is_external(tensor) for tensor in proto.graph.initializer):
                save(proto, folder / "model.onnx")
                model = core.read_model(folder / "model.onnx")
            else:
                model = core.read_model(proto.SerializeToString())
            does = "compile"
            return core.compile_model(model, DEVICE, options)
        except RuntimeError as error:  # OpenVINO has no classes for its faults
            raise RuntimeLibraryError(
                f"OpenVINO {version_of(library)} cannot {does} the model: {_last_words(error)}; use "
                "operators and an opset that this release has, or install a newer one"
            ) from None


def open_model(proto: onnx.ModelProto, threads: int = 0) -> Callable[[Feed], Values]:
    """Return a function from a feed to the outputs of `proto` by name, as OpenVINO computes them on the CPU.

    Args:
        proto: the model.
        threads: of OpenVINO, 0 for one per core.

    Raises RuntimeLibraryError as `compile_model`; so does the function for a feed that does not fit, and
    DataError for one without an input.
    """
    compiled = compile_model(proto, threads)
    request = compiled.create_infer_request()
    names = output_names(proto)
    given_names = {value.name for value in proto.graph.input}
    taken = {name for port in compiled.inputs for name in port.names if name in given_names}

    def run(feed: Feed) -> Values:
        missing = sorted(taken - feed.keys())
        if missing:
            raise DataError(f"the feed has no input {missing[0]!r}; give one for each input of the model")
        given = {name: np.ascontiguousarray(feed[name]) for name in taken}
        try:
            results = request.infer(given)
        except RuntimeError as error:
            raise RuntimeLibraryError(
                f"OpenVINO cannot run the model on this feed: {_last_words(error)}; give data that fits it"
            ) from None
        return {name: np.array(results[at]) for at, name in enumerate(names)}

    return run


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
    return join_lines("; ".join(said) or str(error))[:300]
