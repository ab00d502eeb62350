"""OpenVINO on this machine's CPU, in a worker that keeps what it compiled."""

from __future__ import annotations

import importlib.util
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

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
from onnxfq.support.workers import Worker, WorkerFault
from onnxfq.targets.target import AnyModel, Values

DEVICE = "CPU"
SECONDS = 600.0
"""Longest time to compile a model, and for one run."""
_PROFILED_RUNS = 10
_PLACE = re.compile(r"^(Exception from|Check '|FrontEnd API failed|Model wasn't|Summary:|To facilitate)|^$")


class _Library(NamedTuple):
    """OpenVINO in a process, and its release, such as 2026.4.1."""

    worker: Worker
    release: str

    def ask(self, does: str, remedy: str, name: str, *given: Any) -> Any:
        """Return the result of a function of `process.py`. Raises RuntimeLibraryError, which uses `does`."""
        try:
            return self.worker.ask(name, *given, seconds=SECONDS)
        except WorkerFault as fault:
            is_own = fault.kind == "RuntimeError"  # OpenVINO has no classes for its faults
            why = _last_words(fault.text) if is_own else f"{'' if fault.kind else 'its process '}{fault}"
            # Any other fault is not about the model.
            remedy = remedy if is_own else "install another release of openvino"
            name = f"OpenVINO {self.release}".strip()
            raise RuntimeLibraryError(f"{name} cannot {does}: {why}; {remedy}") from None


_library: _Library | None = None
_starting = Lock()
_numbers = count()
_dropped: list[int] = []
"""Numbers of models that nobody uses any more; the process hears of them when it opens the next."""


def load_library() -> _Library:
    """Return OpenVINO in its process, which is started once. Raises RuntimeLibraryError if it is missing."""
    global _library
    if importlib.util.find_spec("openvino") is None:
        raise RuntimeLibraryError(
            "package openvino is not installed, and it runs the model with OpenVINO; pip install "
            '"onnxfq[openvino]"'
        )
    with _starting:
        if _library is None or _library.worker.ended:
            started = _Library(Worker(str(Path(__file__).with_name("process.py"))), "")
            try:
                release = started.ask("start", "", "name_release")
            except RuntimeLibraryError:
                started.worker.close()
                raise
            _library = started._replace(release=release)
        return _library


def name_release() -> str:
    """Return the name and version of OpenVINO. Raises RuntimeLibraryError as `load_library`."""
    return f"OpenVINO {load_library().release}"


def name_half_type() -> str:
    """Return the 16-bit type that OpenVINO takes for the float part on this processor; empty for none."""
    found = load_library().ask("tell its types", "", "name_half_type")
    return "" if found == "f32" else str(found)


def read_clock() -> float:
    """Return the seconds that OpenVINO worked in its process, without the transport of arrays."""
    return load_library().worker.seconds


def _compile(
    model: AnyModel, threads: int = 0, precision: str = "f32", profiled: bool = False
) -> tuple[_Library, int, list[set[str]]]:
    """Compile `model` for the CPU; return its process, its number there, and the names of each input.

    Args:
        model: the model, or its path.
        threads: of OpenVINO, 0 for one per core.
        precision: of the float part; empty for OpenVINO's choice, bf16 where the processor has it.
        profiled: whether requests count the time of each node.

    Raises RuntimeLibraryError if OpenVINO is missing, or cannot read or compile the model.
    """
    library, number = load_library(), next(_numbers)
    options = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERF_COUNT": profiled,
    }
    given = {name: value for name, value in options.items() if value}
    remedy = "use operators and an opset that this release has, or install a newer one"
    dropped = [_dropped.pop() for _ in range(len(_dropped))]
    with scratch_folder() as folder:
        library.ask("read the model", remedy, "read_model", number, _as_source(model, folder), dropped)
        inputs = library.ask("compile the model", remedy, "compile_model", number, given)
    return library, number, inputs


def _as_source(model: AnyModel, folder: Path) -> str | bytes:
    """Return what OpenVINO reads: a file, written to `folder` if the values lie in files, or the model."""
    if isinstance(model, Path):
        return str(model.absolute())
    if not any(is_external(tensor) for tensor in model.graph.initializer):
        return bytes(model.SerializeToString())
    save(model, folder / "model.onnx")
    return str(folder / "model.onnx")


def open_model(model: AnyModel, threads: int = 0, precision: str = "f32") -> Callable[[Feed], Values]:
    """Return a function from a feed to the outputs of `model` by name, as OpenVINO computes them on the CPU.

    Args:
        model: the model, or its path.
        threads: of OpenVINO, 0 for one per core.
        precision: of the float part; empty for OpenVINO's choice, bf16 where the processor has it.

    Several threads may call the function at the same time. Raises RuntimeLibraryError if OpenVINO is missing,
    or cannot read or compile the model; so does the function for a feed that does not fit, and DataError for
    one without an input.
    """
    library, number, inputs = _compile(model, threads, precision)
    proto = read_structure(model)
    names = output_names(proto)
    given_names = {value.name for value in proto.graph.input}
    taken = {name for port in inputs for name in port if name in given_names}

    def run(feed: Feed) -> Values:
        missing = sorted(taken - feed.keys())
        if missing:
            raise DataError(f"the feed has no input {missing[0]!r}; give one for each input of the model")
        arrays = {name: np.asarray(feed[name], order="C") for name in taken}
        # OpenVINO refuses C's long long, ONNX Runtime's int64, in arrays without axes (2026.4.1).
        given = {n: one if one.ndim else one.astype(one.dtype.name) for n, one in arrays.items()}
        found = library.ask(
            "run the model on this feed", "give data that fits it", "run_model", number, given
        )
        return dict(zip(names, found, strict=True))

    weakref.finalize(run, _dropped.append, number).atexit = False
    return run


def profile_model(model: AnyModel, threads: int, feed: Feed) -> dict[tuple[str, str], float]:
    """Return the seconds of a run by operator and node as OpenVINO counts them, for the model of users.

    Nodes are those that it executes: fused ones, and those that it adds. Raises as `open_model`.
    """
    library, number, inputs = _compile(model, threads, precision="", profiled=True)
    given = {name: np.asarray(feed[name]) for port in inputs for name in port if name in feed}
    what = "profile the model", "give data that fits it", "profile_model"
    seconds = dict(library.ask(*what, number, given, _PROFILED_RUNS))
    _dropped.append(number)
    return seconds


def list_layers(model: AnyModel) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Return the layers that OpenVINO executes for `model`, as `list_layers` of `process.py`."""
    library, number, _ = _compile(model)
    layers = list(library.ask("list the layers", "", "list_layers", number))
    _dropped.append(number)
    return layers


def run_model(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Yield the tensors of each feed; `Runner` has the arguments."""
    run = open_model(with_outputs(proto, tensors), threads)
    for feed in feeds:
        values = run(feed)
        yield {name: values[name] for name in tensors}


def _last_words(text: str) -> str:
    """Return the part of a message of OpenVINO that names the cause: places in its sources come first."""
    lines = [line.strip(" -") for line in text.splitlines()]
    said = [line for line in lines if line and not _PLACE.search(line)]
    lacking = [line for line in said if line.startswith("No conversion rule found")]
    return join_lines("; ".join(lacking or said) or text)[:300]
