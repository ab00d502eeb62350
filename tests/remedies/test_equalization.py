"""Equalized channels from data to model: the same numbers in every form, and far less noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights, without
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime import InferenceSession

import onnxfq
from onnxfq.calibration.statistics import Statistics
from onnxfq.cli.main import main
from onnxfq.data.options import Nonfinite
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.errors import SpecError, StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.numerics.spec import QuantSpec
from onnxfq.report.calibrator_table import calibrator_rows
from onnxfq.report.tensor_rows import quantized_tensors
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import MergingObserver, ObserveOptions
from onnxfq.stages.plan import make_plan, observation_plan
from onnxfq.targets.recipes import load_recipe

ONE_SCALE = load_recipe("tensorrt-int8").override(activations={"equalize": "none"})
SIZES = 2.0 ** np.asarray([0, -9, 3, -4, -6, 1, -2, -11])


def network(opset: int = 17, outputs: int = 8) -> onnx.ModelProto:
    """Channels of very different sizes, made even by the depthwise weights as training does it."""
    first = weights(8, 3, 3, 3) * SIZES.reshape(-1, 1, 1, 1)
    depthwise = weights(outputs, 1, 3, 3) / np.repeat(SIZES, outputs // 8).reshape(-1, 1, 1, 1)
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
        [first] c = Conv <pads = [1,1,1,1]> (x, w0)
        [sigmoid] s = Sigmoid (c)
        [silu] h = Mul (c, s)
        [depth] d = Conv <group = 8, pads = [1,1,1,1]> (h, w1)
        [last] y = Conv (d, w2) }"""
    arrays = {"w0": first, "w1": depthwise, "w2": weights(4, outputs, 1, 1)}
    return build(text, {name: a.astype(np.float32) for name, a in arrays.items()}, opset=opset)


def feeds(count: int = 6) -> list[dict[str, NDArray[np.float32]]]:
    """Normal images."""
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((2, 3, 8, 8), dtype=np.float32)} for _ in range(count)]


