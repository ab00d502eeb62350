"""Device choice: `any` selects a GPU that passes every check, as the bit-exact self-test against NumPy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxfq.calibration.statistics import TensorStatistics, empty_state
from onnxfq.choices import DeviceChoice
from onnxfq.errors import OnnxfqError, RuntimeLibraryError, SpecError, nearest
from onnxfq.graph.ops import ONNXFQ_DOMAIN
from onnxfq.numerics import affine as numerics
from onnxfq.numerics.block_scales import dynamic_fake_quantize
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.runtime import kernels
from onnxfq.runtime.devices import Device, gpus, gpus_of_driver
from onnxfq.runtime.providers import cuda_problem
from onnxfq.runtime.session import Session

log = logging.getLogger(__name__)


def choose_device(wanted: DeviceChoice) -> Device:
    """Return the device to run on. "any" logs once, in one line, whether it uses a GPU, or why not.

    Raises RuntimeLibraryError with cause and remedy if "cuda" is requested and cannot be used, SpecError for
    an unknown name.
    """
    if wanted == "any":
        return _choose_any()
    if wanted not in get_args(DeviceChoice):
        hint = {"auto": "; it is called 'any' here"}.get(wanted) or nearest(wanted, get_args(DeviceChoice))
        raise SpecError(f"unknown device {wanted!r}{hint}")
    if wanted == "cuda" and gpu_problem():
        raise RuntimeLibraryError(f"device 'cuda' cannot be used: {gpu_problem()}")
    return wanted


def fall_back(wanted: DeviceChoice, device: Device, error: OnnxfqError) -> Device:
    """Return the CPU after the first feed failed on a GPU, with a note, if "any" chose the GPU.

    A model that fails on a GPU may run on the CPU: memory may be short, or the CUDA provider may lack a form
    of an operator. Raises `error` if the GPU was requested by name, or `device` is the CPU.
    """
    if wanted != "any" or device == "cpu":
        raise error
    log.warning("running on the CPU: %s", error)
    return "cpu"


@cache
def gpu_problem() -> str:
    """Return in one line why sessions cannot use a GPU, wrong results included; empty if they can."""
    problem = cuda_problem()
    if problem:
        return problem
    wrong = [outcome for outcome in self_test("cuda") if outcome.fault]
    return f"{wrong[0].kernel} fails its self-test there: {wrong[0].fault}" if wrong else ""


@cache
def _choose_any() -> Device:
    problem = gpu_problem()
    if not problem:
        log.warning("running on %s; choose device cpu for the CPU", gpus()[0])
        return "cuda"
    # A machine without a GPU loses nothing, so commands do not report it.
    level = logging.WARNING if gpus_of_driver() else logging.INFO
    log.log(level, "running on the CPU: %s", problem)
    return "cpu"


@dataclass(frozen=True)
class Outcome:
    """Result of a self-test.

    Attributes:
        device: a device, or the name of one of several GPUs.
        fault: empty if the test passed.
    """

    device: str
    kernel: str
    fault: str


def self_test(device: Device, in_sessions: bool = True) -> list[Outcome]:
    """Test every kernel on `device` against its definition in NumPy.

    Args:
        device: "cpu" or "cuda".
        in_sessions: also test the operators in onnxruntime.
    """
    tests: dict[str, Callable[[Device], str]] = {
        "FakeQuantize": _fake_quantize,
        "DynamicFakeQuantize": _dynamic_fake_quantize,
        "Observe" if device == "cpu" else "MergeStatistics": _observe,
    }
    if in_sessions:
        tests |= {
            "FakeQuantize in a session": _session,
            "MergeStatistics in a session": _test_merging,
        }
    return [Outcome(device, name, _fault(test, device)) for name, test in tests.items()]


def _fault(test: Callable[[Device], str], device: Device) -> str:
    try:
        return test(device)
    except OnnxfqError as error:
        return str(error)


def _values() -> NDArray[np.float32]:
    x = np.random.default_rng(7).standard_normal((37, 129)).astype(np.float32)
    x[0, :4] = 0.0, -0.0, np.inf, -np.inf
    return x


def _fake_quantize(device: Device) -> str:
    x = _values()
    blocked = Granularity(block_shape=(1, 32))
    layouts: list[tuple[Any, Granularity]] = [
        (0.03, PER_TENSOR),
        (np.full((37, 5), 0.03, np.float32), blocked),
    ]
    for qtype, rounding in (("int8", "half_even"), ("int4", "half_away"), ("float8e4m3fn", "half_even")):
        for scale, granularity in layouts:
            how: dict[str, Any] = {"qtype": qtype, "rounding": rounding}
            found = kernels.fake_quantize(x, scale, device=device, **how, **granularity.attributes)
            fault = _describe_difference(
                found, numerics.fake_quantize(x, scale, **how, granularity=granularity)
            )
            if fault:
                return f"{qtype} {rounding}: {fault}"
    return ""


def _dynamic_fake_quantize(device: Device) -> str:
    x = _values()
    for scale_type in ("float32", "e8m0"):
        how: dict[str, Any] = {"qtype": "int8", "scale_type": scale_type}
        found = kernels.dynamic_fake_quantize(x, device=device, **how, block_shape=(1, 32))
        blocked = Granularity(block_shape=(1, 32))
        expected = dynamic_fake_quantize(x, **how, granularity=blocked)
        fault = _describe_difference(found[0], expected[0]) or _describe_difference(found[1], expected[1])
        if fault:
            return f"{scale_type}: {fault}"
    return ""


def _observe(device: Device) -> str:
    x = _values()
    expected = TensorStatistics.from_array(x)
    found = TensorStatistics.from_results(*kernels.observe(x, device=device))
    return _compare_statistics(found, expected)


def _session(device: Device) -> str:
    x, scale = _values(), np.full(37, 0.03, np.float32)
    node = helper.make_node("FakeQuantize", ["x", "scale"], ["y"], domain=ONNXFQ_DOMAIN, qtype="int8", axis=0)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)]
    constants = [helper.make_tensor("scale", TensorProto.FLOAT, scale.shape, scale)]
    session = _open_node_session(node, inputs, outputs, constants, device)
    (found,) = session.run({"x": x})
    return _describe_difference(
        found, numerics.fake_quantize(x, scale, qtype="int8", granularity=Granularity(0))
    )


def _test_merging(device: Device) -> str:
    x, state = _values(), empty_state()
    node = helper.make_node("MergeStatistics", ["x", "state"], ["merged"], domain=ONNXFQ_DOMAIN)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("state", TensorProto.INT64, state.shape),
    ]
    outputs = [helper.make_tensor_value_info("merged", TensorProto.INT64, state.shape)]
    session = _open_node_session(node, inputs, outputs, [], device)
    (state,) = session.run({"x": x, "state": state})
    (state,) = session.run({"x": x, "state": state})
    once = TensorStatistics.from_array(x)
    return _compare_statistics(TensorStatistics.from_state(state), once.merge(once))


def _open_node_session(
    node: onnx.NodeProto,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
    device: Device,
) -> Session:
    graph = helper.make_graph([node], "self_test", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ONNXFQ_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Session(model, 1, device=device)


def _describe_difference(found: NDArray[Any], expected: NDArray[Any]) -> str:
    if found.tobytes() == expected.tobytes():
        return ""
    different = int((found.view(np.uint32) != expected.view(np.uint32)).sum())
    return f"{different} of {found.size} values differ from NumPy's"


def _compare_statistics(found: TensorStatistics, expected: TensorStatistics) -> str:
    same = (
        (found.rmin, found.rmax) == (expected.rmin, expected.rmax)
        and (found.elements, found.zeros) == (expected.elements, expected.zeros)
        and (found.nans, found.infinities) == (expected.nans, expected.infinities)
        and np.array_equal(found.bins, expected.bins)
        and np.array_equal(found.counts, expected.counts)
    )
    return "" if same else "other statistics than NumPy's"
