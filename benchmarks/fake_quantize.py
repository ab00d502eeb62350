"""FakeQuantize against memcpy and torch: nanoseconds an element, one thread or more.

    python benchmarks/fake_quantize.py [--threads N] [--rounds N] [--sizes 1 16 64] [--out FILE]

Marks, on one thread at 64M floats: at least 0.9 of the speed of memcpy, at least 15 times torch.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from collections.abc import Callable

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper
from timing import machine, markdown_table, median_ratio, paired_times, report

from onnxfq.runtime import kernels
from onnxfq.runtime.library import register_custom_ops
from onnxfq.runtime.ort import onnxruntime

ROWS = 1024


def in_session(x: np.ndarray, scale: np.ndarray, axis: int, threads: int) -> Callable[[], object]:
    """FakeQuantize inside onnxruntime, output buffer bound beforehand."""
    node = helper.make_node("FakeQuantize", ["x", "s"], ["y"], domain="onnxfq", qtype="int8", axis=axis)
    graph = helper.make_graph(
        [node],
        "fake_quantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(x.shape))],
        [numpy_helper.from_array(scale, "s")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfq", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Spinning threads of two sessions would steal each other's cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    register_custom_ops(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    y = np.zeros_like(x)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: (session.run_with_iobinding(binding), y)


def candidates(count: int, threads: int) -> dict[str, Callable[[], object]]:
    """Calls by name; x has shape [1024, count / 1024]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, count // ROWS), dtype=np.float32)
    y = np.zeros_like(x)
    first = np.full(ROWS, 0.05, np.float32)
    last = np.full(x.shape[1], 0.05, np.float32)
    tensor = torch.from_numpy(x)
    zeros = torch.zeros(ROWS, dtype=torch.int32)
    torch.set_num_threads(threads)

    def kernel(scale: object, axis: int | None = None, block_size: int | None = None) -> Callable[[], object]:
        options = {"qtype": "int8", "axis": axis, "block_size": block_size, "out": y}
        return lambda: kernels.fake_quantize(x, scale, **options)

    calls: dict[str, Callable[[], object]] = {
        "memcpy": lambda: ctypes.memmove(y.ctypes.data, x.ctypes.data, x.nbytes),
        "session, per tensor": in_session(x, np.array(0.05, np.float32), 0, threads),
        "session, axis 0": in_session(x, first, 0, threads),
        "session, last axis": in_session(x, last, 1, threads),
        "torch, per tensor": lambda: torch.fake_quantize_per_tensor_affine(tensor, 0.05, 0, -128, 127),
        "torch, axis 0": lambda: torch.fake_quantize_per_channel_affine(
            tensor, torch.from_numpy(first), zeros, 0, -128, 127
        ),
    }
    if threads == 1:
        calls |= {
            "kernel, per tensor": kernel(0.05),
            "kernel, axis 0": kernel(first, 0),
            "kernel, last axis": kernel(last, 1),
            "kernel, blocks of 32": kernel(np.full((ROWS, x.shape[1] // 32), 0.05, np.float32), 1, 32),
        }
    return calls


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 64], help="millions (2^20) of floats")
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()

    rows = []
    for size in arguments.sizes:
        count = size << 20
        times = paired_times(candidates(count, arguments.threads), arguments.rounds)
        for name, seconds in times.items():
            nanoseconds = statistics.median(seconds) / count * 1e9
            against = "torch, per tensor" if "tensor" in name else "torch, axis 0"
            rows.append(
                [
                    f"{size}M",
                    name,
                    f"{nanoseconds:.3f}",
                    f"{8 / nanoseconds:.1f}",
                    f"{1 / median_ratio(times, name, 'memcpy'):.2f}",
                    f"{1 / median_ratio(times, name, against):.1f}",
                ]
            )
    head = (
        f"{machine()}; onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}. Threads: {arguments.threads} (memcpy: always 1). "
        f"int8, shape [{ROWS}, n / {ROWS}], medians of {arguments.rounds} rounds in which all take turns; "
        "memcpy, kernel and session write into memory that was touched before, torch allocates its own.\n\n"
    )
    header = ["floats", "what", "ns an element", "GB/s", "speed / memcpy", "speed / torch"]
    title = f"FakeQuantize, {arguments.threads} thread{'s' if arguments.threads > 1 else ''}"
    report(title, head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