def observed(model: onnxfq.Model) -> NDArray[np.float32]:
    """Return what the depthwise convolution reads, over all feeds."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model.proto)
    shown.graph.output.append(onnx.ValueInfoProto(name="h"))
    session = InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["h"], feed)[0] for feed in feeds()])


def stages(
    proto: onnx.ModelProto, recipe: str | onnxfq.Recipe = "tensorrt-int8"
) -> tuple[onnxfq.Model, onnxfq.Plan, Statistics, Encodings]:
    """All values up to the encodings."""
    model = load(proto)
    plan = make_plan(model, load_recipe(recipe))
    statistics = collect_statistics(model, plan, feeds(), ObserveOptions(threads=1))
    return model, plan, statistics, calibrate(model, plan, statistics)


def ran(proto: onnx.ModelProto) -> NDArray[np.float32]:
    """Outputs of ONNX Runtime, nothing optimised."""
    return np.asarray(Session(proto, 1, exact=True).run(feeds()[0])[0])


@pytest.mark.grid
@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("outputs", [8, 16])
def test_forms_agree_to_the_bit(opset: int, outputs: int) -> None:
    """FakeQuantize by channels = Mul, one pair, multiplied scales of the weight: nothing is rounded twice."""
    model, plan, _, encodings = stages(network(opset, outputs))
    qdq = onnxfq.insert_qdq(model, plan, encodings)
    assert [n.name for n in qdq.graph.node if n.op_type == "Mul"] == ["silu", "h/equalized"]
    np.testing.assert_array_equal(ran(qdq), ran(onnxfq.insert_fake_quantize(model, plan, encodings)))


def test_against_scales_along_the_axis() -> None:
    """ONNX Runtime gives the same for Q/DQ with a scale for each channel, which is what it stands for."""
    model, plan, _, encodings = stages(network())
    qdq = onnxfq.insert_qdq(model, plan, encodings)

    def plain(spec: QuantSpec) -> QuantSpec:
        return spec.model_copy(update={"equalized": False})

    by_axis = plan.model_copy(
        update={
            "placements": tuple(p.model_copy(update={"spec": plain(p.spec)}) for p in plan.placements),
            "target": "onnxruntime",
        }
    )
    same = encodings.model_copy(
        update={"encodings": tuple(e.model_copy(update={"spec": plain(e.spec)}) for e in encodings.encodings)}
    )
    other = onnxfq.insert_qdq(model, by_axis, same)
    assert not [n for n in other.graph.node if n.name == "h/equalized"]
    np.testing.assert_array_equal(ran(qdq), ran(other))


@pytest.mark.sample
def test_far_less_noise() -> None:
    """At least 10 dB better than one scale, at the output, where channels differ by 2^14."""
    sqnr = []
    for which in (ONE_SCALE, "tensorrt-int8"):
        model, plan, _, encodings = stages(network(), which)
        qdq = onnxfq.insert_qdq(model, plan, encodings)
        sqnr.append(ErrorSums.from_arrays(ran(network()), ran(qdq)).sqnr_db)
    assert sqnr[1] > sqnr[0] + 10.0


def test_channels_of_one_size_have_no_mul() -> None:
    """If all factors are 1, the graph is the same as with one scale."""
    text = """g (float[N,4,6,6] x) => (float[N,4,6,6] y) { y = Conv <group = 4, pads = [1,1,1,1]> (x, w) }"""
    model = load(build(text, {"w": weights(4, 1, 3, 3)}))
    plan = make_plan(model, load_recipe("tensorrt-int8"))
    x = np.tile(np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 1, 6, 6), (1, 4, 1, 1))
    statistics = collect_statistics(model, plan, [{"x": x}], ObserveOptions(threads=1))
    qdq = onnxfq.insert_qdq(model, plan, calibrate(model, plan, statistics))
    assert {n.op_type for n in qdq.graph.node} == {"QuantizeLinear", "DequantizeLinear", "Conv"}


def test_ranges_of_channels() -> None:
    """NumPy's over ONNX Runtime's own tensor; the tensor's statistics are those without equalizing."""
    model, plan, statistics, _ = stages(network())
    h = observed(model)
    # Sigmoid is computed in another order in another layout.
    expected = np.stack([h.min(axis=(0, 2, 3)), h.max(axis=(0, 2, 3))], axis=1)
    np.testing.assert_allclose(statistics.channels["h"], expected, rtol=1e-5)
    whole = stages(network(), ONE_SCALE)[2]
    assert not whole.channels
    for name, one in whole.tensors.items():
        assert np.array_equal(one.counts, statistics[name].counts), name
        assert (one.rmin, one.rmax, one.zeros) == (statistics[name].rmin, statistics[name].rmax, one.zeros)
    assert plan.placements[2].spec.observed_granularity == PER_TENSOR


def test_statistics_serve_all_plans() -> None:
    """Gathered with channels or without a plan: for scales of channels and one scale, for any calibrator.

    Those without channels are refused in one line with the remedies. Each channel keeps its whole range, and
    the table of calibrators has no row for it.
    """
    model, plan, statistics, encodings = stages(network())
    with pytest.raises(StatisticsError, match="'h', over .* lack the channel ranges.*equalize: none"):
        calibrate(model, plan, without(statistics, "channels"))
    assert calibrate(model, make_plan(model, ONE_SCALE), statistics)["h"].param_shape == ()
    every = collect_statistics(model, observation_plan(model), feeds(), ObserveOptions(threads=1))
    for recipe, shape in (("tensorrt-int8", (8,)), ("onnxruntime-int8", ())):
        assert calibrate(model, make_plan(model, load_recipe(recipe)), every)["h"].param_shape == shape
    assert calibrate(model, plan, statistics, "entropy")["h"] == encodings["h"]
    assert {row.tensor for row in calibrator_rows(plan, statistics)} == {"x", "d"}


