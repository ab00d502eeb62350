"""Every command reads every form of a quantized model: what one of them reads, the others do too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Arrays, build, run_as_written, scalars, weights
from onnx import helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from ort_quantizer import by_ort

from onnxfq.diagnosis.diagnose import diagnose
from onnxfq.errors import ModelError
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.quantized.qonnx import pairs_of_qonnx
from onnxfq.quantizing.pipeline import quantize
from onnxfq.stages.evaluate import evaluate
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.check import check
from onnxfq.tools.convert import convert
from onnxfq.tools.inspect import inspect_model

pytestmark = pytest.mark.filterwarnings("ignore")  # onnxruntime's quantizer is not under test

AGAIN = load_recipe("tensorrt-int8").model_copy(update={"existing": "requantize"})
NOISE_DB = 20.0
"""SQNR that int8 ranges of normal values leave after two products."""

CONSTANTS = {"w": weights(8, 3, 3, 3) / 5, "b": weights(8), "m": weights(8, 4) / 3}
DATA = [{"x": weights(1, 3, 8, 8, seed=seed)} for seed in range(8)]
HEADER = "g (float[1,3,8,8] x) => (float[1,4] y) {{ {} c = Conv <pads = [1, 1, 1, 1]> ({}, {}, b) "
BEHIND = "r = Relu (c) p = GlobalAveragePool (r) f = Flatten (p) y = MatMul (f, m) }"
STEP = np.float32(np.abs(CONSTANTS["w"]).max() / 127)


def network(first: str = "", data: str = "x", weight: str = "w", **more: np.ndarray) -> onnx.ModelProto:
    """Return a Conv and a MatMul; `first` computes operands of the Conv."""
    return build(HEADER.format(first, data, weight) + BEHIND, CONSTANTS | more)


def by_qonnx(_: Path) -> onnx.ModelProto:
    """Return the network with quantizers of QONNX in front of the Conv."""
    numbers = {"bits": np.float32(8), "z": np.float32(0), "sw": STEP, "sx": np.float32(3 / 127)}
    proto = network(data="xq", weight="wq", **numbers)
    for at, (name, scale) in enumerate((("x", "sx"), ("w", "sw"))):
        given = {"domain": "qonnx.custom_op.general", "signed": 1, "narrow": 0, "rounding_mode": "ROUND"}
        node = helper.make_node("Quant", [name, scale, "z", "bits"], [f"{name}q"], f"{name}/quant", **given)
        proto.graph.node.insert(at, node)
    proto.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    return proto


def by_casts(_: Path) -> onnx.ModelProto:
    """Return the network with the weight of the Conv in integers."""
    stored = np.rint(CONSTANTS["w"] / STEP).astype(np.int8)
    return network("f8 = Cast <to = 1> (w8) v = Mul (f8, s)", weight="v", w8=stored, s=STEP)


def by_functions(_: Path) -> onnx.ModelProto:
    """Return the network with pairs in a local function, in front of the Conv."""
    proto = network(data="xq", weight="wq", z=np.int8(0), sw=STEP, sx=np.float32(3 / 127))
    for at, name in enumerate("xw"):
        node = helper.make_node("pair", [name, f"s{name}", "z"], [f"{name}q"], f"{name}/pair", domain="own")
        proto.graph.node.insert(at, node)
    reads, ends = ["s", "z"], (("QuantizeLinear", "a", "q"), ("DequantizeLinear", "q", "b"))
    body = [helper.make_node(op, [source, *reads], [result]) for op, source, result in ends]
    imports = list(proto.opset_import)
    proto.functions.append(helper.make_function("own", "pair", ["a", *reads], ["b"], body, imports))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def by_dynamic(folder: Path) -> onnx.ModelProto:
    """Return the network with a MatMul whose ranges follow the values."""
    onnx.save(network(), folder / "f.onnx")
    quantize_dynamic(folder / "f.onnx", folder / "q.onnx", op_types_to_quantize=["MatMul"])
    return onnx.load(folder / "q.onnx")


INTEGERS = {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8, "per_channel": True}
FORMS: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "pairs": lambda folder: by_ort(network(), DATA, folder, quant_format=QuantFormat.QDQ),
    "integer operators": lambda folder: by_ort(network(), DATA, folder, **INTEGERS),
    "dynamic": by_dynamic,
    "QONNX": by_qonnx,
    "casts": by_casts,
    "functions": by_functions,
    "FakeQuantize": lambda _: quantize(network(), DATA, recipe="tensorrt-int8").simulation,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_door_reads_every_form(form: str, tmp_path: Path) -> None:
    """Results stay near the float network, and the summary lists quantizers."""
    proto = FORMS[form](tmp_path)
    results = {
        "source": proto,
        "converted": convert(proto, data=DATA).qdq,
        "again": quantize(proto, DATA, recipe=AGAIN).qdq,
    }
    for candidate in evaluate(network(), results, DATA).candidates:
        assert candidate.outputs[0].sqnr_db > NOISE_DB, candidate.candidate
    assert inspect_model(proto).quantized
    assert diagnose(proto, data=DATA).verdict
    check(proto)


def assert_near(source: onnx.ModelProto, result: onnx.ModelProto, feed: Arrays, zero: float = 0.0) -> None:
    """Assert that the first output has its type and stays near the source's."""
    want, got = run_as_written(source, feed)[0], run_as_written(result, feed)[0]
    assert want.dtype == got.dtype
    pair = (one.astype(np.float64) - zero for one in (want, got))
    assert ErrorSums.from_arrays(*pair).sqnr_db > NOISE_DB


