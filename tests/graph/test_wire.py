"""Models whose weights are left in their file, or elsewhere: the same as protobuf reads and writes."""

from __future__ import annotations

import gc
import io
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, feed_for, linear, weights, whole_recipe
from builders import plain_quantize as quantize
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper, shape_inference

from onnxfq.errors import ModelError, OutputError
from onnxfq.graph import constants as constants_module
from onnxfq.graph.checker import check_model
from onnxfq.graph.external import sizes
from onnxfq.graph.external.scratch_file import Scratch, weights_stored_in
from onnxfq.graph.external.streaming import _read_varint, _varint, read_without_values, serialize
from onnxfq.graph.external.tensor import attach, embed, is_external, tensor_array
from onnxfq.graph.external.weightless import split_weights
from onnxfq.graph.io.load import load
from onnxfq.graph.io.save import save
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import encode_weights
from onnxfq.stages.options import RunOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.check import check
from onnxfq.tools.handoff import handoff


@pytest.fixture
def everything_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the weights of every model in its file."""
    monkeypatch.setattr(sizes, "IN_MEMORY", 0)
    monkeypatch.setattr(sizes, "SMALL", 8)


@pytest.fixture
def everything_is_large(everything_in_its_file: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every model as one whose weights do not fit in memory."""
    monkeypatch.setattr(sizes, "ONE_PIECE", 0)
    monkeypatch.setattr(constants_module, "_FEW", 8)


def annotated() -> onnx.ModelProto:
    """A model with a field of every kind around its initializers: metadata, doc strings, a function."""
    proto = BUILDERS["if_body"]()
    proto.doc_string, proto.graph.doc_string = "a model", "a graph"
    proto.metadata_props.add(key="k", value="v")
    proto.graph.initializer[0].doc_string = "a weight"
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((0, 3), np.float32), "empty"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(["a", "b"], object), "words"))
    typed = proto.graph.initializer.add(name="typed", data_type=TensorProto.FLOAT, dims=[300])
    typed.float_data.extend(range(300))  # values outside of raw_data stay where they are
    return proto


@pytest.mark.parametrize("large", [0, 8, 1024])
def test_reading_finds_what_protobuf_finds(large: int, tmp_path: Path) -> None:
    """The light model with its values put back is, field by field, what protobuf reads."""
    for name, proto in [*((name, make()) for name, make in BUILDERS.items()), ("annotated", annotated())]:
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString())
        light = read_without_values(path, large)
        left = {t.name for t in proto.graph.initializer if len(t.raw_data) > large}
        assert {t.name for t in light.graph.initializer if is_external(t)} == left
        for tensor in light.graph.initializer:
            tensor.CopyFrom(embed(tensor))
        assert light == proto


def test_streaming_writes_what_protobuf_reads(tmp_path: Path) -> None:
    """A streamed model, its values in the file it came from or inside, is the model."""
    for proto in [*(make() for make in BUILDERS.values()), annotated()]:
        path = tmp_path / "m.onnx"
        path.write_bytes(proto.SerializeToString())
        for given_proto in (proto, read_without_values(path, 0)):
            stream = io.BytesIO()
            stream.writelines(serialize(given_proto))
            if given_proto is proto:
                assert stream.getvalue() == proto.SerializeToString(deterministic=True)
            made = onnx.ModelProto.FromString(stream.getvalue())
            for one, other in zip(made.graph.initializer, proto.graph.initializer, strict=True):
                np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))
            del made.graph.initializer[:]
            bare = deepcopy(proto)
            del bare.graph.initializer[:]
            assert made == bare


@given(st.integers(0, 2**63))
def test_numbers_of_any_length(value: int) -> None:
    """Lengths are read as they are written."""
    assert _read_varint(_varint(value), 0, 10) == (value, len(_varint(value)))


