"""The graph that ONNX Runtime's CPU provider makes of a model with all its optimizations."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxfq.errors import ModelError
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.io.save import save
from onnxfq.runtime.custom_ops import register_libraries
from onnxfq.runtime.ort import new_options, onnxruntime, open_inference_session
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder

VERSION: str = onnxruntime.__version__
"""Version of ONNX Runtime."""


def write_optimized(source: onnx.ModelProto | Path, path: Path) -> None:
    """Write a model or a file of one, optimised by ONNX Runtime, with its large weights in a file beside."""
    options = new_options(1)
    options.optimized_model_filepath = str(path)
    # Weights in a separate file: the graph is read without them.
    for key, value in (("file_name", f"{path.name}.weights"), ("min_size_in_bytes", "1024")):
        options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    # It is never run.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    proto = onnx.load(source, load_external_data=False) if isinstance(source, Path) else source
    register_libraries(options, proto)
    content = str(source) if isinstance(source, Path) else source.SerializeToString()
    open_inference_session(content, options, providers=["CPUExecutionProvider"])


def optimize_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the nodes that run of `proto` in a plain session, without the values of large constants.

    Raises ModelError if ONNX Runtime cannot load the model in such a session.
    """
    with scratch_folder() as folder:
        if is_large(proto):
            save(proto, folder / "model.onnx")
        try:
            write_optimized(folder / "model.onnx" if is_large(proto) else proto, folder / "optimized.onnx")
        except Exception as error:  # one class for each status code
            raise ModelError(
                f"ONNX Runtime {VERSION} cannot load it with all optimizations: {join_lines(error)[:300]}"
            ) from None
        return onnx.load(folder / "optimized.onnx", load_external_data=False)
