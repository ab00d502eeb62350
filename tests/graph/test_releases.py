"""Models kept to what a release of ONNX Runtime reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, feed_for, linear, weights, whole_recipe
from onnx import helper

from onnxfq.cli.main import main
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.schemes import WeightScheme
from onnxfq.errors import ModelError, RecipeError
from onnxfq.quantizing.pipeline import quantize
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.onnxruntime.releases import _IR_OF_TYPE, Release, release_of
from onnxfq.targets.recipes import load_recipe

SCHEME = WeightScheme(qtype="int8", granularity="blocked", block_size=32)
BLOCKS = load_recipe("tensorrt-int8-weights").model_copy(
    update={"name": "int8-blocks", "target": "onnxruntime", "weights": SCHEME}
)


def loads(opset: int, ir_version: int) -> bool:
    """Tell whether the installed onnxruntime loads a Relu at that opset and IR version."""
    proto = build("g (float[N] x) => (float[N] y) { y = Relu (x) }", opset=opset, ir=ir_version)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        content = proto.SerializeToString()
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime raises its own classes, one per status code
        return False
    return True


def test_the_table_is_true_of_the_installed_release() -> None:
    """The newest opset and IR version load, the next ones do not."""
    release = release_of("onnxruntime==" + ".".join(onnxruntime.__version__.split(".")[:2]))
    assert loads(release.opset, release.ir_version)
    assert not loads(release.opset + 1, release.ir_version)
    assert not loads(7, release.ir_version + 1)


def test_ir_versions_are_those_of_onnx() -> None:
    """ONNX's own checker and its table of opsets agree with the IR version of each type."""
    compared: set[str] = set()
    for name, ir_version in _IR_OF_TYPE.items():
        if not hasattr(onnx.TensorProto, name):
            continue
        kinds = {
            schema.since_version
            for schema in onnx.defs.get_all_schemas_with_history()
            if schema.name == "DequantizeLinear" and schema.domain == ""
            for constraint in schema.type_constraints
            if f"tensor({name.lower()})" in constraint.allowed_type_strs
        }
        if kinds:  # the first DequantizeLinear with the type is of the opset that came with its IR version
            first = helper.find_min_ir_version_for([helper.make_opsetid("", min(kinds))])
            assert ir_version <= first, name
            compared.add(name)
    assert compared >= {"FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"} and len(compared) >= 6


@pytest.mark.parametrize(("runtime", "ir"), [("1.17", 9), ("1.18", 10), ("ort==1.22", 10), ("1.31.1", 13)])
def test_the_ir_version_is_one_that_the_release_reads(runtime: str, ir: int, tmp_path: Path) -> None:
    """A model of a newer IR version comes out with one that is read, and is the same otherwise."""
    proto = linear(8, 4)
    proto.ir_version = 13
    words = runtime if "==" in runtime else f"onnxruntime=={runtime}"
    kept = quantize(proto, [feed_for(proto)], tmp_path / "q.onnx", options=QuantizeOptions(runtime=words))
    plain = quantize(proto, [feed_for(proto)])
    made = onnx.load(tmp_path / "q.onnx")
    assert made.ir_version == ir == kept.qdq.ir_version and plain.qdq.ir_version == 13
    onnx.checker.check_model(made, full_check=True)
    made.ir_version = 13
    assert made.graph == plain.qdq.graph


FLOAT8 = whole_recipe("tensorrt-fp8")
UNREADABLE = [
    (21, "tensorrt-int8", "1.17", "the given model is at opset 21, and onnxruntime 1.17 reads 20"),
    (17, "tensorrt-int4", "1.17", "recipe tensorrt-int4 needs opset 21, and onnxruntime 1.17 reads 20"),
    (17, "tensorrt-int4", "1.18", "needs int4, and onnxruntime 1.18 has no kernels for them; choose"),
    (21, BLOCKS, "1.18", "needs scales of blocks, and onnxruntime 1.18 has no kernels for them; choose"),
    (23, "tensorrt-int8", "1.23", "the given model is at opset 23, and onnxruntime 1.23 reads 22"),
    (17, FLOAT8, "1.15", "recipe tensorrt-fp8 needs opset 19, and onnxruntime 1.15 reads 18"),
    (17, "tensorrt-int8", "1.14", "the limits of onnxruntime 1.14 are unknown; known releases are 1.15 to"),
    (17, "tensorrt-int8", "new", "no runtime 'onnxruntime==new'; give onnxruntime==X, with X from 1.15"),
]


@pytest.mark.parametrize(("opset", "recipe", "runtime", "says"), UNREADABLE)
def test_what_a_release_cannot_read(
    opset: int, recipe: str | Recipe, runtime: str, says: str, tmp_path: Path
) -> None:
    """A model or recipe that needs more is refused in one line, and nothing is written."""
    text = "g (float[N,256] x) => (float[N,4] y) { y = MatMul (x, w) }"
    proto = build(text, {"w": weights(256, 4)}, opset=opset, ir=10)
    options = QuantizeOptions(runtime=f"onnxruntime=={runtime}")
    with pytest.raises((ModelError, RecipeError)) as caught:
        quantize(proto, [feed_for(proto)], tmp_path / "q.onnx", recipe=recipe, options=options)
    assert says in str(caught.value) and not list(tmp_path.iterdir())


def test_types_that_came_later() -> None:
    """If the opset would do, the types of tensors decide."""
    proto = build("g (float[4] x) => (float[4] y) { y = Relu (x) }", opset=20, ir=10)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", onnx.TensorProto.INT4, [4]))
    with pytest.raises(ModelError, match="needs IR version 10 for int4, and onnxruntime 9.9 reads 9"):
        Release("9.9", 20, 9).limit_model(proto, "r")


def test_on_the_command_line(tmp_path: Path) -> None:
    """`--runtime` keeps the written file to a release."""
    proto = linear(8, 4)
    proto.ir_version = 12
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=feed_for(proto, count=8)["x"])
    given = [str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    assert main(["quantize", *given, "--runtime", "onnxruntime==1.18", "-q"]) == 0
    assert onnx.load(tmp_path / "q.onnx").ir_version == 10