def test_any_cut_and_any_flip_is_an_error_of_its_own_or_a_model(tmp_path: Path) -> None:
    """Damaged files raise what is promised and nothing else: no endless loop, no other exception."""
    proto = build("g (float[N,2] x) => (float[N,2] y) { [a] y = MatMul (x, w) }", {"w": weights(2, 2)})
    content = proto.SerializeToString()
    path, refused = tmp_path / "m.onnx", 0
    number, bits = int.from_bytes(content, "big"), 8 * len(content)
    flipped = ((number ^ 1 << bit).to_bytes(len(content), "big") for bit in range(bits))
    for one in (*(content[:end] for end in range(1, len(content))), *flipped):
        path.write_bytes(one)
        try:
            read_without_values(path, 8)
        except (ValueError, DecodeError):
            refused += 1
    assert refused > len(content)


every_place_of_weights = pytest.mark.parametrize(
    "name", ["conv_relu", "tied_embedding", "if_body", "transposed_weight"]
)


@pytest.mark.grid
@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8"])
@every_place_of_weights
def test_large_models_of_every_structure(name: str, recipe: str, tmp_path: Path) -> None:
    """Weights left in the file, rounded into a scratch file and streamed out: ONNX accepts it, scores are."""
    proto, path = BUILDERS[name](), tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert any(is_external(tensor) for tensor in load(path).proto.graph.initializer)
    options = RunOptions(exact=True)
    feeds, wanted = [feed_for(proto)], whole_recipe(recipe)
    result = quantize(path, feeds, tmp_path / "q.onnx", recipe=wanted, options=options)
    assert any(is_external(tensor) for tensor in result.qdq.graph.initializer)
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    fake, deployed = result.evaluation.candidates
    for one, other in zip(fake.outputs, deployed.outputs, strict=True):
        assert one.sqnr_db == other.sqnr_db > 10
    quantize(path, feeds, tmp_path / "again.onnx", recipe=wanted)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()
    save(result.simulation, tmp_path / "sim.onnx")
    onnx.checker.check_model(str(tmp_path / "sim.onnx"))


