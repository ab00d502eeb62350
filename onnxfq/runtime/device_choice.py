"""Device choice: `any` selects a GPU that passes every check, as the bit-exact self-test against NumPy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from onnx import parser

from onnxfq.calibration.statistics import TensorStatistics, empty_state
from onnxfq.choices import DeviceChoice
from onnxfq.errors import OnnxfqError, RuntimeLibraryError, SpecError, nearest
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
            y = kernels.fake_quantize(x, scale, device=device, **how, **granularity.attributes)
            fault = _describe_difference(y, numerics.fake_quantize(x, scale, **how, granularity=granularity))
            if fault:
                return f"{qtype} {rounding}: {fault}"
    return ""


def _dynamic_fake_quantize(device: Device) -> str:
    x = _values()
    for scale_type in ("float32", "e8m0"):
        how: dict[str, Any] = {"qtype": "int8", "scale_type": scale_type}
        results = kernels.dynamic_fake_quantize(x, device=device, **how, block_shape=(1, 32))
        blocked = Granularity(block_shape=(1, 32))
        expected = dynamic_fake_quantize(x, **how, granularity=blocked)
        fault = _describe_difference(results[0], expected[0]) or _describe_difference(results[1], expected[1])
        if fault:
            return f"{scale_type}: {fault}"
    return ""


def _observe(device: Device) -> str:
    x = _values()
    expected = TensorStatistics.from_array(x)
    statistics = TensorStatistics.from_results(*kernels.observe(x, device=device))
    return _compare_statistics(statistics, expected)


def _session(device: Device) -> str:
    x, scale = _values(), np.full(37, 0.03, np.float32)
    session = _open_session(
        f"(float[37, 129] x) => (float[37, 129] y) <float[37] scale = {{{', '.join(['0.03'] * 37)}}}>"
        '{ y = onnxfq.FakeQuantize<qtype = "int8", axis = 0>(x, scale) }',
        device,
    )
    (y,) = session.run({"x": x})
    expected = numerics.fake_quantize(x, scale, qtype="int8", granularity=Granularity(0))
    return _describe_difference(y, expected)


def _test_merging(device: Device) -> str:
    x, state = _values(), empty_state()
    session = _open_session(
        f"(float[37, 129] x, int64[{state.size}] state) => (int64[{state.size}] merged)"
        "{ merged = onnxfq.MergeStatistics(x, state) }",
        device,
    )
    (state,) = session.run({"x": x, "state": state})
    (state,) = session.run({"x": x, "state": state})
    once = TensorStatistics.from_array(x)
    return _compare_statistics(TensorStatistics.from_state(state), once.merge(once))


def _open_session(graph: str, device: Device) -> Session:
    head = '<ir_version: 8, opset_import: ["" : 17, "onnxfq" : 1]> self_test '
    return Session(parser.parse_model(head + graph), 1, device=device)


def _describe_difference(result: NDArray[Any], expected: NDArray[Any]) -> str:
    if result.tobytes() == expected.tobytes():
        return ""
    different = int((result.view(np.uint32) != expected.view(np.uint32)).sum())
    return f"{different} of {result.size} values differ from NumPy's"


def _compare_statistics(statistics: TensorStatistics, expected: TensorStatistics) -> str:
    same = (
        (statistics.rmin, statistics.rmax) == (expected.rmin, expected.rmax)
        and (statistics.elements, statistics.zeros) == (expected.elements, expected.zeros)
        and (statistics.nans, statistics.infinities) == (expected.nans, expected.infinities)
        and np.array_equal(statistics.bins, expected.bins)
        and np.array_equal(statistics.counts, expected.counts)
    )
    return "" if same else "other statistics than NumPy's"
