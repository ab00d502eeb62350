"""Through graphsurgeon and back: nothing of a model is lost."""

from __future__ import annotations

from copy import deepcopy

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, constants, if_body, qdq_of, square, stage, weights
from onnx import TensorProto, helper, numpy_helper

from onnxfq.errors import PlanError
from onnxfq.graph.constants import constant_array, make_constant, weight_array
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.runtime.session import Session


def again(model: Model) -> onnx.ModelProto:
    """Import and export without an edit."""
    proto = model.with_graph(model.graph()).proto
    onnx.checker.check_model(proto, full_check=True)
    return proto


def assert_same(got: onnx.ModelProto, want: onnx.ModelProto) -> None:
    """Equal in every field, in any order of initializers and value infos."""
    plain = []
    for proto in (got, want):
        copy = deepcopy(proto)
        for field in (copy.graph.initializer, copy.graph.value_info):
            field.sort(key=lambda entry: entry.name)
        plain.append(copy)
    assert plain[0] == plain[1]


def assert_survives(proto: onnx.ModelProto) -> Model:
    """The loaded model comes back equal; return it."""
    model = load(proto)
    assert_same(again(model), model.proto)
    return model


@pytest.mark.parametrize("name", BUILDERS)
def test_models_survive(name: str) -> None:
    """Every structure of the builders comes back equal."""
    assert_survives(BUILDERS[name]())


def test_annotations_survive() -> None:
    """Metadata, doc strings, producer and versions of model, graph, nodes, inputs and weights stay."""
    proto = square("[a] h = MatMul (x, w) [b] y = Relu (h)")
    proto.producer_name, proto.producer_version, proto.domain = "maker", "1.2", "org.x"
    proto.model_version = 7
    holders = (proto, proto.graph, proto.graph.node[0], proto.graph.input[0], proto.graph.output[0])
    for holder in (*holders, proto.graph.initializer[0]):
        holder.doc_string = "read me"
        holder.metadata_props.add(key="k", value="v")
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    assert_survives(proto)


VALUES = {
    "float16": np.float16([1, 2.5]),
    "scalar": np.float32(3),
    "bfloat16": np.asarray([1, 2.5], ml_dtypes.bfloat16),
    "float64": np.float64([1, 2.5]),
    "float8e4m3fn": np.asarray([1, 2.5], ml_dtypes.float8_e4m3fn),
    "float8e4m3fnuz": np.asarray([1, 2.5], ml_dtypes.float8_e4m3fnuz),
    "float8e5m2": np.asarray([1, 2.5], ml_dtypes.float8_e5m2),
    "int4": np.asarray([-8, 7, 1], ml_dtypes.int4),
    "uint4": np.asarray([0, 15, 1], ml_dtypes.uint4),
    "bool": np.asarray([True, False]),
    "string": np.asarray(["a", "b"], object),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("name", VALUES)
def test_constants_of_every_type_survive(name: str) -> None:
    """A constant keeps its type and its bits, whether made, read by a node, or an output itself."""
    made = constant_array(make_constant("c", VALUES[name]))
    assert made.dtype == np.asarray(VALUES[name]).dtype
    assert made.tolist() == np.asarray(VALUES[name]).tolist()
    proto = build("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }", {"v": VALUES[name]}, opset=21, ir=10)
    kind, shape = proto.graph.initializer[0].data_type, list(VALUES[name].shape)
    proto.graph.node.append(helper.make_node("Identity", ["v"], ["u"], name="copy"))
    for output in "uv":
        proto.graph.output.append(helper.make_tensor_value_info(output, kind, shape))
    assert_survives(proto)


def test_attributes_unknown_to_graphsurgeon_survive() -> None:
    """A node keeps attributes of every kind: strings, lists, tensors, types, sparse tensors."""
    proto = build("g (float[N,4] x) => (float[N,4] y) { h = mine.Odd (x) y = Relu (h) }", mine=1)
    values = numpy_helper.from_array(np.float32([1]), "v")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64([2]), "i"), [4])
    given = {"s": "text", "f": 1.5, "ints": [1, 2], "t": values, "names": ["a", "b"], "sparse": sparse}
    proto.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in given.items())
    proto.graph.node[0].attribute.append(helper.make_attribute("kind", helper.make_tensor_type_proto(1, [2])))
    assert_survives(proto)


def test_graphs_are_copies() -> None:
    """Editing a graph leaves the model that it came from alone."""
    model = load(if_body())
    before = model.proto.SerializeToString(deterministic=True)
    graph = model.graph()
    graph.nodes.clear()
    graph.outputs.clear()
    assert model.proto.SerializeToString(deterministic=True) == before