@every_place_of_weights
def test_weights_in_the_file_or_in_memory_give_one_model(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The place of weights and scales makes no difference to what is written, found or handed over."""
    path, held, stored = (tmp_path / f"{kind}.onnx" for kind in ("m", "held", "stored"))
    feed = feed_for(BUILDERS[name]())
    onnx.save(BUILDERS[name](), path)
    quantize(path, [feed], held)
    found = check(held)
    request.getfixturevalue("everything_in_its_file")
    assert any(is_external(tensor) for tensor in load(path).proto.graph.initializer)
    quantize(path, [feed], stored)
    one, other = onnx.load(stored), onnx.load(held)
    tensors = [sorted(t.SerializeToString() for t in made.graph.initializer) for made in (one, other)]
    assert tensors[0] == tensors[1]
    del one.graph.initializer[:], other.graph.initializer[:]
    assert one == other
    assert any(is_external(t) for t in load(held).proto.graph.initializer if "scale" in t.name)
    assert check(held) == found == handoff(held, tmp_path / "folder", data=[feed]).check
    assert (tmp_path / "folder" / "model.onnx").read_bytes() == held.read_bytes()


@pytest.mark.usefixtures("everything_in_its_file")
def test_a_body_cannot_name_another_file(tmp_path: Path) -> None:
    """A reference out of the folder is refused in a body too, whatever its tensor is called."""
    proto, path = BUILDERS["if_body"](), tmp_path / "m.onnx"
    body = next(node for node in proto.graph.node if node.op_type == "If").attribute[0].g
    outer = next(t for t in proto.graph.initializer if len(t.raw_data) > 8)
    attach(body.initializer.add(name=outer.name, data_type=outer.data_type, dims=[1]), "/etc/hostname", 0, 4)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="'/etc/hostname' is not a path inside the folder"):
        load(path)


@pytest.mark.usefixtures("everything_in_its_file")
@pytest.mark.parametrize("change", ["written anew", "renamed over", "removed"])
def test_a_file_that_changes_under_a_loaded_model(change: str, tmp_path: Path) -> None:
    """Weights are never read from another file than the one that was loaded."""
    path, proto = tmp_path / "m.onnx", BUILDERS["conv_relu"]()
    onnx.save(proto, path)
    model = load(path)
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    path.unlink()
    if change == "written anew":
        onnx.save(proto, path)
    elif change == "renamed over":
        onnx.save(proto, tmp_path / "new.onnx")
        (tmp_path / "new.onnx").rename(path)
    with pytest.raises(ModelError, match=r"m\.onnx, which has changed since it was loaded; load the model"):
        encode_weights(model, make_plan(model, load_recipe("tensorrt-int8")))


@pytest.mark.usefixtures("everything_is_large")
def test_values_go_with_their_scratch() -> None:
    """Tensors that refer to a scratch file say so when it is gone."""
    scratch = Scratch()
    with weights_stored_in(scratch):
        tensor = constants_module.make_tensor("w", weights(4, 4))
    np.testing.assert_array_equal(tensor_array(tensor), weights(4, 4))
    del scratch
    gc.collect()
    with pytest.raises(ValueError, match="temporary file of its values is gone; keep the result"):
        tensor_array(tensor)


def test_a_scratch_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A full disk is one line that names the folder."""
    scratch = Scratch(tmp_path)
    scratch._file.close()
    scratch._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115
    with pytest.raises(OutputError, match=f"temporary weights in {tmp_path}: No space left on device"):
        scratch.store(TensorProto(), np.zeros(9, np.uint8))
    scratch._file.close()


def test_weights_in_a_file_give_the_same_model(tmp_path: Path) -> None:
    """The light copy, saved next to the file, computes what the whole model computes."""
    proto, path = linear(64, 32), tmp_path / "light.onnx"
    proto.metadata_props.add(key="kept", value="yes")
    light = split_weights(proto, tmp_path / "weights")
    onnx.save(light, path)
    assert light.ByteSize() < 1000 < proto.ByteSize()
    feed = feed_for(proto)
    np.testing.assert_array_equal(Session(path, 1).run(feed)[0], Session(proto, 1).run(feed)[0])
    assert {p.key: p.value for p in light.metadata_props} == {"kept": "yes"}
    assert onnx.load(path).graph.initializer[0].raw_data == proto.graph.initializer[0].raw_data


RESHAPE = "g (float[2,6] x) => (float[a,b] y) { y = Reshape (x, s) }"
SHAPED = {"linear": linear(64, 32), "if": BUILDERS["if_body"]()}
SHAPED["target of a Reshape"] = build(RESHAPE, {"s": np.int64([3, 4])})


@pytest.mark.parametrize("proto", SHAPED.values(), ids=SHAPED)
def test_shapes_are_those_of_the_whole_model(proto: onnx.ModelProto) -> None:
    """ONNX infers from the light copy what it infers from the whole one; weights stay as they are."""
    expected, got = shape_inference.infer_shapes(proto, data_prop=True), deepcopy(proto)
    add_shapes(got)
    assert got == expected


def test_a_model_is_checked_without_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's checker is given no weight together with the rest, and accepts the model."""
    proto, seen, checked = linear(64, 64), [], onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda one: (seen.append(one.ByteSize()), checked(one)))
    check_model(proto)
    assert len(seen) == 1 and seen[0] < 1000 < proto.ByteSize()


def test_a_weight_of_the_wrong_size_is_still_refused() -> None:
    """Weights are checked one at a time."""
    proto = linear(64, 32)
    broken = numpy_helper.from_array(weights(64, 32), proto.graph.initializer[0].name)
    broken.raw_data = broken.raw_data[:-4]
    proto.graph.initializer[0].CopyFrom(broken)
    with pytest.raises(ModelError, match="is damaged: .* has 8188 bytes, and its shape .* needs 8192"):
        load(proto)