def test_file_and_merge(tmp_path: Path) -> None:
    """Ranges are kept in the file, and parts of the data in any order give the ranges of all."""
    model, plan, statistics, encodings = stages(network())
    parts = [
        collect_statistics(model, plan, part, ObserveOptions(threads=1))
        for part in (feeds()[4:], feeds()[:4])
    ]
    parts[0].save(tmp_path / "a.npz")
    merged = Statistics.load(tmp_path / "a.npz").merge(parts[1])
    assert merged.sha256 == statistics.sha256
    assert calibrate(model, plan, merged) == encodings
    with pytest.raises(StatisticsError, match="only one side has ranges of the channels of tensor 'h'"):
        statistics.merge(without(statistics, "channels"))
    assert without(statistics, "channels").sha256 != statistics.sha256


def test_expected_noise() -> None:
    """The report's is at most 0.5 dB above what FakeQuantize does to the observed values, and 3 dB below.

    It takes values to lie evenly between the numbers of the grid; those near 0 have less noise.
    """
    model, plan, statistics, encodings = stages(network())
    h = observed(model)
    row = next(row for row in quantized_tensors(model, plan, statistics, encodings) if row.tensor == "h")
    found = ErrorSums.from_arrays(h, encodings["h"].fake_quantize(h)).sqnr_db
    assert found - 3.0 < row.sqnr_db < found + 0.5


def test_encodings_that_are_no_powers_of_two_apart() -> None:
    """They are refused: a Mul could not bring them to one scale without rounding."""
    spec = QuantSpec(qtype="int8", axis=1, equalized=True)
    with pytest.raises(SpecError, match="must differ by powers of two"):
        Encoding.of("t", spec, np.asarray([1, 3], np.float32), np.zeros(2, np.int32))
    spec = QuantSpec(qtype="uint8", symmetric=False, axis=1, equalized=True)
    with pytest.raises(SpecError, match="share one zero_point"):
        Encoding.of("t", spec, np.asarray([1, 2], np.float32), np.asarray([0, 1], np.int32))


