"""`check` as a whole: with and without a builder, what it says of one that fails, and its shapes."""

from __future__ import annotations

import json
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import attention, build, build_used, conv_relu, qdq_of, stage
from engines import needs_builder
from onnx.backend.test.case.node import collect_testcases
from planted import CONV, change, conv_constants, stored

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import DataError, RecipeError, RuntimeLibraryError
from onnxfq.graph.external import sizes
from onnxfq.targets.findings import CheckResult, Finding
from onnxfq.targets.profiles import profiles
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder import build as building
from onnxfq.targets.tensorrt.builder import jobs
from onnxfq.targets.tensorrt.builder.jobs import Report
from onnxfq.targets.tensorrt.rules.structure import STANDARD, UNSUPPORTED

OPSET = {"opset": 21, "ir": 10}


def conv(**changes: object) -> onnx.ModelProto:
    """Return one int8 convolution in Q/DQ."""
    return build(CONV, conv_constants(**changes), **OPSET)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with good.onnx, bad.onnx and open.onnx."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv(), "good.onnx")
    onnx.save(build(change(CONV, ("axis = 0", "axis = 1")), conv_constants(), **OPSET), "bad.onnx")
    onnx.save(qdq_of(stage(conv_relu())), "open.onnx")


def reported(monkeypatch: pytest.MonkeyPatch, *reports: Report) -> None:
    """Let the builder give these reports."""
    monkeypatch.setattr(building, "run_jobs", lambda jobs, seconds: list(reports))


def test_unknown_target() -> None:
    """A target without rules is refused with those that have some."""
    with pytest.raises(RecipeError, match="no rules for target 'tensort'; nearest: tensorrt"):
        onnxfq.check(conv(), "tensort")


def test_findings_that_are_alike_are_one_line() -> None:
    """Text has one line with a count for findings that differ in names and numbers alone; JSON has all."""
    alike = [
        Finding(
            rule="axis", severity="float", node=f"n{i}", op_type="Conv", message=f"axis {i} of 'w{i}' is odd"
        )
        for i in range(6)
    ]
    other = Finding(rule="axis", severity="float", node="m", op_type="Conv", message="a scale is missing")
    result = CheckResult(source="s", target="tensorrt", findings=(*alike, other), coverage=())
    lines = [line for line in result.table().splitlines() if "axis" in line]
    others = "Conv 'n1', Conv 'n2', Conv 'n3' and 2 more, all in --json"
    said = f"float axis 6 times: Conv 'n0': axis 0 of 'w0' is odd; the same of {others}"
    assert lines[0].split() == said.split()
    assert lines[1].split() == "float axis Conv 'm': a scale is missing".split() and len(lines) == 2
    assert "findings   7 float" in result.table()
    assert CheckResult.model_validate_json(result.model_dump_json()).findings == (*alike, other)


