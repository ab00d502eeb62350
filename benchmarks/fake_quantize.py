"""Fake quantization in a session compared with memcpy of the same bytes and torch: nanoseconds per element.

    python benchmarks/fake_quantize.py [--threads N] [--rounds N] [--sizes 1 16 64] [--out FILE]

Marks, as speed / memcpy (always one thread, of x's own bytes) at 64M elements: see `MARKS`.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnx import helper, numpy_helper
from timing import machine, markdown_table, median_ratio, paired_times, report

from onnxfq.runtime import kernels
from onnxfq.runtime.custom_ops import register_custom_ops
from onnxfq.runtime.ort import onnxruntime

ROWS = 1024

Static = dict[str, Any]
STATIC: dict[str, Static] = {
    "int8 per tensor": {"qtype": "int8"},
    "int8 half_away": {"qtype": "int8", "rounding": "half_away"},
    "int8 axis 0": {"qtype": "int8", "axis": 0},
    "int8 last axis": {"qtype": "int8", "axis": 1},
    "int8 blocks of 64": {"qtype": "int8", "block_shape": [1, 64]},
    "int8 blocks of 32": {"qtype": "int8", "block_shape": [1, 32]},
    "int8 blocks of 16": {"qtype": "int8", "block_shape": [1, 16]},
    "float8e4m3fn per tensor": {"qtype": "float8e4m3fn"},
    "float8e5m2 axis 0": {"qtype": "float8e5m2", "axis": 0},
    "float4e2m1 blocks of 16": {"qtype": "float4e2m1", "block_shape": [1, 16]},
}
DYNAMIC: dict[str, Static] = {
    "dynamic uint8 per tensor": {"qtype": "uint8", "symmetric": 0},
    "dynamic int8 rows": {"qtype": "int8", "block_shape": [1, -1]},
    "MX float8e4m3fn": {"qtype": "float8e4m3fn", "scale_type": "e8m0", "block_shape": [1, 32]},
    "MX float4e2m1": {"qtype": "float4e2m1", "scale_type": "e8m0", "block_shape": [1, 32]},
    "MX int8": {"qtype": "int8", "scale_type": "e8m0", "block_shape": [1, 32]},
    "NVFP4": {"qtype": "float4e2m1", "scale_type": "e4m3", "block_shape": [1, 16]},
}
# Speed / memcpy that each should reach on one thread; the rest is for information.
MARKS = {
    **dict.fromkeys(("int8 per tensor", "int8 axis 0", "int8 blocks of 64", "int8 blocks of 32"), 0.9),
    **dict.fromkeys(("int8 last axis", "int8 blocks of 16"), 0.6),
    **dict.fromkeys((name for name in STATIC if name.startswith("float")), 0.5),
    **dict.fromkeys((name for name in DYNAMIC if name.startswith("MX")), 0.5),
    "int8 per tensor, in place": 1.0,
    "int8 per tensor, float16": 0.5,
}


def scale_shape(attributes: Static, shape: tuple[int, ...]) -> list[int]:
    """Return the shape of the scales of a case."""
    if "axis" in attributes:
        return [shape[attributes["axis"]]]
    return [-(-n // b) for n, b in zip(shape, attributes.get("block_shape", ()), strict=False)]


def in_session(
    x: np.ndarray, y: np.ndarray, operator: str, attributes: Static, threads: int
) -> Callable[[], object]:
    """Return a call of one node inside onnxruntime that writes into y."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    static = operator == "FakeQuantize"
    scale = np.full(scale_shape(attributes, x.shape) if static else [], 0.05, np.float32)
    node = helper.make_node(operator, ["x", "s"] if static else ["x"], ["y"], domain="onnxfq", **attributes)
    graph = helper.make_graph(
        [node],
        "fake_quantize",
        [helper.make_tensor_value_info("x", kind, list(x.shape))],
        [helper.make_tensor_value_info("y", kind, list(x.shape))],
        [numpy_helper.from_array(scale, "s")] if static else [],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfq", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Spinning threads of two sessions would steal each other's cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    register_custom_ops(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def memcpy(x: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """Return a call that copies x into y."""
    return lambda: ctypes.memmove(y.ctypes.data, x.ctypes.data, x.nbytes)


def candidates(count: int, threads: int) -> dict[str, Callable[[], object]]:
    """Return calls by name; x has shape [1024, count / 1024]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, count // ROWS), dtype=np.float32)
    half = x.astype(np.float16)
    again = x.copy()
    y, y16 = x.copy(), half.copy()
    first = torch.full((ROWS,), 0.05)
    tensor = torch.from_numpy(x)
    zeros = torch.zeros(ROWS, dtype=torch.int32)
    torch.set_num_threads(threads)
    calls: dict[str, Callable[[], object]] = {"memcpy": memcpy(x, y), "memcpy, float16": memcpy(half, y16)}
    calls |= {name: in_session(x, y, "FakeQuantize", case, threads) for name, case in STATIC.items()}
    calls |= {name: in_session(x, y, "DynamicFakeQuantize", case, threads) for name, case in DYNAMIC.items()}
    calls["int8 per tensor, float16"] = in_session(
        half, y16, "FakeQuantize", STATIC["int8 per tensor"], threads
    )
    if threads == 1:
        calls["int8 per tensor, in place"] = lambda: kernels.fake_quantize(
            again, 0.05, qtype="int8", out=again
        )
    return calls | {
        "torch, per tensor": lambda: torch.fake_quantize_per_tensor_affine(tensor, 0.05, 0, -128, 127),
        "torch, axis 0": lambda: torch.fake_quantize_per_channel_affine(tensor, first, zeros, 0, -128, 127),
    }


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 16, 64], help="millions (2^20) of elements"
    )
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()

    rows = []
    for size in arguments.sizes:
        count = size << 20
        times = paired_times(candidates(count, arguments.threads), arguments.rounds)
        for name, seconds in times.items():
            nanoseconds = statistics.median(seconds) / count * 1e9
            copy = "memcpy, float16" if "float16" in name else "memcpy"
            bytes_moved = 4 if "float16" in name else 8
            mark = f"{MARKS[name]:.1f}" if name in MARKS and size == 64 and arguments.threads == 1 else ""
            rows.append(
                [
                    f"{size}M",
                    name,
                    f"{nanoseconds:.3f}",
                    f"{bytes_moved / nanoseconds:.1f}",
                    f"{1 / median_ratio(times, name, copy):.2f}",
                    mark,
                    f"{1 / median_ratio(times, name, 'torch, per tensor'):.1f}",
                ]
            )
    head = (
        f"{machine()}; onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}. Threads: {arguments.threads} (memcpy: always 1). "
        f"Shape [{ROWS}, n / {ROWS}], medians of {arguments.rounds} rounds in which all take turns; "
        "memcpy and session write into memory that was touched before, torch allocates its own.\n\n"
    )
    header = ["elements", "what", "ns an element", "GB/s", "speed / memcpy", "mark", "speed / torch"]
    title = f"Fake quantization, {arguments.threads} thread{'s' if arguments.threads > 1 else ''}"
    report(title, head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
