"""The CUDA kernels on a GPU against the CPU's: the same bits, and sessions that never leave the GPU.

Skipped where there is none. `scripts/gpu_check.sh` compares far more values and measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from body_models import MODELS
from builders import BUILDERS, build, feed_for, planned
from observed_models import by_axis, known_channels
from onnx import numpy_helper

from onnxfq.calibration.statistics import TensorStatistics, empty_state
from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.io.load import load
from onnxfq.runtime import kernels
from onnxfq.runtime.custom_ops import register_custom_ops
from onnxfq.runtime.device_choice import self_test
from onnxfq.runtime.devices import gpus, open_place
from onnxfq.runtime.providers import cuda_problem, providers
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.score import score_models

try:
    HAVE_GPU = bool(gpus())
except RuntimeLibraryError:
    HAVE_GPU = False

pytestmark = pytest.mark.skipif(not HAVE_GPU, reason="there is no GPU, or the library has no CUDA kernels")
needs_provider = pytest.mark.skipif(bool(cuda_problem()), reason="onnxruntime cannot use the GPU")

TYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ROUNDINGS = ["half_even", "half_up", "half_away", "half_down", "floor", "ceil", "truncate"]
LAYOUTS: list[tuple[tuple[int, ...], Any]] = [((), None), ((7, 1, 1), (1, -1, -1)), ((7, 5, 3), (1, 2, 16))]


def values(dtype: np.dtype) -> np.ndarray:
    """Random bits of a type, without NaN, whose bits are not defined."""
    bits = np.random.default_rng(5).integers(0, 2 ** (8 * dtype.itemsize), 7 * 9 * 33, np.uint32)
    x = bits.astype(f"u{dtype.itemsize}").view(dtype).reshape(7, 9, 33)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.where(np.isnan(x), dtype.type(1), x).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("qtype", ["int8", "uint4", "int16", "float8e4m3fn", "float8e5m2fnuz", "float4e2m1"])
def test_fake_quantize_gives_the_bits_of_the_cpu(qtype: str, rounding: str, dtype: np.dtype) -> None:
    """Every format, rounding and element type, per tensor, per axis and in blocks."""
    x = values(dtype)
    for shape, blocks in LAYOUTS:
        scale = np.random.default_rng(6).uniform(0.001, 1, shape).astype(np.float32)
        how: dict[str, Any] = {"qtype": qtype, "rounding": rounding, "block_shape": blocks}
        on_cpu = kernels.fake_quantize(x, scale, **how)
        assert kernels.fake_quantize(x, scale, device="cuda", **how).tobytes() == on_cpu.tobytes()


@pytest.mark.parametrize("scale_type", ["float32", "e8m0", "e4m3"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_dynamic_fake_quantize_gives_the_bits_of_the_cpu(dtype: np.dtype, scale_type: str) -> None:
    """Values and scales, for each kind of scale."""
    for blocks in (None, (1, -1, -1), (1, 1, 16), (-1, 3, 5)):
        how: dict[str, Any] = {"qtype": "float4e2m1", "scale_type": scale_type, "block_shape": blocks}
        on_cpu = kernels.dynamic_fake_quantize(values(dtype), **how)
        on_gpu = kernels.dynamic_fake_quantize(values(dtype), device="cuda", **how)
        assert [a.tobytes() for a in on_gpu] == [a.tobytes() for a in on_cpu]


@pytest.mark.parametrize("histogram", [True, False])
def test_observe_gives_the_statistics_of_the_cpu(histogram: bool) -> None:
    """Range, counts and histogram, NaN and infinities among the values."""
    bits = np.random.default_rng(8).integers(0, 2**32, 100_003, np.uint32).view(np.float32)
    for x in (bits, np.full(50_000, 6, np.float32), np.zeros(0, np.float32)):
        on_cpu = kernels.observe(x, histogram=histogram)
        on_gpu = kernels.observe(x, histogram=histogram, device="cuda")
        assert [a.tobytes() for a in on_gpu] == [a.tobytes() for a in on_cpu]


def test_rows_stay_on_the_gpu() -> None:
    """Rows begin as they shall, and the first numbers of some of them are fetched while they stay there."""
    head = np.arange(1, 9)
    with open_place("cuda") as place:
        rows = place.rows(5, 20, head)
        assert place.rows(0, 20, head).read(0, 0, 8).shape == (0, 8)
        expected = np.tile(np.concatenate([head, np.zeros(12, np.int64)]), (5, 1))
        for columns in (0, 1, 8, 20):
            np.testing.assert_array_equal(rows.read(1, 4, columns), expected[1:4, :columns])


def test_self_test_passes() -> None:
    """The self-test of `onnxfq doctor` passes."""
    assert [outcome.fault for outcome in self_test("cuda", in_sessions=False)] == [""] * 3


def open_on_gpu(model: onnx.ModelProto, count: int, **entries: str) -> onnxruntime.InferenceSession:
    """A session with the first `count` providers of the GPU, and with these entries of its configuration."""
    options = onnxruntime.SessionOptions()
    for name, value in entries.items():
        options.add_session_config_entry(f"session.{name}", value)
    register_custom_ops(options)
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=providers("cuda")[:count])


@needs_provider
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_sessions_stay_on_the_gpu(kind: str) -> None:
    """FakeQuantize with constant scales runs between nodes of onnxruntime on the GPU alone, run after run."""
    x = np.random.default_rng(2).standard_normal((4, 6, 5)).astype("float32" if kind == "float" else kind)
    scale = np.linspace(0.01, 0.1, 6, dtype=np.float32)
    nodes = 'r = Relu (x) q = onnxfq.FakeQuantize <qtype = "int8", axis = 1> (r, scale) y = Neg (q)'
    model = build(f"g ({kind}[4,6,5] x) => ({kind}[4,6,5] y) {{ {nodes} }}", {"scale": scale}, onnxfq=1)
    session = open_on_gpu(model, 1, disable_cpu_ep_fallback="1")
    expected = -kernels.fake_quantize(np.maximum(x, 0), scale, qtype="int8", axis=1)
    for _ in range(3):
        assert session.run(None, {"x": x})[0].tobytes() == expected.tobytes()


@needs_provider
def test_state_stays_on_the_gpu() -> None:
    """Input and output of MergeStatistics are bound to one tensor of the device, fetched once at the end."""
    size = empty_state().size
    merge = "merged = onnxfq.MergeStatistics (x, state)"
    text = f"g (float[n] x, int64[{size}] state) => (int64[{size}] merged) {{ {merge} }}"
    session = open_on_gpu(build(text, onnxfq=1), 2)
    state = onnxruntime.OrtValue.ortvalue_from_numpy(empty_state(), "cuda", 0)
    batches = [np.random.default_rng(i).standard_normal(10_000 + i).astype(np.float32) for i in range(5)]
    for batch in batches:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(batch, "cuda", 0))
        binding.bind_ortvalue_input("state", state)
        binding.bind_ortvalue_output("merged", state)
        session.run_with_iobinding(binding)
    found = TensorStatistics.from_state(state.numpy())
    expected = TensorStatistics.from_array(np.concatenate(batches))
    assert (found.rmin, found.rmax, found.elements) == (expected.rmin, expected.rmax, expected.elements)
    np.testing.assert_array_equal(found.bins, expected.bins)
    np.testing.assert_array_equal(found.counts, expected.counts)


def whole_numbers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with small integers for weights: its sums are exact, in whatever order they are made."""
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(np.rint(values * 4), tensor.name))
    return proto


