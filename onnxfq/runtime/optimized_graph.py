"""The graph that ONNX Runtime makes of a model, with all optimizations, and the provider of each node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from onnxfq.errors import ModelError, RuntimeLibraryError
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.external.tensor import is_external
from onnxfq.graph.external.weightless import read_structure
from onnxfq.graph.io.save import save
from onnxfq.runtime.custom_ops import register_libraries
from onnxfq.runtime.ort import keep_from_ending, new_options, onnxruntime, open_inference_session
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder

VERSION: str = onnxruntime.__version__
"""Version of ONNX Runtime."""


def write_optimized(source: onnx.ModelProto | Path, path: Path) -> None:
    """Write a model as ONNX Runtime optimizes it, with its large weights in a file next to it."""
    options = new_options(1)
    options.optimized_model_filepath = str(path)
    # Weights in a separate file: the graph is read without them.
    for key, value in (("file_name", f"{path.name}.weights"), ("min_size_in_bytes", "1024")):
        options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    # It is never run.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    proto = read_structure(source)
    register_libraries(options, proto)
    content = str(source) if isinstance(source, Path) else source.SerializeToString()
    kept = keep_from_ending(proto)
    open_inference_session(content, options, providers=["CPUExecutionProvider"], **kept)


def optimize_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the nodes that run of `proto` in a plain session, without the values of large constants.

    Raises ModelError if ONNX Runtime cannot load the model in such a session.
    """
    with scratch_folder() as folder:
        is_split = is_large(proto) or any(map(is_external, proto.graph.initializer))
        if is_split:
            save(proto, folder / "model.onnx")
        try:
            write_optimized(folder / "model.onnx" if is_split else proto, folder / "optimized.onnx")
        except Exception as error:  # one class for each status code
            raise ModelError(
                f"ONNX Runtime {VERSION} cannot load it with all optimizations: {join_lines(error)[:300]}"
            ) from None
        return onnx.load(folder / "optimized.onnx", load_external_data=False)


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
            f"ONNX Runtime {VERSION} cannot load {provider}: {join_lines(error)[:300]}; "
            "install releases of both that belong together"
        ) from None


def assign_nodes(proto: onnx.ModelProto, provider: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the provider of each node that runs, by the name of the node.

    Args:
        proto: the model.
        provider: the one that is asked first; the CPU takes the other nodes.
        options: of the provider.

    Raises as `open_with_provider`.
    """
    chosen = new_options(1)  # it is never run
    chosen.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    parts = open_with_provider(proto, provider, options, chosen).get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in parts for node in part.get_nodes()}


def open_with_provider(
    proto: onnx.ModelProto, provider: str, options: Mapping[str, str], chosen: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    """Return a session in which a registered provider takes all nodes that it has, and the CPU the others.

    Raises RuntimeLibraryError if ONNX Runtime has no such device, and ModelError if it refuses the model.
    """
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    if not devices:
        raise RuntimeLibraryError(
            f"ONNX Runtime {VERSION} has no device of {provider}; register its library, or "
            "use a machine that it supports"
        )
    chosen.add_provider_for_devices(devices[:1], dict(options))
    try:
        return open_inference_session(proto.SerializeToString(), chosen, **keep_from_ending(proto))
    except Exception as error:  # one class for each status code
        raise ModelError(
            f"ONNX Runtime cannot load it with {provider}: {join_lines(error)[:300]}; give all operators "
            "pairs, or leave some out"
        ) from None
