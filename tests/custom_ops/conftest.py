"""One-node models around the operators and around ONNX Runtime's own Q/DQ pair, as plain functions.

With `--device cuda` the kernels run on a GPU, and so do the operators where onnxruntime can use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onnxfq.numerics.qtypes import QTYPES
from onnxfq.runtime import kernels
from onnxfq.runtime.custom_ops import register_custom_ops
from onnxfq.runtime.providers import cuda_problem, providers

FLOAT, INT32, INT64, BOOL = (getattr(onnx.TensorProto, name) for name in ("FLOAT", "INT32", "INT64", "BOOL"))
ONNX_TYPES = {
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
    np.dtype(ml_dtypes.bfloat16): onnx.TensorProto.BFLOAT16,
}


DEVICE = {"sessions": "cpu"}


@pytest.fixture(autouse=True)
def on_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels and operators on the device that was asked for, unless a test names one."""
    device = request.config.getoption("--device")
    for name in ("fake_quantize", "dynamic_fake_quantize", "observe"):
        monkeypatch.setattr(kernels, name, partial(getattr(kernels, name), device=device))
    monkeypatch.setitem(DEVICE, "sessions", "cpu" if cuda_problem() else device)


def make_session(
    nodes: list[onnx.NodeProto],
    inputs: list[str] | dict[str, int],
    outputs: dict[str, int],
    initializers: list[onnx.TensorProto] | None = None,
    threads: int = 1,
    shapes: dict[str, list[int | str]] | None = None,
    opset: int = 21,
    device: str | None = None,
) -> onnxruntime.InferenceSession:
    """Session of a graph, custom operators registered; inputs are float, shapes unknown, unless given.

    Runs at ORT_ENABLE_BASIC: above it onnxruntime rewrites Q/DQ pairs.
    """
    shapes, inputs = shapes or {}, inputs if isinstance(inputs, dict) else dict.fromkeys(inputs, FLOAT)
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, kind, shapes.get(name)) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        initializers or [],
        value_info=[helper.make_tensor_value_info(n, FLOAT, s) for n, s in shapes.items() if n not in inputs],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("onnxfq", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = threads
    register_custom_ops(options)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=providers(device or DEVICE["sessions"])
    )


def between_casts(node: onnx.NodeProto, dtype: np.dtype) -> list[onnx.NodeProto]:
    """The node with its input x and first output y, both float, cast to `dtype`: exact both ways.

    NumPy arrays of bfloat16 cannot be handed to a session.
    """
    node.input[0] = "x/cast"
    if node.output[0] == "y":
        node.output[0] = "y/cast"
    return [
        helper.make_node("Cast", ["x"], ["x/cast"], to=ONNX_TYPES[dtype]),
        node,
        helper.make_node("Cast", ["y/cast"], ["y"], to=FLOAT),
    ]


def _constants(**given: Any) -> tuple[list[str], list[onnx.TensorProto]]:
    """Return the names of inputs behind x, empty where nothing is given, and their constants."""
    names = [name if value is not None else "" for name, value in given.items()]
    while names and names[-1] == "":
        names.pop()
    return names, [numpy_helper.from_array(np.asarray(v), n) for n, v in given.items() if v is not None]


def ort_fake_quantize(
    x: np.ndarray,
    scale: Any,
    zero_point: Any = None,
    *,
    enabled: bool | None = None,
    threads: int = 1,
    param_type: Any = np.float32,
    **attributes,
) -> np.ndarray:
    """Run operator FakeQuantize once in onnxruntime; x of any of its types, parameters of `param_type`."""
    zero_point = None if zero_point is None else np.asarray(zero_point, param_type)
    names, initializers = _constants(
        scale=np.asarray(scale, param_type), zero_point=zero_point, enabled=enabled
    )
    attributes = {name: value for name, value in attributes.items() if value is not None}
    node = helper.make_node("FakeQuantize", ["x", *names], ["y"], domain="onnxfq", **attributes)
    session = make_session(between_casts(node, x.dtype), ["x"], {"y": FLOAT}, initializers, threads)
    return session.run(None, {"x": x.astype(np.float32)})[0].astype(x.dtype)


def ort_dynamic_fake_quantize(
    x: np.ndarray,
    *,
    global_scale: Any = None,
    enabled: bool | None = None,
    threads: int = 1,
    **attributes,
) -> list[np.ndarray]:
    """Run operator DynamicFakeQuantize once in onnxruntime: y, scale, zero_point."""
    attributes = {name: value for name, value in attributes.items() if value is not None}
    if "symmetric" in attributes:
        attributes["symmetric"] = int(attributes["symmetric"])
    shared = None if global_scale is None else np.asarray(global_scale, np.float32)
    names, initializers = _constants(g=shared, on=enabled)
    outputs = ["y", "scale", "zero_point"]
    node = helper.make_node("DynamicFakeQuantize", ["x", *names], outputs, domain="onnxfq", **attributes)
    nodes = between_casts(node, x.dtype)
    session = make_session(nodes, ["x"], dict.fromkeys(outputs, FLOAT), initializers, threads)
    y, scale, zero_point = session.run(None, {"x": x.astype(np.float32)})
    return [y.astype(x.dtype), scale, zero_point]