@needs_provider
@pytest.mark.parametrize("groups", [False, True], ids=["", "by channels"])
@pytest.mark.parametrize("name", ["shared_weight", "gemm", "if", "else", "nested"])
def test_statistics_of_models_are_those_of_the_cpu(name: str, groups: bool, tmp_path: Path) -> None:
    """Merged on the GPU over feeds, in bodies too, they make the file that observing on the CPU makes."""
    make, more = ({name: (make, {}) for name, make in BUILDERS.items()} | MODELS)[name]
    proto = whole_numbers(make())
    model, plan = load(proto), planned(proto)
    if groups:
        plan = by_axis(plan, known_channels(model, plan))
    feeds = []
    for seed in range(3):
        feed = feed_for(proto, seed) | more
        feeds.append({n: np.rint(a) if a.dtype == np.float32 else a for n, a in feed.items()})
    files = []
    for device in ("cpu", "cuda"):
        options = ObserveOptions(feed_ranges=True, device=device)
        collect_statistics(model, plan, feeds, options).save(tmp_path / device)
        files.append((tmp_path / device).read_bytes())
    assert files[0] == files[1]


@needs_provider
@pytest.mark.parametrize("name", ["two_branch", "attention", "if", "nested", "scan"])
def test_models_are_compared_on_the_gpu(name: str) -> None:
    """Fake-quant and Q/DQ models score there what they score on the CPU.

    Within 1 dB: cuDNN and cuBLAS sum in another order, and a value at the middle between two steps of these
    small tensors goes to the other one.
    """
    make, more = ({name: (make, {}) for name, make in BUILDERS.items()} | MODELS)[name]
    proto = make()
    model, plan, feed = load(proto), planned(proto), feed_for(proto) | more
    encodings = calibrate(model, plan, collect_statistics(model, plan, [feed], ObserveOptions(device="cpu")))
    candidates = {
        "fake-quant": insert_fake_quantize(model, plan, encodings),
        "Q/DQ": insert_qdq(model, plan, encodings),
    }
    scores = [score_models(proto, candidates, [feed], device=device) for device in ("cpu", "cuda")]
    for on_cpu, on_gpu in zip(*(one.candidates for one in scores), strict=True):
        for wanted, found in zip(on_cpu.outputs, on_gpu.outputs, strict=True):
            assert abs(wanted.sqnr_db - found.sqnr_db) < 1