@pytest.mark.parametrize("behind", ["", "t"])
def test_inputs_and_outputs_of_integers(behind: str) -> None:
    """They keep their type, moved or not, as TFLite's full integer form has them; causes are looked for."""
    last = f"{behind or 'y'} = QuantizeLinear (h, sy, zy)"
    moved = "y = Transpose <perm = [1, 0]> (t)" if behind else ""
    proto = build(
        f"""g (int8[N,8] x) => (int8[A,B] y) {{ d = DequantizeLinear (x, sx, zx)
            wd = DequantizeLinear <axis = 1> (w, sw) h = MatMul (d, wd) {last} {moved} }}""",
        scalars(np.float32, sx=0.03, sw=[0.01] * 6, sy=0.05)
        | scalars(np.int8, zx=-5, zy=3, w=np.arange(-24, 24).reshape(8, 6)),
    )
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(-128, 128, (4, 8)).astype(np.int8)} for _ in range(8)]
    for result in (convert(proto, data=feeds).qdq, quantize(proto, feeds, recipe=AGAIN).qdq):
        assert_near(proto, result, feeds[0], zero=3.0)
    assert diagnose(proto, data=feeds).quantizers == 2


def test_quantizers_in_bodies(tmp_path: Path) -> None:
    """Products in both branches of an If are read like those outside."""
    text = "{0} () => (float[N,16] {1}) {{ {2} = MatMul (r, {3}) {1} = {4} ({2}) }}"
    proto = build(
        f"""g (float[N,16] x) => (float[N,16] y) {{ m = MatMul (x, w) r = Relu (m)
            k = ReduceMean <keepdims = 0> (r) c = Greater (k, level) i = If (c) <
                then_branch = {text.format("t", "a", "h", "w2", "Relu")},
                else_branch = {text.format("e", "z", "q", "w3", "Tanh")}>
            y = MatMul (i, w4) }}""",
        {name: weights(16, 16, seed=at) / 3 for at, name in enumerate(("w", "w2", "w3", "w4"))}
        | {"level": np.float32(0.4)},
    )
    for graph in (proto.graph, *(a.g for a in proto.graph.node[4].attribute)):
        for at, node in enumerate(graph.node):
            node.name = f"{graph.name}{at}"
    onnx.save(proto, tmp_path / "f.onnx")
    quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx", extra_options={"EnableSubgraph": True})
    source = onnx.load(tmp_path / "q.onnx")
    feeds = [{"x": weights(8, 16, seed=seed)} for seed in range(8)]
    for result in (convert(source, data=feeds).qdq, quantize(source, feeds, recipe=AGAIN).qdq):
        assert_near(source, result, feeds[0])
    assert "quantizer in a body of If: 2" in diagnose(source, data=feeds).not_looked_at


def test_qonnx_in_evaluate_is_its_definition() -> None:
    """A candidate of QONNX runs as the pairs that its quantizers define."""
    both = {"a": by_qonnx(Path()), "b": pairs_of_qonnx(by_qonnx(Path()), "m")}
    first, second = evaluate(network(), both, DATA).candidates
    assert first.outputs == second.outputs


def test_damaged_parameters_are_one_line() -> None:
    """A zero point that does not fit its scale names the node."""
    proto = build(
        "g (float[N,8] x) => (float[N,6] y) { [wd] d = DequantizeLinear (w, s, z) y = MatMul (x, d) }",
        {"w": np.ones((8, 6), np.int8), "s": np.float32(0.1), "z": np.zeros(4, np.int8)},
    )
    with pytest.raises(ModelError, match=r"DequantizeLinear 'wd' does not fit its inputs .*export it again"):
        convert(proto)
