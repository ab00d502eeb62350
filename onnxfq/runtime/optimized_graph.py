"""The graph that ONNX Runtime's CPU provider makes of a model with all its optimizations."""

from __future__ import annotations

import onnx

from onnxfq.errors import ModelError
from onnxfq.graph.external.sizes import is_large
from onnxfq.graph.io.save import save
from onnxfq.runtime.inference_session import open_inference_session
from onnxfq.runtime.ort import onnxruntime
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import scratch_folder

VERSION: str = onnxruntime.__version__
"""Version of ONNX Runtime."""

_ONLY_FATAL = 4
_SMALL = "1024"
"""Bytes from which constants go to a data file, which is not read."""


def optimize_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the nodes that run of `proto` in a plain session, without the values of large constants.

    Raises ModelError if ONNX Runtime cannot load the model in such a session.
    """
    with scratch_folder() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_FATAL
        options.intra_op_num_threads = 1  # it is never run
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{entry}file_name", "optimized.data")
        options.add_session_config_entry(f"{entry}min_size_in_bytes", _SMALL)
        source: str | bytes = str(folder / "model.onnx")
        if is_large(proto):
            save(proto, str(source))
        else:
            source = proto.SerializeToString()
        try:
            open_inference_session(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # one class for each status code
            raise ModelError(
                f"ONNX Runtime {VERSION} cannot load it with all optimizations: {join_lines(error)[:300]}"
            ) from None
        return onnx.load(folder / "optimized.onnx", load_external_data=False)
