"""Inference sessions with exact Q/DQ arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.errors import DataError, DeviceMemoryError, ModelError, OnnxfqError, RuntimeLibraryError
from onnxfq.graph.external.sizes import PACKED_TYPES, is_large, large_tensors, tensor_bytes
from onnxfq.graph.external.tensor import attach, embed, is_external, strip_values, tensor_array
from onnxfq.graph.external.weightless import read_structure, split_weights, with_initializers, with_weights
from onnxfq.graph.model import list_nodes
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.runtime.c_api import is_memory_fault
from onnxfq.runtime.custom_ops import register_libraries
from onnxfq.runtime.devices import Device
from onnxfq.runtime.float32_emulation import BFLOAT16, HALVES, widen_model
from onnxfq.runtime.ort import keep_from_ending, new_options, onnxruntime, open_inference_session
from onnxfq.runtime.providers import CUDA_PROVIDER, cuda_problem, providers
from onnxfq.runtime.random_numbers import SEED_INPUT, fix_draws, with_seed
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.support.records import join_lines
from onnxfq.support.temporary import room_for_scratch, scratch_folder

Progress = Callable[[int], None]
"""Called after every feed with the number of feeds done."""

_MOST_PLANNED = 2000
"""Most nodes of a model whose memory ONNX Runtime plans as a pattern."""
_NOWHERE = "given as arrays"
"""File name in the model for weights that the session is given as arrays."""

_NUMPY_TYPES = frozenset(
    int(onnx.TensorProto.DataType.Value(name))
    for name in "BOOL DOUBLE FLOAT FLOAT16 INT16 INT32 INT64 INT8 UINT16 UINT32 UINT64 UINT8".split()
)


@dataclass(frozen=True)
class PlacedFeed:
    """A feed in the memory of a device, shared by several sessions without further copies."""

    arrays: Feed
    values: Mapping[str, onnxruntime.OrtValue]

    @staticmethod
    def from_feed(feed: Feed, device: Device) -> Feed | PlacedFeed:
        """Copy `feed` to `device`; a feed with strings stays as it is, because devices cannot hold them.

        Raises DeviceMemoryError without room, DataError for other failures.
        """
        arrays = {name: np.asarray(array) for name, array in feed.items()}
        if any(array.dtype.kind in "OSU" for array in arrays.values()):
            return feed
        try:
            values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a, device, 0) for n, a in arrays.items()}
        except Exception as error:  # onnxruntime raises its own classes, one per status code
            raise run_fault(device, feed, error) from None
        return PlacedFeed(feed, values)


class NoKernelError(ModelError):
    """ONNX Runtime has no kernel for an operator of a valid model on this device."""


class Session:
    """An inference session.

    An exact session uses no graph optimisation and no packed weights, so that a fake-quant model and its Q/DQ
    twin give the same bits. Otherwise one of them could round differently: BatchNormalization fused in one
    only, or a constant matrix packed for a kernel that sums in another order. It computes float16 as in
    `float32_emulation`. Other sessions run Q/DQ models at ORT_ENABLE_BASIC: onnxruntime 1.31 rejects or
    changes valid ones at higher levels (zero-point inputs at opset 21, float8, float16 Concat). They run
    other models at full optimisation.

    A bfloat16 model takes and gives float32, as in `float32_emulation`; random numbers are drawn as in
    `random_numbers`. On a GPU nodes run in the order of the file as far as their inputs are available:
    observed tensors are not kept until the end. Kernels that sum in a changing order are not used.
    """

    def __init__(
        self,
        model: onnx.ModelProto | Path,
        threads: int = 0,
        exact: bool = False,
        as_written: bool = False,
        device: Device = "cpu",
        emulated: bool = True,
        packed: bool = True,
        pooled: bool = True,
    ) -> None:
        """Load `model`.

        Args:
            model: a ModelProto, or the path of a model.
            threads: of the runtime's pool, 0 for one per core.
            exact: see the class.
            as_written: nothing is optimised, and nodes run in the order of the file.
            device: from `choose_device`.
            emulated: 16-bit floats are computed as in the class; False: as the model has them.
            packed: weights are held once more, packed for kernels; slower without. Exact sessions never do.
            pooled: memory of a run is kept for the next one; several sessions together take less without.

        Raises ModelError if the model cannot be loaded, NoKernelError for an operator that the runtime lacks
        in its types, RuntimeLibraryError without the device, DeviceMemoryError if its memory is too small.
        """
        self.device: Device = device
        options = new_options(threads)
        # Threads that spin between runs would block cores that Python and other sessions need.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # The choices need only the structure; onnxruntime reads the weights of a file itself.
        proto = read_structure(model)
        if not isinstance(model, Path):
            model = proto = fix_draws(proto)
        if emulated and not isinstance(model, Path):
            model = proto = widen_model(proto, HALVES if exact else BFLOAT16)
        nodes = list_nodes(proto.graph)
        missing = explain_unsupported(proto, as_written=False)
        if missing:
            raise ModelError(f"the model cannot be run: {missing}; run the fake-quant model instead")
        register_libraries(options, proto)
        kept: dict[str, Any] = {}
        if device == "cuda":
            options.use_deterministic_compute = True
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        if exact:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        elif as_written:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        elif any(node.op_type in QDQ_OPS for node in nodes):
            kept = keep_from_ending(proto)
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.enable_cpu_mem_arena = pooled
        # Its planner compares each tensor with all others: half of the time of loading 10,000 nodes.
        options.enable_mem_pattern = pooled and len(nodes) <= _MOST_PLANNED
        if exact or not packed or (isinstance(model, onnx.ModelProto) and is_large(model)):
            # Packed for kernels, the weights of a large model would be in memory twice.
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            with ExitStack() as files:
                content = (
                    str(model) if isinstance(model, Path) else self._serialize(model, options, exact, files)
                )
                chosen = providers(device)
                self._session = open_inference_session(content, options, providers=chosen, **kept)
        except OnnxfqError:
            raise
        except Exception as error:  # onnxruntime raises its own classes, one per status code
            reason = join_lines(error)[:300]
            if device == "cuda" and is_memory_fault(reason):
                raise DeviceMemoryError(
                    f"the GPU has no room for the model: {reason}; run on the CPU"
                ) from None
            fault = NoKernelError if type(error).__name__ == "NotImplemented" else ModelError
            raise fault(f"onnxruntime cannot load the model: {reason}") from None
        if device == "cuda" and CUDA_PROVIDER not in self._session.get_providers():
            reason = cuda_problem() or "`onnxfq doctor` tests the GPU"
            raise RuntimeLibraryError(f"onnxruntime fell back to the CPU: {reason}")
        self.output_names: list[str] = [output.name for output in self._session.get_outputs()]
        self.output_types: dict[str, str] = {value.name: value.type for value in self._session.get_outputs()}
        self.output_shapes: dict[str, list[int | None]] = {
            value.name: [size if isinstance(size, int) else None for size in value.shape]
            for value in self._session.get_outputs()
        }
        self._draws = any(value.name == SEED_INPUT for value in self._session.get_inputs())

    def _serialize(
        self, model: onnx.ModelProto, options: onnxruntime.SessionOptions, exact: bool, files: ExitStack
    ) -> bytes | str:
        """Return `model` as bytes, or as a path that is valid while `files` is open.

        Weights in a file are read from there if possible, otherwise given to the session as arrays.
        """
        if is_large(model):
            # Dequantized weights are freed at once, without memory reserved for more than one.
            options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        elif not any(map(is_external, model.graph.initializer)):
            return bytes(model.SerializeToString())
        elif self.device != "cpu":
            return bytes(with_weights(model).SerializeToString())
        elif not exact:
            folder = files.enter_context(scratch_folder())
            with room_for_scratch():
                onnx.save(split_weights(model, folder / "weights"), folder / "model.onnx")
            return str(folder / "model.onnx")
        # Weights are dequantized directly before their use, not all at the start.
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        # Tensors with several elements per byte stay embedded: arrays cannot hold them.
        tensors = [t for t in large_tensors(model) if t.data_type not in PACKED_TYPES]
        if not tensors:
            return bytes(with_weights(model).SerializeToString())
        self._arrays = {tensor.name: _runtime_value(tensor) for tensor in tensors}
        if self.device == "cpu":
            _share(self._arrays, options, files.enter_context(scratch_folder()))
        else:  # CUDA needs copies
            options.add_external_initializers(list(self._arrays), list(self._arrays.values()))

        def give(tensor: onnx.TensorProto) -> onnx.TensorProto:
            if tensor.name not in self._arrays:
                return embed(tensor)
            return attach(strip_values(tensor), _NOWHERE, 0, tensor_bytes(tensor))

        given = with_initializers(model, map(give, model.graph.initializer))
        return bytes(given.SerializeToString())

    def run(self, feed: Feed | PlacedFeed, outputs: Sequence[str] | None = None) -> list[NDArray[Any]]:
        """Run once and return `outputs`, all of them if None.

        Raises DataError if the run fails, DeviceMemoryError if it fails because the GPU lacks memory.
        """
        try:
            # Only tensors come back from the memory of a device.
            names = self.output_names if outputs is None else outputs
            tensors = all(self.output_types[name].startswith("tensor") for name in names)
            if isinstance(feed, PlacedFeed) and tensors:
                new = {n: a for n, a in self._seeded(feed.arrays).items() if n not in feed.values}
                seed = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in new.items()}
                values = self._session.run_with_ort_values(names, {**feed.values, **seed})
                return [value.numpy() for value in values]
            arrays = feed.arrays if isinstance(feed, PlacedFeed) else feed
            return list(self._session.run(names, self._seeded(arrays)))
        except Exception as error:  # onnxruntime raises its own classes, one per status code
            arrays = feed.arrays if isinstance(feed, PlacedFeed) else feed
            raise run_fault(self.device, arrays, error) from None

    def _seeded(self, feed: Feed) -> Feed:
        """Return `feed` with the seed that the model reads, and without one that it does not read."""
        if self._draws:
            return with_seed(feed)
        return feed if SEED_INPUT not in feed else {n: a for n, a in feed.items() if n != SEED_INPUT}

    def bindings(self) -> onnxruntime.IOBinding:
        """Return a new set of bindings, for `run_bound`."""
        return self._session.io_binding()

    def run_bound(self, feed: Feed, bindings: onnxruntime.IOBinding) -> None:
        """Run once on `feed` with the other values in `bindings`, and wait for the end. Raises as `run`."""
        try:
            for name, array in self._seeded(feed).items():
                bindings.bind_cpu_input(name, array)
            self._session.run_with_iobinding(bindings)
            bindings.synchronize_outputs()
        except Exception as error:  # onnxruntime raises its own classes, one per status code
            raise run_fault(self.device, feed, error) from None


def run_fault(device: Device, feed: Feed, error: Exception) -> OnnxfqError:
    """Return the error of a run on `feed` that failed with `error`, in one line."""
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
    reason = join_lines(error)[:300]
    if device == "cuda" and is_memory_fault(reason):
        remedy = "give a smaller batch, or run on the CPU"
        return DeviceMemoryError(f"the GPU has no room to run on {shapes}: {reason}; {remedy}")
    if is_memory_fault(str(error)):
        nodes = re.findall(r"running (\w+) node\. Name:'(.*?)'", reason)
        where = " in ".join(f"{operator} {name!r}" for operator, name in reversed(nodes)) or "a node"
        return DataError(
            f"the model cannot run on {shapes}: {where} makes more than the free memory holds; give smaller "
            "samples or a smaller batch, or look at the sizes that the model computes"
        )
    sizes = {array.shape[0] for array in feed.values() if array.ndim}
    cut = len(sizes) == 1 and "running" in reason  # a fault of types is none of sizes
    remedy = "; if axis 0 counts something else than samples, give --batch 0" if cut else ""
    return DataError(f"the model cannot run on {shapes}: {reason}{remedy}")


def _share(
    arrays: dict[str, onnxruntime.OrtValue], options: onnxruntime.SessionOptions, folder: Path
) -> None:
    """Let the session read `arrays` in place; `add_external_initializers` would copy them.

    Graph optimisation is switched off, because it would read the file that the model names. That file must
    exist in `folder`, but is never read (onnxruntime 1.31.1).
    """
    (folder / _NOWHERE).touch()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in arrays.items():
        options.add_initializer(name, value)


def _runtime_value(tensor: onnx.TensorProto) -> onnxruntime.OrtValue:
    array = tensor_array(tensor)
    if tensor.data_type in _NUMPY_TYPES:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)