def test_nothing_is_changed() -> None:
    """The given model keeps its bytes."""
    model = attention()
    before = model.SerializeToString(deterministic=True)
    onnxfq.check(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.whole
def test_every_operator_of_onnx_is_read(request: pytest.FixtureRequest) -> None:
    """The rules go through models of ONNX's own operator tests without a fault of theirs.

    One of each operator, or all with --all-cases.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their expected values, some of them infinite
        models = [case.model for case in collect_testcases(None) if case.model is not None]
    assert len(models) > 1000
    most = len(models) if request.config.getoption("--all-cases") else 1
    by_operator = defaultdict[str, list[onnx.ModelProto]](list)
    for model in models:
        by_operator[model.graph.node[-1].op_type].append(model)
    results = [onnxfq.check(model) for alike in by_operator.values() for model in alike[:most]]
    refused = {f.op_type for r in results for f in r.findings if f.rule == "operator"}
    assert refused & STANDARD <= UNSUPPORTED and {"QLinearConv", "Unique"} <= refused


def test_dense_blocks_take_no_time() -> None:
    """Joins of joins, sixty deep, are followed once each."""
    joins = [f"[j{i}] t{i} = Concat <axis = 1> (t{i - 1}, x)" for i in range(1, 61)]
    text = "g (float[1,1,6,6] x) => (float[1,4,6,6] y) { [r] t0 = Relu (x) " + " ".join(joins)
    model = build(text + " [conv] y = Conv (t60, w) }", {"w": stored(4, 61, 1, 1, dtype=np.float32)})
    start = time.process_time()
    onnxfq.check(model)
    assert time.process_time() - start < 5  # seconds; without a memory it would be 2^60 steps


def test_local_functions_are_looked_into() -> None:
    """A mistake inside a local function is found."""
    model = conv(s=conv_constants()["s"] * 0)
    function = onnx.helper.make_function(
        "mine", "Pair", ["a", "s", "z"], ["d"],
        [onnx.helper.make_node("QuantizeLinear", ["a", "s", "z"], ["q"]),
         onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"])],
        [onnx.helper.make_opsetid("", 21)],
    )  # fmt: skip
    del model.graph.node[0:2]
    call = onnx.helper.make_node("Pair", ["x", "s", "z"], ["d"], domain="mine", name="call")
    model.graph.node.insert(0, call)
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    assert [f.rule for f in onnxfq.check(model).findings] == ["scale-value"]


def test_unnamed_nodes_are_told_apart() -> None:
    """A node without a name goes by its output, in the rules and in the engine."""
    model = build(change(CONV, ("axis = 0", "axis = 1")), conv_constants(), **OPSET)
    for node in model.graph.node:
        node.name = ""
    (found,) = onnxfq.check(model).findings
    assert (found.node, found.op_type) == ("y", "Conv")


@pytest.mark.sample
def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorRT for RTX one line says what to install; the rules work."""
    monkeypatch.setattr(jobs, "builder_installed", lambda: False)
    with pytest.raises(RuntimeLibraryError, match=r"pip install 'onnxfq\[tensorrt\]'"):
        onnxfq.check(conv(), build=BuildOptions())
    assert onnxfq.check(conv()).passed


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (Report("1.7.1", True, True), "logs no 'Layers:'"),
        (Report("1.7.1", True, True, layers="Layers:\nlayer one"), "in an unknown format"),
        (Report("1.6.1.120", True, False), "1.6.1.120 refuses every int8 convolution"),
    ],
)
def test_changed_format_is_an_error(monkeypatch: pytest.MonkeyPatch, report: Report, says: str) -> None:
    """A log that cannot be read is not a pass: an error says so."""
    reported(monkeypatch, report, report)
    with pytest.raises(RuntimeLibraryError, match=says):
        onnxfq.check(conv(), build=BuildOptions())


@pytest.mark.parametrize(
    ("report", "rule", "says"),
    [
        (Report(ended="was ended by signal 11"), "crash", "was ended by signal 11 on this model for SM86"),
        (Report("1.7.1", faults=(("n", "Odd", "no\nplugin"),)), "parser", "cannot parse it: no plugin"),
        (Report("1.7.1", True, errors=("no kernel",)), "builder", "cannot build it for SM86: no kernel"),
    ],
)
def test_failures_are_findings(monkeypatch: pytest.MonkeyPatch, report: Report, rule: str, says: str) -> None:
    """A crash, a refusal of the parser and one of the builder are findings, and nothing is covered."""
    reported(monkeypatch, report, report)
    result = onnxfq.check(conv(), build=BuildOptions())
    assert result.findings[0].rule == rule and says in result.findings[0].message
    assert not result.passed and result.coverage[0].kept == 0


def test_rules_speak_before_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rule names a refusal, the builder's words about it are left out."""
    reported(monkeypatch, *[Report("1.7.1", faults=(("xq", "QuantizeLinear", "no"),))] * 2)
    result = onnxfq.check(conv(s=conv_constants()["s"] * 0), build=BuildOptions())
    assert [f.rule for f in result.findings] == ["scale-value"]


@needs_builder
def test_timeout_is_a_finding() -> None:
    """A builder that takes too long is ended, and a line says so."""
    result = onnxfq.check(conv(), build=BuildOptions(seconds=0.01))
    assert {f.rule for f in result.findings} == {"timeout"}
    assert "took more than 0.01 s" in result.findings[0].message


