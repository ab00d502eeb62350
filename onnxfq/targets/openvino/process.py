"""OpenVINO in a worker reads, compiles and runs models by their numbers; the only importer of openvino."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Else importing OpenVINO tells its makers of it, by a fork that may never end.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
import openvino  # noqa: E402

DEVICE = "CPU"
# Layers that move a constant. One that multiplies may have lost the name of its node; its weight keeps it
# behind these.
_CARRIERS = frozenset({"Const", "Convert", "Reorder", "Reshape", "Transpose"})

# The first array that OpenVINO makes looks NumPy up. Two threads that do so at a time never return: one
# has C++'s lock of the static variable and wants the interpreter's, the other the reverse (2026.4.1).
openvino.Tensor(np.zeros(1, np.float32)).data.sum()


_models: dict[int, Any] = {}
_requests: defaultdict[int, list[Any]] = defaultdict(list)
"""Requests of each model that run nothing now: one computes for one thread at a time."""


def name_release() -> str:
    """Return the version without its build number, such as 2026.4.1."""
    return str(openvino.__version__).partition("-")[0]


def read_model(number: int, source: str | bytes, dropped: Sequence[int]) -> None:
    """Read the model in `source`, a path or its bytes; forget those that are `dropped`."""
    for one in dropped:
        _models.pop(one, None)
        _requests.pop(one, None)
    _models[number] = openvino.Core().read_model(source)


def compile_model(number: int, options: Mapping[str, Any]) -> list[set[str]]:
    """Compile a model for the CPU; return the names of each input. One that fails is forgotten."""
    compiled = openvino.Core().compile_model(_models.pop(number), DEVICE, options)
    _models[number] = compiled
    return [port.names for port in compiled.inputs]


def run_model(number: int, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the outputs of a compiled model in order."""
    model, requests = _models[number], _requests[number]
    request = requests.pop() if requests else model.create_infer_request()
    results = request.infer(feed)
    found = [np.array(results[at]) for at in range(len(model.outputs))]
    requests.append(request)
    return found


def profile_model(number: int, feed: Mapping[str, NDArray[Any]], runs: int) -> dict[tuple[str, str], float]:
    """Return the seconds of one run of a compiled model by operator and node, the mean of `runs`."""
    request = _models[number].create_infer_request()
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for run in range(runs + 1):
        request.infer(feed)
        for node in request.profiling_info if run else ():  # the first run prepares the others
            seconds[node.node_type, node.node_name] += node.real_time.total_seconds() / runs
    return dict(seconds)


def list_layers(number: int) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Return kind, types of inputs, names, and names behind the inputs for each layer of a compiled model."""
    layers = []
    for op in _models[number].get_runtime_model().get_ordered_ops():
        ports = [op.input_value(at) for at in range(op.get_input_size())]
        types = [port.get_element_type().get_type_name() for port in ports]
        behind = [name for port in ports for name in _names_behind(port.get_node())]
        layers.append((_kind(op), types, _names(op), behind))
    return layers


def name_half_type() -> str:
    """Return the type that OpenVINO takes for the float part on this processor, such as f32."""
    return str(openvino.Core().get_property(DEVICE, "INFERENCE_PRECISION_HINT").get_type_name())


def _names_behind(op: Any) -> list[str]:
    """Return the names of a stored constant, and of what moves it."""
    names: list[str] = []
    while _kind(op) in _CARRIERS:
        names += _names(op)
        if not op.get_input_size():
            return names
        op = op.input_value(0).get_node()
    return []


def _names(op: Any) -> list[str]:
    given = op.get_rt_info()
    original = str(given["originalLayersNames"].astype(str)) if "originalLayersNames" in given else ""
    return f"{op.get_friendly_name()},{original}".split(",")


def _kind(op: Any) -> str:
    given = op.get_rt_info()
    return str(given["layerType"].astype(str)) if "layerType" in given else ""