def ort_qdq(
    x: np.ndarray, scale: Any, zero_point: Any, *, qtype: str, saturate: bool = True, **where: int | None
) -> np.ndarray:
    """Run onnxruntime's QuantizeLinear and DequantizeLinear once; the scale has x's type."""
    scale = np.asarray(scale, x.dtype)
    zero_point = np.broadcast_to(np.asarray(zero_point, np.int32), scale.shape)
    attributes = {name: value for name, value in where.items() if value is not None}
    initializers = [
        numpy_helper.from_array(scale, "scale"),
        helper.make_tensor("zero_point", QTYPES[qtype].onnx_type, scale.shape, zero_point.flatten().tolist()),
    ]
    overflow = {} if saturate else {"saturate": 0}
    nodes = [
        helper.make_node("Cast", ["x"], ["t"], to=ONNX_TYPES[x.dtype]),
        helper.make_node("QuantizeLinear", ["t", "scale", "zero_point"], ["q"], **attributes, **overflow),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero_point"], ["z"], **attributes),
        helper.make_node("Cast", ["z"], ["y"], to=FLOAT),
    ]
    opset = 25 if QTYPES[qtype].bits == 2 else 21
    session = make_session(nodes, ["x"], {"y": FLOAT}, initializers, opset=opset, device="cpu")
    return session.run(None, {"x": x.astype(np.float32)})[0].astype(x.dtype)


def ort_observe(x: np.ndarray, *, threads: int = 1, **attributes: int) -> list[np.ndarray]:
    """Run operator Observe once in onnxruntime, x of any of its types: range, counts, bins, bin_counts."""
    outputs = {"range": FLOAT, "counts": INT64, "bins": INT32, "bin_counts": INT64}
    if attributes.get("channel_ranges"):
        outputs["channel_range"] = FLOAT
    nodes = [helper.make_node("Observe", ["x"], list(outputs), domain="onnxfq", **attributes)]
    if x.dtype != np.float32:
        nodes = between_casts(nodes[0], x.dtype)[:2]
    session = make_session(nodes, ["x"], outputs, threads=threads)
    with np.errstate(invalid="ignore"):  # NaN of 16 bits
        return session.run(None, {"x": x.astype(np.float32)})


@cache
def merging_session(
    kind: int, device: str, blocks: tuple[tuple[str, Any], ...]
) -> onnxruntime.InferenceSession:
    """One node that adds the statistics of x, of ONNX's type `kind`, to state."""
    node = helper.make_node("MergeStatistics", ["x", "state"], ["y"], domain="onnxfq", **dict(blocks))
    return make_session([node], {"x": kind, "state": INT64}, {"y": INT64}, device=device)


def ort_merge_statistics(x: np.ndarray, state: np.ndarray, **blocks: Any) -> np.ndarray:
    """Run operator MergeStatistics once in onnxruntime: the state after x."""
    hashable = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in blocks.items())
    session = merging_session(ONNX_TYPES[x.dtype], DEVICE["sessions"], hashable)
    return session.run(None, {"x": x, "state": state})[0]


class Ops:
    """Functions that the tests of this folder call."""

    session = staticmethod(make_session)
    fake_quantize = staticmethod(ort_fake_quantize)
    dynamic_fake_quantize = staticmethod(ort_dynamic_fake_quantize)
    qdq = staticmethod(ort_qdq)
    observe = staticmethod(ort_observe)
    merge_statistics = staticmethod(ort_merge_statistics)


@pytest.fixture(scope="session")
def ops() -> type[Ops]:
    """The operators and ONNX Runtime's Q/DQ as functions."""
    return Ops


@pytest.fixture
def rng() -> np.random.Generator:
    """A fixed seed: a failure can be repeated."""
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def same_bits() -> Callable[[np.ndarray, np.ndarray], None]:
    """A comparison that tells -0 from +0; any NaN equals any NaN."""

    def compare(actual: np.ndarray, expected: np.ndarray) -> None:
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        bits = np.uint32 if expected.dtype == np.float32 else np.uint16
        nan = [np.isnan(a.astype(np.float32)) for a in (actual, expected)]
        differ = (actual.view(bits) != expected.view(bits)) & ~(nan[0] & nan[1])
        wrong = np.flatnonzero(differ)
        assert wrong.size == 0, (
            f"{wrong.size} differ, first at {wrong[0]}: {actual.flat[wrong[0]]!r}, "
            f"expected {expected.flat[wrong[0]]!r}"
        )

    return compare


@pytest.fixture(scope="session")
def fills_out(same_bits: Callable[..., None]) -> Callable[..., None]:
    """A check that a kernel writes all elements of `out`, at an odd address or in place, and none outside."""

    def check(kernel: Any, expected: Any, source: np.ndarray, **how: Any) -> None:
        target = np.full(source.size + 16, 77, source.dtype)
        out, wanted = target[3 : 3 + source.size], expected(source, **how)
        wanted = wanted if isinstance(wanted, np.ndarray) else wanted[0]
        kernel(source, out=out, **how)
        same_bits(out.copy(), wanted)
        assert (target[:3] == 77).all() and (target[3 + source.size :] == 77).all()
        kernel(source, out=source, **how)
        same_bits(source, wanted)

    return check