def test_engine_tells_what_no_rule_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that the builder turns to float without a rule for it is a separate finding."""
    layers = (
        "Layers:\nName: conv_0, LayerType: correlation, Inputs: [ { Name: a, Dimensions: [1,8,6,6], "
        "Format/Datatype: Float } ], Constants: [], Outputs: [], TacticName: x, Metadata: [ONNX Layer: conv]"
    )
    reported(monkeypatch, *[Report("1.7.1", True, True, layers=layers)] * 2)
    result = onnxfq.check(conv(), build=BuildOptions())
    assert [(f.severity, f.rule, f.node) for f in result.findings] == [("float", "engine", "conv")]
    assert "the engine has float on SM86, float on SM89" in result.findings[0].message
    assert not result.passed and str(result.coverage[0]) == "Conv 0/1 low"


def test_a_float_model_is_told() -> None:
    """A model without a quantized operator gets a warning: it may be the wrong file."""
    result = onnxfq.check(conv_relu())
    assert [(f.severity, f.rule) for f in result.findings] == [("warning", "not-quantized")]
    assert result.passed and "no operator between pairs" in result.table()


QONNX = """g (float[N,8] x) => (float[N,6] y) {
    a = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b) y = MatMul (a, w) }"""
NBITS = """g (float[N,16] x) => (float[N,4] y) {
    a = com.microsoft.MatMulNBits <K = 16, N = 4, bits = 4, block_size = 16> (x, w, s) y = MatMul (a, v) }"""
CHANNELS = """g (float[N,4,8,8] x) => (float[N,4,6,6] y) {
    q = QuantizeLinear <axis = 1> (x, s, z) a = DequantizeLinear <axis = 1> (q, s, z)
    v = DequantizeLinear (w, t) y = Conv <group = 4> (a, v) }"""


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "qnn", "tensorrt"])
def test_quantizers_of_qonnx_are_refused(target: str) -> None:
    """Each is refused with a remedy, and no finding calls the file a float model."""
    numbers = {"s": np.float32(0.1), "z": np.float32(0), "b": np.float32(8), "w": np.ones((8, 6), np.float32)}
    found = onnxfq.check(build(QONNX, numbers, **{"qonnx.custom_op.general": 1}), target).findings
    assert (found[0].severity, found[0].rule) == ("refused", "qonnx")
    assert "`onnxfq convert`" in found[0].message
    assert all(one.rule not in ("not-quantized", "session") for one in found)


def test_weights_of_few_bits_are_no_float_model() -> None:
    """A file of MatMulNBits and a product in float is quantized."""
    floats = {"s": np.ones(4, np.float32), "v": np.ones((4, 4), np.float32)}
    numbers = floats | {"w": np.ones((4, 1, 8), np.uint8)}
    found = onnxfq.check(build(NBITS, numbers, **{"com.microsoft": 1}), "onnxruntime").findings
    assert not [one for one in found if one.rule == "not-quantized"]


PRODUCTS = {
    "QLinearConv": """g (float[1,4,8,8] x) => (float[1,6,6,6] y) { q = QuantizeLinear (x, s, z)
        o = QLinearConv (q, s, z, c, t, n, u, z) y = DequantizeLinear (o, u, z) }""",
    "QLinearMatMul": """g (float[2,8] x) => (float[2,6] y) { q = QuantizeLinear (x, s, z)
        o = QLinearMatMul (q, s, z, w, t, n, u, z) y = DequantizeLinear (o, u, z) }""",
    "MatMulInteger": """g (float[2,8] x) => (float[2,6] y) { q, a, b = DynamicQuantizeLinear (x)
        o = MatMulInteger (q, w, b) f = Cast <to = 1> (o) y = Mul (f, a) }""",
    "ConvInteger": """g (float[1,4,8,8] x) => (float[1,6,6,6] y) { q, a, b = DynamicQuantizeLinear (x)
        o = ConvInteger (q, c, b) f = Cast <to = 1> (o) y = Mul (f, a) }""",
    "DynamicQuantizeMatMul": """g (float[2,8] x) => (float[2,6] y) {
        y = com.microsoft.DynamicQuantizeMatMul (x, w, t) }""",
    "MatMulNBits": """g (float[2,16] x) => (float[2,6] y) {
        y = com.microsoft.MatMulNBits <K = 16, N = 6, bits = 4, block_size = 16> (x, p, r) }""",
}
LOW = {
    "onnxruntime": [*PRODUCTS],
    "openvino": ["QLinearConv", "QLinearMatMul", "MatMulNBits"],
    "tensorrt": [],
}


@pytest.mark.parametrize("target", LOW)
@pytest.mark.parametrize("op", PRODUCTS)
def test_products_on_integers_count(op: str, target: str) -> None:
    """Operators of other tools are in the coverage: low where the runtime has them, else not."""
    numbers = {name: np.float32(scale) for name, scale in (("s", 0.05), ("t", 0.01), ("u", 0.1))}
    numbers |= {"z": np.uint8(128), "n": np.int8(0), "w": np.ones((8, 6), np.int8)}
    numbers |= {"c": np.ones((6, 4, 3, 3), np.int8), "p": np.ones((6, 1, 8), np.uint8)}
    proto = build_used(PRODUCTS[op], numbers | {"r": np.ones(6, np.float32)}, **{"com.microsoft": 1})
    result = onnxfq.check(proto, target)
    expects = "weight-only" if op == "MatMulNBits" else "low"
    assert [str(one) for one in result.coverage] == [f"{op} {int(op in LOW[target])}/1 {expects}"]


def by_channel() -> onnx.ModelProto:
    """Return a depthwise convolution with NNCF's scales by channel."""
    numbers = {"s": np.array([1, 2, 3, 4], np.float32), "z": np.zeros(4, np.uint8)}
    return build(CHANNELS, numbers | {"w": np.ones((4, 1, 3, 3), np.int8), "t": np.float32(0.1)})


