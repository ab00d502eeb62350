"""Nodes of a model by the execution provider that takes them, as ONNX Runtime tells it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxfq.errors import ModelError, RuntimeLibraryError
from onnxfq.runtime.ort import new_options, onnxruntime, open_inference_session
from onnxfq.support.records import join_lines

_RECORD = "session.record_ep_graph_assignment_info"


def register_library(provider: str, path: str) -> None:
    """Register the library of an execution provider with ONNX Runtime, once in this process.

    Args:
        provider: its name.
        path: of the library.

    Raises RuntimeLibraryError if ONNX Runtime cannot load it.
    """
    if any(device.ep_name == provider for device in onnxruntime.get_ep_devices()):
        return
    try:
        onnxruntime.register_execution_provider_library(provider, path)
    except Exception as error:  # one class for each status code
        raise RuntimeLibraryError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {provider}: {join_lines(error)[:300]}; "
            "install releases of both that belong together"
        ) from None


def assign_nodes(proto: onnx.ModelProto, provider: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the provider of each node that runs, by the name of the node.

    Args:
        proto: the model.
        provider: the one that is asked first; the CPU takes the other nodes.
        options: of the provider.

    Raises RuntimeLibraryError if ONNX Runtime has no such device, and ModelError if it refuses the model.
    """
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    if not devices:
        raise RuntimeLibraryError(
            f"ONNX Runtime {onnxruntime.__version__} has no device of {provider}; register its library, or "
            "use a machine that it supports"
        )
    chosen = new_options(1)  # it is never run
    chosen.add_session_config_entry(_RECORD, "1")
    chosen.add_provider_for_devices(devices[:1], dict(options))
    try:
        session = open_inference_session(proto.SerializeToString(), chosen)
    except Exception as error:  # one class for each status code
        raise ModelError(
            f"ONNX Runtime cannot load it with {provider}: {join_lines(error)[:300]}; give all operators "
            "pairs, or leave some out"
        ) from None
    parts = session.get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in parts for node in part.get_nodes()}
