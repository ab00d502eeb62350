"""Sessions: how onnxfq runs a model, so that what it measures is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.documents import one_line
from onnxfq.errors import DataError, ModelError, RuntimeLibraryError
from onnxfq.feeds import Feed
from onnxfq.runtime.devices import CUDA_PROVIDER, cuda_problem, providers
from onnxfq.runtime.library import register_custom_ops
from onnxfq.runtime.missing_kernels import cannot_run
from onnxfq.runtime.ort import onnxruntime
from onnxfq.runtime.places import Device

Progress = Callable[[int], None]
"""Called after every feed with the number of feeds done."""

_ONLY_FATAL = 4


class Session:
    """An inference session.

    exact: no graph optimisation and no packed weights, so that a fake-quant model and its Q/DQ twin give
    the same bits: BatchNormalization fused into one of the two, or the constant matrix of one packed for a
    kernel that sums in another order, would round differently. Otherwise Q/DQ
    models run at ORT_ENABLE_BASIC (from the next level on, onnxruntime 1.31 refuses or changes valid
    ones: zero-point inputs at opset 21, float8, float16 Concat), others at full optimisation.
    as_written: nothing is optimised, and nodes run in the order of the file.
    """

    def __init__(
        self,
        model: onnx.ModelProto | Path,
        threads: int = 0,
        exact: bool = False,
        as_written: bool = False,
        device: Device = "cpu",
    ) -> None:
        """Load `model`. threads: of the runtime's pool, 0 for one a core. device: from `choose_device`.

        Raises ModelError; RuntimeLibraryError when the device cannot be used.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_FATAL
        options.intra_op_num_threads = threads
        # Threads that spin between runs take the cores that Python and other sessions need.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # The structure is enough to choose by; of a file onnxruntime reads the weights itself.
        proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
        missing = cannot_run(proto)
        if missing:
            raise ModelError(f"the model cannot be run: {missing}; run the fake-quant model in its place")
        if any(opset.domain == "onnxfq" for opset in proto.opset_import):
            register_custom_ops(options)
        if exact:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.disable_prepacking", "1")
        elif as_written:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        elif any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in proto.graph.node):
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        try:
            content = str(model) if isinstance(model, Path) else model.SerializeToString()
            self._session = onnxruntime.InferenceSession(content, options, providers=providers(device))
        except Exception as error:  # onnxruntime raises classes of its own, one per status code
            raise ModelError(f"onnxruntime cannot load the model: {one_line(error)[:300]}") from None
        if device == "cuda" and CUDA_PROVIDER not in self._session.get_providers():
            reason = cuda_problem() or "`onnxfq doctor` tests the GPU"
            raise RuntimeLibraryError(f"onnxruntime fell back to the CPU: {reason}")
        self._device = device
        self.output_names: list[str] = [output.name for output in self._session.get_outputs()]

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> list[NDArray[Any]]:
        """Run once and return `outputs`, all of them when None. Raises DataError when the run fails."""
        try:
            return list(self._session.run(outputs, feed))
        except Exception as error:  # onnxruntime raises classes of its own, one per status code
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
            reason = one_line(error)[:300]
            if self._device == "cuda" and "llocat" in reason:
                reason += "; give a smaller batch, or run on the CPU"
            raise DataError(f"the model cannot run on {shapes}: {reason}") from None