def test_a_limit_that_the_session_does_not_meet_is_a_loss_of_speed() -> None:
    """The session runs the convolution in float, so that nothing is refused."""
    proto = by_channel()
    (unopened,) = onnxfq.check(proto, "onnxruntime", build=False).findings
    (opened,) = onnxfq.check(proto, "onnxruntime").findings
    assert (unopened.rule, unopened.severity) == ("activation-scales", "refused")
    assert (opened.rule, opened.severity) == ("activation-scales", "float")


def test_a_file_without_a_recipe_gets_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of another tool has no recipe to change: the last line makes it again."""
    onnx.save(by_channel(), tmp_path / "m.onnx")
    for target, recipe in (("onnxruntime", "onnxruntime-int8"), ("qnn", "qnn-int8")):
        assert main(["check", str(tmp_path / "m.onnx"), "--target", target]) == 1
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("cure ") and f"--requantize --recipe {recipe} --data DATA" in last


@needs_builder
def test_large_models_are_built_from_two_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model that one file cannot hold is handed over with its weights next to it."""
    monkeypatch.setattr(sizes, "LIMIT", 0)
    model = build(CONV, conv_constants(w=stored(256, 8, 3, 3), ws=np.ones(256, np.float32), wz=None), **OPSET)
    model.graph.node[2].input.pop()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1024)
    assert str(onnxfq.check(tmp_path / "m.onnx", build=BuildOptions()).coverage[0]) == "Conv 1/1 low"


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({}, ((1, 3, 6, 6), (4, 3, 6, 6), (8, 3, 6, 6))),
        ({"x": (16, 3, 6, 6)}, ((1, 3, 6, 6), (16, 3, 6, 6), (16, 3, 6, 6))),
    ],
)
def test_profiles(shapes: dict[str, tuple[int, ...]], expected: tuple[tuple[int, ...], ...]) -> None:
    """An open batch goes from 1 to 8, or to what is given."""
    assert profiles(conv_relu(), shapes) == {"x": expected}


def test_equal_names_are_equal_sizes() -> None:
    """A dimension of one name has one size in all inputs; images are 224, others 64."""
    model = build(
        "g (float[N,3,H,W] x, float[2,N] b, float[2,L] c, float[3,4] d) => (float[N,3,H,W] y){ y = Relu (x) }"
    )
    found = profiles(model, {})
    assert found["x"] == ((1, 3, 224, 224), (4, 3, 224, 224), (8, 3, 224, 224))
    assert found["b"] == ((2, 1), (2, 4), (2, 8))
    assert found["c"] == ((2, 64),) * 3 and "d" not in found


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"y": (1,)}, "'y', which the model does not take; known: x"),
        ({"x": (1, 3)}, "input 'x' is \\?x3x6x6, but the given shape is 1x3"),
        ({"x": (1, 4, 6, 6)}, "the given shape is 1x4x6x6"),
    ],
)
def test_wrong_shapes(shapes: dict[str, tuple[int, ...]], says: str) -> None:
    """A shape that does not fit is refused with the input and what it is."""
    with pytest.raises(DataError, match=says):
        profiles(conv_relu(), shapes)


@pytest.mark.sample
@pytest.mark.usefixtures("files")
def test_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 for a clean model, 1 for findings, 2 for wrong usage; text or JSON."""
    assert main(["check", "good.onnx"]) == 0
    assert "coverage   Conv 1/1 low (by the rules, nothing was built)" in capfd.readouterr().out
    assert main(["check", "bad.onnx", "--target", "tensorrt"]) == 1
    text = capfd.readouterr().out
    assert "float  weight-axis  Conv 'conv': weight 'w'" in text and "findings   1 float" in text
    assert main(["check", "bad.onnx", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["findings"][0]["rule"] == "weight-axis"
    assert main(["check", "good.onnx", "--shape", "x:1x2"]) == 2
    assert "--shape needs --build; add it" in capfd.readouterr().err
    assert main(["check", "good.onnx", "--build", "--shape", "x"]) == 2
    assert "a shape is NAME:1x3x224x224, got 'x'" in capfd.readouterr().err
    assert main(["check", "none.onnx"]) == 1


@pytest.mark.sample
@needs_builder
@pytest.mark.usefixtures("files")
def test_command_builds(capfd: pytest.CaptureFixture[str]) -> None:
    """With --build the coverage comes from the engines, for the shape that is given."""
    assert main(["check", "open.onnx", "--build", "--shape", "x:2x3x6x6"]) == 0
    assert "Conv 1/1 low (built by TensorRT for RTX 1.7" in capfd.readouterr().out