@pytest.mark.parametrize(("option", "found"), [((), True), (("--equalize", "none"), False)], ids=str)
def test_command(option: tuple[str, ...], found: bool, tmp_path: Path) -> None:
    """`quantize` equalizes unless switched off."""
    onnx.save(network(), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.concatenate([feed["x"] for feed in feeds()]))
    arguments = ["quantize", tmp_path / "m.onnx", "--data", tmp_path / "data.npz", "-o", tmp_path / "q.onnx"]
    assert main([*map(str, arguments), "-q", "--repair", "off", *option]) == 0
    names = {node.name for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert ("h/equalized" in names) is found


@pytest.mark.parametrize("floats", ["fp16", "bf16"])
def test_with_a_half_remainder(floats: str) -> None:
    """The model that has the rest in 16 bits runs, and gives nearly the same."""
    options = onnxfq.QuantizeOptions(floats=onnxfq.FloatOptions(floats))
    made = plain_quantize(network(), feeds(), options=options)
    assert made.evaluation.candidates[0].outputs[0].sqnr_db > 20.0
    if floats == "fp16":
        assert made.evaluation.candidates[1].outputs[0].sqnr_db > 20.0


def test_converted(tmp_path: Path) -> None:
    """`convert` of an equalized Q/DQ model keeps the Mul and every grid: its output has the same bits."""
    source, converted = tmp_path / "q.onnx", tmp_path / "c.onnx"
    plain_quantize(network(), feeds(), source)
    assert main(["convert", str(source), "-o", str(converted)]) == 0
    np.testing.assert_array_equal(ran(onnx.load(converted)), ran(onnx.load(source)))


@pytest.mark.grid
@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_ranges_of_channels_that_the_model_merges(opset: int, nonfinite: Nonfinite, tmp_path: Path) -> None:
    """The bytes of what is merged outside of it, as on a GPU: what is not finite is left out."""
    model = load(network(opset))
    plan, data = make_plan(model, load_recipe("tensorrt-int8")), feeds()
    assert any(p.spec.equalized for p in plan.activations)
    data[1]["x"][:] = -0.0
    if nonfinite == "skip":
        data[2]["x"].flat[::7] = [np.nan, np.inf, -np.inf, *data[2]["x"].flat[21::7]]
    options = ObserveOptions(nonfinite=nonfinite, device="cpu")
    collect_statistics(model, plan, data, options).save(tmp_path / "outside.npz")
    with MergingObserver(model, plan, options, "cpu") as observer:
        observer.run(data).save(tmp_path / "inside.npz")
        parts = observer.run(data[:2]).merge(observer.run(data[2:], first=2))
    parts.save(tmp_path / "parts.npz")
    expected = (tmp_path / "outside.npz").read_bytes()
    assert (tmp_path / "inside.npz").read_bytes() == (tmp_path / "parts.npz").read_bytes() == expected


BEHIND_UNKNOWN = ["", "[more] h = Conv (g, w3)", "[more] m = Conv (g, w3) h = Relu (m)"]


@pytest.mark.parametrize("more", BEHIND_UNKNOWN)
def test_shapes_that_nothing_infers(more: str, tmp_path: Path) -> None:
    """Behind an operator of ONNX Runtime the input is equalized too, as behind the same in ONNX's own."""

    def find_factors(op: str) -> NDArray[np.float32]:
        proto = network()
        made = build(
            f"""g (float[N,3,8,8] x) => (float[N,4,8,8] y) {{
                [first] {"g" if more else "h"} = {op} <pads = [1,1,1,1]> (x, w0) {more}
                [depth] d = Conv <group = 8, pads = [1,1,1,1]> (h, w1) [last] y = Conv (d, w2) }}""",
            {"w3": np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)},
            **{"com.microsoft": 1},
        )
        made.graph.initializer.extend(proto.graph.initializer)
        result = plain_quantize(made, feeds(), tmp_path / f"{op}.onnx", recipe="tensorrt-int8")
        assert [p.tensor for p in result.plan.activations if p.spec.equalized] == ["h"]
        # The first Conv is quantized in one of the two models only, so the factors are compared.
        constants = onnx.load(tmp_path / f"{op}.onnx").graph.initializer
        return numpy_helper.to_array(next(t for t in constants if t.name == "h/channel_factors"))

    np.testing.assert_array_equal(find_factors("com.microsoft.FusedConv"), find_factors("Conv"))


def test_stages_where_only_a_run_finds_the_shape(tmp_path: Path) -> None:
    """A plan that was made with data is observed and inserted by commands that do not know the shape."""
    made = build(
        """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
            f = com.microsoft.FusedConv <pads = [1,1,1,1]> (x, w0) h = Conv (f, w3)
            d = Conv <group = 8, pads = [1,1,1,1]> (h, w1) y = Conv (d, w2) }""",
        {"w0": weights(8, 3, 3, 3), "w3": np.diag(SIZES).astype(np.float32).reshape(8, 8, 1, 1)},
        **{"com.microsoft": 1},
    )
    made.graph.initializer.extend(t for t in network().graph.initializer if t.name in ("w1", "w2"))
    onnx.save(made, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feed["x"] for feed in feeds()]))
    m, d, p, s, e, q = (str(tmp_path / n) for n in ("m.onnx", "d.npz", "p.json", "s.npz", "e.json", "q.onnx"))
    for words in (
        ["plan", m, "--data", d, "-o", p],
        ["observe", m, "--plan", p, "--data", d, "-o", s],
        ["calibrate", m, "--plan", p, "--statistics", s, "-o", e],
        ["insert", m, "--plan", p, "--encodings", e, "-o", q],
    ):
        assert main(words) == 0
    want, got = (Session(load(one).proto, 1).run(feeds()[0])[0] for one in (made, q))
    assert 10 * np.log10((want**2).mean() / ((want - got) ** 2).mean()) > 30