def test_weight_array() -> None:
    """A constant is read by name; another name is an error."""
    model = load(if_body())
    np.testing.assert_array_equal(weight_array(model, "w"), weights(4, 4))
    with pytest.raises(PlanError, match="the plan calls 'h' a weight"):
        weight_array(model, "h")


def test_bodies_keep_what_they_say() -> None:
    """Doc strings, metadata, value types and names of bodies and of the nodes in them stay."""
    proto = if_body()
    body = proto.graph.node[1].attribute[0].g
    body.doc_string = "a branch"
    for holder in (body, body.node[0], body.output[0]):
        holder.metadata_props.add(key="k", value="v")
    body.node[0].doc_string = "read me"
    model = assert_survives(proto)
    kept = next(a.g for a in model.proto.graph.node[1].attribute if a.g.name == body.name)
    assert kept.doc_string == "a branch" and kept.node[0].metadata_props[0].value == "v"


@pytest.mark.parametrize("opset", [12, 17])
def test_annotations_name_what_is_there(opset: int) -> None:
    """The constants that an annotation names stay though nothing reads them; annotations of what goes go."""
    proto = build(
        """g (float[N,4] x) => (float[N,4] y) {
            h = Relu (x) r = Reshape (v, s) z = Add (h, r) y = MatMul (z, w) }""",
        {"w": weights(4, 4), "range": weights(2), "v": weights(1, 4), "s": np.asarray([4])},
        opset=opset,
    )
    for name in ("h", "w"):
        note = proto.graph.quantization_annotation.add(tensor_name=name)
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="range")
    assert_survives(proto)
    made = qdq_of(stage(proto))
    assert [note.tensor_name for note in made.graph.quantization_annotation] == ["h"]
    np.testing.assert_array_equal(constants(made)["range"], weights(2))


def test_device_configurations_survive() -> None:
    """How nodes are spread over devices stays, and speaks of the tensors that they read now."""
    proto = square("[a] h = Relu (x) [b] y = MatMul (h, w)", opset=18, ir=11)
    proto.configuration.add(name="two", num_devices=2)
    part = proto.graph.node[1].device_configurations.add(configuration_id="two", pipeline_stage=1)
    part.sharding_spec.add(tensor_name="w", device=[0, 1])
    part.sharding_spec.add(tensor_name="y", device=[0, 1])
    assert_survives(proto)
    for recipe in ("tensorrt-int8", "tensorrt-fp8"):  # the second one raises the opset
        made = qdq_of(stage(proto, recipe))
        assert [c.name for c in made.configuration] == ["two"]
        (found,) = made.graph.node[-1].device_configurations
        assert [s.tensor_name for s in found.sharding_spec] == ["w/dq", "y"] and found.pipeline_stage == 1


def test_training_is_left_out_with_a_note() -> None:
    """Passes that make new float weights do not apply to stored integers."""
    proto = square("[a] y = MatMul (x, w)")
    step = proto.training_info.add()
    step.algorithm.name = "step"
    step.algorithm.node.append(helper.make_node("Add", ["w", "w"], ["next"]))
    step.algorithm.output.append(helper.make_tensor_value_info("next", TensorProto.FLOAT, [4, 4]))
    step.update_binding.add(key="w", value="next")
    model = load(proto)
    assert "1 training_info left out: it trains float weights, not quantized ones" in model.notes
    assert not model.proto.training_info and proto.training_info


KINDS = {
    "optional": "o = Optional (x) h = OptionalGetElement (o) y = MatMul (h, w)",
    "optional in a body": """o = Optional (x) b = OptionalHasElement (o)
        y = If (b) <then_branch = p () => (float[N,4] t) { h = OptionalGetElement (o) t = MatMul (h, w) },
                    else_branch = q () => (float[N,4] e) { e = Identity (x) }>""",
    "sequence": "a = MatMul (x, w) s = SequenceConstruct (a, x) h = SequenceAt (s, i) y = MatMul (h, w)",
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_tensor_survives(name: str) -> None:
    """Sequences and optionals keep their types, are not float tensors, and do not get in the way."""
    one = stage(square(KINDS[name], {"i": np.int64(0)}, opset=18))
    assert_same(again(one.model), one.model.proto)
    assert all(row.quantized == row.total for row in one.plan.coverage())
    assert not {"o", "s"} & {skipped.name for skipped in one.plan.skipped}
    made = qdq_of(one)
    onnx.checker.check_model(made, full_check=True)
    Session(made, 1).run(one.feed)
