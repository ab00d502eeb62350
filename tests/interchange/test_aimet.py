"""AIMET's encodings: read as AIMET itself rounds with them, and written as they are read."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, weights
from builders import constants as initializers
from given_files import by_tensor, constants, file, fitted, small, vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import onnxfq
from onnxfq.calibration.calibrators import EXTERNAL
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import PlanError, RecipeError
from onnxfq.graph.io.load import load
from onnxfq.interchange import WRITERS, read_given
from onnxfq.interchange.apply import fit
from onnxfq.numerics.layout import Layout
from onnxfq.stages.plan import make_plan

FILES = [
    pytest.param(name, version, id=f"{name}-{version}")
    for name, variant in vectors()["variants"].items()
    for version in variant["files"]
]
ACTIVATIONS = ("image", "r", "f", "s")
WEIGHTS = ("w1", "w2", "w3", "w4")


def written_by_aimet(name: str, version: str, folder: Path) -> Path:
    """Write a file that AIMET exported."""
    return file(folder, vectors()["variants"][name]["files"][version])


def with_encodings(path: Path, proto: onnx.ModelProto | None = None) -> onnxfq.QuantizeResult:
    """Quantize a network with the scales of a file, and without data."""
    return onnxfq.quantize(proto or small(), None, sources=onnxfq.Sources(encodings=path))


@pytest.mark.parametrize(("name", "version"), FILES)
def test_as_aimets_own_qdq_model(name: str, version: str, tmp_path: Path) -> None:
    """Rounded weights, scales and zero points equal AIMET's own Q/DQ model, to the bit."""
    _, found = fitted(small(), written_by_aimet(name, version, tmp_path), "onnxruntime-int8")
    encodings, said = by_tensor(found), vectors()["variants"][name]
    assert set(encodings) >= {*ACTIVATIONS, *WEIGHTS}
    assert "weights" in said or "convolutions" in name
    for weight, values in said.get("weights", {}).items():
        rounded = encodings[weight].fake_quantize(constants()[weight])
        np.testing.assert_array_equal(rounded, np.asarray(values, np.float32))
    for tensor in encodings.keys() & said.get("activations", {}):
        mine, theirs = encodings[tensor], said["activations"][tensor]
        assert mine.scale == np.float32(theirs["scale"])
        if mine.spec.qtype.full_range:  # on signed or unsigned integers
            lowest = np.iinfo(theirs["type"]).min
            assert mine.zero_point - mine.spec.qtype.qmin == theirs["zero_point"] - lowest


@pytest.mark.parametrize("name", vectors()["variants"])
def test_versions_agree(name: str, tmp_path: Path) -> None:
    """All versions of one export give the same grids; 2.0.0 tells no strict symmetric activation."""
    paths = [file(tmp_path, content, v) for v, content in vectors()["variants"][name]["files"].items()]
    first, *others = (by_tensor(fitted(small(), path, "onnxruntime-int8")[1]) for path in paths)
    for other in others:
        for tensor, encoding in first.items():
            assert np.array_equal(other[tensor].scale, encoding.scale)
            if name != "strict symmetric" or tensor in WEIGHTS:
                assert other[tensor] == encoding


def test_what_a_reshape_gives_has_the_scale_of_what_it_reads(tmp_path: Path) -> None:
    """1.0.0 has no entry for the output of a Flatten: it is on the grid of its input, and a line says so."""
    _, found = fitted(small(), written_by_aimet("symmetric", "1.0.0", tmp_path))
    assert found.moved == {"f": "p"}
    assert "external   'f' has the scale of 'p'" in found.lines()


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0", "2.0.0"])
def test_symmetric_encodings_make_a_model_for_tensorrt(version: str, tmp_path: Path) -> None:
    """Q/DQ stand where TensorRT wants them, none round a Flatten, and nothing in the model is refused."""
    path = written_by_aimet("symmetric", version, tmp_path)
    result = with_encodings(path)
    assert not [f for f in onnxfq.check(result.qdq).findings if f.severity == "error"]
    pairs = {node.input[0] for node in result.qdq.graph.node if node.op_type == "QuantizeLinear"}
    assert pairs == set(ACTIVATIONS)
    noted = {p.key: p.value for p in result.qdq.metadata_props}
    assert result.encodings.source == noted["onnxfq.encodings_from"] == f"AIMET encodings {version}"


@pytest.mark.parametrize(("name", "tensor"), [("default", "image"), ("unsigned symmetric", "r")])
def test_zero_points_are_refused_for_tensorrt(name: str, tensor: str, tmp_path: Path) -> None:
    """An asymmetric grid is an error that names tensor, rule and both remedies."""
    path = written_by_aimet(name, "1.0.0", tmp_path)
    message = f"tensor '{tensor}': TensorRT takes zero points of 0 only; use symmetric: true where {path}"
    with pytest.raises(RecipeError, match="or another recipe than tensorrt-int8") as caught:
        with_encodings(path)
    assert message in str(caught.value)


def test_the_weight_of_a_linear_is_rounded_in_front_of_its_transpose(tmp_path: Path) -> None:
    """The parameter of a Linear is [out, in]; its scales lie along its own axis 0, on the constant itself."""
    text = "g (float[N,6] x) => (float[N,4] y) { t = Transpose <perm=[1,0]> (w) y = MatMul (x, t) }"
    scales = [0.5, 0.25, 0.125, 2.0]
    entries = [
        {"name": "x", "output_dtype": "int8", "y_scale": 0.75},
        {"name": "w", "output_dtype": "int8", "y_scale": scales, "axis": 0},
    ]
    path = file(tmp_path, {"version": "2.0.0", "encodings": entries})
    result = with_encodings(path, build(text, {"w": weights(4, 6)}))
    (node,) = [n for n in result.qdq.graph.node if n.op_type == "DequantizeLinear" and n.name.startswith("w")]
    arrays = initializers(result.qdq)
    assert arrays[node.input[0]].shape == (4, 6)
    np.testing.assert_array_equal(arrays[node.input[1]], np.float32(scales))
    assert next(a.i for a in node.attribute if a.name == "axis") == 0


def test_float_entries_stay_in_float(tmp_path: Path) -> None:
    """A tensor that AIMET leaves in float16 is not quantized, and the plan says so."""
    content = copy.deepcopy(vectors()["variants"]["symmetric"]["files"]["1.0.0"])
    entry = next(entry for entry in content["activation_encodings"] if entry["name"] == "r")
    entry.clear()
    entry.update({"name": "r", "dtype": "FLOAT", "bw": 16, "enc_type": "PER_TENSOR"})
    plan, found = fitted(small(), file(tmp_path, content))
    assert [str(row) for row in plan.coverage()] == ["Conv 1/2", "Gemm 1/1", "MatMul 1/1"]
    assert any(skipped.name == "depth" and "override" in skipped.why for skipped in plan.skipped)
    assert "in float   as the file has it: r" in found.lines() and not found.missing


def test_meta_encodings_of_2_1_0(tmp_path: Path) -> None:
    """A scale that is quantized itself is the product that its DequantizeLinear gives."""
    content = copy.deepcopy(vectors()["variants"]["LPBQ"]["files"]["2.0.0"])
    content["version"] = "2.1.0"
    for entry in content["encodings"]:
        if "per_block_int_scale" in entry:
            channels = np.ravel(entry.pop("per_channel_float_scale")).tolist()
            steps = entry.pop("per_block_int_scale")
            entry["y_scale"] = {"x": steps, "x_scale": channels, "axis": 1 - entry["axis"]}
    new = by_tensor(fitted(small(), file(tmp_path, content), "onnxruntime-int8")[1])
    old = by_tensor(fitted(small(), written_by_aimet("LPBQ", "2.0.0", tmp_path), "onnxruntime-int8")[1])
    assert new == old


def test_nvfp4_of_2_1_0(tmp_path: Path) -> None:
    """Float8 scales times one of all are NVFP4's, the shared factor apart."""
    proto = build("g (float[N,32] x) => (float[N,2] y) { y = MatMul (x, w) }", {"w": weights(32, 2)})
    steps = [[0.5, 1.0], [2.0, 1.5]]
    meta = {"x": steps, "x_scale": 0.03, "input_dtype": "float8e4m3fn"}
    entry = {"name": "w", "axis": 0, "block_size": 16, "output_dtype": "float4e2m1", "y_scale": meta}
    content = {"version": "2.1.0", "encodings": [entry]}
    _, found = fitted(proto, file(tmp_path, content), recipe_of({"qtype": "int8"}, None))
    (encoding,) = found.encodings
    assert encoding.global_scale == np.float32(0.03) and encoding.spec.scale_type == "e4m3"
    np.testing.assert_array_equal(encoding.block_scales.astype(np.float32), np.float32(steps))


def test_blocks_of_a_transposed_convolution(tmp_path: Path) -> None:
    """1.0.0 tells no axis: blocks go along the input channels, which are axis 0 of this kernel."""
    entry = {"name": "w", "bw": 4, "dtype": "INT", "enc_type": "PER_BLOCK", "block_size": 2, "is_sym": True}
    entry |= {"scale": [1.0, 2, 3, 4, 5, 6, 7, 8], "offset": [-8] * 8}
    content = {"version": "1.0.0", "activation_encodings": [], "param_encodings": [entry]}
    text = "g (float[N,4,5,5] x) => (float[N,4,7,7] y) { y = ConvTranspose (x, w) }"
    proto = build(text, {"w": weights(4, 4, 3, 3)})
    _, found = fitted(proto, file(tmp_path, content), SCHEMES["int8"])
    (encoding,) = found.encodings
    assert encoding.spec.granularity.block_shape == (2, 1, -1, -1)
    np.testing.assert_array_equal(encoding.scale[:, :, 0, 0], [[1, 2, 3, 4], [5, 6, 7, 8]])
    model = load(proto)
    scheme = {"qtype": "int4", "granularity": "block_shape", "block_shape": (1, 2, -1, -1)}
    plan = make_plan(model, recipe_of(scheme, {"qtype": "int8"}))
    encodings = encodings_of(None, plan, model)
    assert "ConvTranspose" in WRITERS["aimet-1.0.0"](encodings, plan).lost["w"]
    assert not WRITERS["aimet-2.0.0"](encodings, plan).lost


def test_shifted_zero_points(tmp_path: Path) -> None:
    """The grid -3, -1, 1, 3 of two bits has a zero point between two numbers; 1.0.0 says it as a shift."""
    entry = {"name": "w1", "bw": 2, "dtype": "INT", "enc_type": "PER_CHANNEL", "is_sym": True}
    entry |= {"scale": [0.5] * 4, "offset": [-2] * 4, "zero_point_shift": [0.5] * 4}
    content = {"version": "1.0.0", "activation_encodings": [], "param_encodings": [entry]}
    w1 = by_tensor(fitted(small(), file(tmp_path, content), SCHEMES["int8"])[1])["w1"]
    new = {"name": "w1", "output_dtype": "int2", "y_scale": [0.5] * 4, "y_zero_point": [-0.5] * 4, "axis": 0}
    content = {"version": "2.0.0", "encodings": [new]}
    again = by_tensor(fitted(small(), file(tmp_path, content), SCHEMES["int8"])[1])["w1"]
    values = np.float32([[-9, -0.6, 0.1, 9]] * 4)
    for encoding in (w1, again):
        assert encoding.spec.zero_point == "fractional"
        np.testing.assert_array_equal(encoding.fake_quantize(values), [[-0.75, -0.75, 0.25, 0.75]] * 4)
    with pytest.raises(RecipeError, match="zero points"):
        fitted(small(), file(tmp_path, content), "onnxruntime-int8")


def test_channels_of_an_activation(tmp_path: Path) -> None:
    """2.0.0 may have a scale for each channel of an activation: as many as it has channels."""
    entries = [
        {"name": "r", "output_dtype": "int8", "y_scale": [1.0, 2.0, 4.0, 8.0], "axis": 1},
        {"name": "image", "output_dtype": "int8", "y_scale": 0.5},
    ]
    content = {"version": "2.0.0", "encodings": entries}
    _, found = fitted(small(), file(tmp_path, content), SCHEMES["int8"])
    found_r = by_tensor(found)["r"]
    assert (found_r.spec.granularity.axis, found_r.scale.tolist()) == (1, [1, 2, 4, 8])
    with pytest.raises(RecipeError, match="'r': TensorRT takes one scale of an activation"):
        fitted(small(), file(tmp_path, content))
    entries[0]["y_scale"] = [1.0, 2.0]
    with pytest.raises(PlanError, match=r"'r' has shape \[0, 4, 8, 8\] and needs scales of shape \[4\]"):
        fitted(small(), file(tmp_path, content), SCHEMES["int8"])


# ---- written and read again


def encodings_of(draw: Callable[..., Any] | None, plan: Plan, model: onnxfq.Model) -> Encodings:
    """Return drawn scales and zero points for every placement of `plan`; 1 and 0 where nothing draws."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
    for value in (*model.proto.graph.input, *model.proto.graph.value_info):
        shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    made = []
    for placement in plan.placements:
        spec = placement.spec
        shape = Layout(spec.granularity, shapes.get(placement.tensor, ())).scale_shape
        scale, zero = np.ones(shape, np.float32), np.zeros(shape, np.int64)
        if draw is not None:
            scale = draw(npst.arrays(np.float32, shape, elements=st.floats(2.0**-126, 2.0**100, width=32)))
        if draw is not None and not spec.symmetric:
            whole = st.integers(int(spec.qtype.qmin), int(spec.qtype.qmax))
            zero = draw(npst.arrays(np.int64, shape, elements=whole))
        made.append(Encoding.of(placement.tensor, spec, scale, zero))
    return Encodings(model_sha256=model.sha256, encodings=tuple(made))


@functools.cache
def planned(scheme: str) -> tuple[onnxfq.Model, Plan]:
    """Return the small model and its plan under one of `SCHEMES`."""
    model = load(small())
    return model, make_plan(model, SCHEMES[scheme])


def recipe_of(
    weights_: dict[str, Any], activations: dict[str, Any] | None, *overrides: dict[str, Any]
) -> Recipe:
    """Return a recipe for any target."""
    fields = {"activations": activations, "weights": weights_, "overrides": overrides}
    return Recipe.model_validate({"name": "r", "target": "simulation", **fields})


INT4 = {"qtype": "int4", "granularity": "blocked"}
SHAPES = {"granularity": "block_shape", "block_size": None, "block_shape": (1, 2, -1, -1)}
SCHEMES = {
    "int8": recipe_of({"qtype": "int8"}, {"qtype": "int8"}),
    "uint8": recipe_of({"qtype": "uint8", "symmetric": False}, {"qtype": "uint8", "symmetric": False}),
    "int16, per tensor": recipe_of(
        {"qtype": "int4", "granularity": "per_tensor"}, {"qtype": "int16", "symmetric": False}
    ),
    "strict": recipe_of({"qtype": "int8[-127,127]"}, {"qtype": "int8[-127,127]"}),
    "blocks": recipe_of(
        INT4 | {"block_size": 3},
        {"qtype": "uint16", "symmetric": False},
        {"op_types": ("Conv",), "weights": {"granularity": "per_axis", "block_size": None}},
    ),
    "block shapes": recipe_of(
        INT4 | {"block_size": 2},
        {"qtype": "int8"},
        {"nodes": ("conv1",), "weights": SHAPES},
        {"nodes": ("depth",), "weights": {"granularity": "per_tensor", "block_size": None}},
    ),
}
HELD = {
    "aimet-0.6.1": ("int8", "uint8", "int16, per tensor", "strict"),
    "aimet-1.0.0": tuple(SCHEMES),
    "aimet-2.0.0": tuple(SCHEMES),
}


@pytest.mark.parametrize(("to", "scheme"), [(to, scheme) for to, names in HELD.items() for scheme in names])
@settings(max_examples=6)
@given(st.data())
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, to: str, scheme: str, data: st.DataObject
) -> None:
    """Scales, zero points, formats and granularities come back to the last bit, of every tensor."""
    model, plan = planned(scheme)
    encodings = encodings_of(data.draw, plan, model)
    written = WRITERS[to](encodings, plan)
    assert not written.lost and written.tensors == len(plan.placements)
    path = file(tmp_path_factory.getbasetemp(), written.text, f"{to}-{scheme}")
    found = by_tensor(fit(read_given(path), plan, model))
    for encoding in encodings.encodings:
        assert found[encoding.tensor] == encoding.model_copy(update={"calibrator": EXTERNAL})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_formats_come_back_with_a_recipe_of_another(scheme: str, tmp_path: Path) -> None:
    """The formats in the file override the recipe, for every tensor."""
    model, plan = planned(scheme)
    encodings = encodings_of(None, plan, model)
    path = file(tmp_path, WRITERS["aimet-2.0.0"](encodings, plan).text)
    other = SCHEMES["uint8" if scheme != "uint8" else "int8"]
    _, found = fitted(small(), path, other)
    again = by_tensor(found)
    for encoding in encodings.encodings:
        mine = again[encoding.tensor]
        np.testing.assert_array_equal(mine.scale, encoding.scale)
        assert (mine.rmin, mine.rmax) == (encoding.rmin, encoding.rmax)


def test_what_a_version_cannot_hold_is_told() -> None:
    """Blocks in 0.6.1, floats in 1.0.0, odd widths anywhere: named with the reason."""
    model = load(small())

    def lost(to: str, recipe: Recipe) -> dict[str, str]:
        plan = make_plan(model, recipe)
        return WRITERS[to](encodings_of(None, plan, model), plan).lost

    assert set(lost("aimet-0.6.1", SCHEMES["blocks"])) == {"w3", "w4"}
    floats = recipe_of({"qtype": "float8e4m3fn"}, {"qtype": "float8e4m3fn"})
    assert "integers only" in lost("aimet-1.0.0", floats)["image"]
    assert not lost("aimet-2.0.0", floats)
    odd = lost("aimet-2.0.0", recipe_of({"qtype": "int5"}, {"qtype": "int8[-100,127]"}))
    assert odd["w1"] == "AIMET has no int5" and "int8[-127,127]" in odd["image"]
    assert set(lost("aimet-0.6.1", SCHEMES["block shapes"])) == {"w1", "w3", "w4"}
    channels = recipe_of({"qtype": "int8"}, {"qtype": "int8", "granularity": "per_axis"})
    assert "no axis of an activation" in lost("aimet-1.0.0", channels)["r"]
    assert not lost("aimet-2.0.0", channels)


# ---- files that are none


def change(version: str, *path: Any, to: Any) -> Any:
    """Return a file of AIMET's with one value changed; `to` None takes it away."""
    content = copy.deepcopy(vectors()["variants"]["symmetric"]["files"][version])
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return content


def nested(depth: int) -> list[Any]:
    """Return a list in a list in a list."""
    return [nested(depth - 1)] if depth else [1.0]


ACT = "activation_encodings"
DAMAGED = {
    "no list": (change("1.0.0", ACT, to=3), "activation_encodings: must be a list of encodings"),
    "no entry": (change("1.0.0", ACT, 0, to=[1]), "activation_encodings.0: must be a mapping"),
    "no name": (change("1.0.0", ACT, 0, "name", to=None), "activation_encodings.0: lacks 'name'"),
    "no scale": (change("1.0.0", ACT, 0, "scale", to=None), "lacks 'scale'"),
    "text": (change("1.0.0", ACT, 0, "scale", to=["big"]), "0.scale: must be a number or lists"),
    "deep": (change("1.0.0", ACT, 0, "scale", to=nested(300)), "0.scale: must be a number or lists"),
    "two scales": (change("1.0.0", ACT, 0, "scale", to=[1.0, 2.0]), "is PER_TENSOR with 2 scales"),
    "kind": (change("1.0.0", ACT, 0, "enc_type", to="PER_CHANEL"), "nearest: PER_CHANNEL"),
    "width": (change("1.0.0", ACT, 0, "bw", to=17), "has 17 bits"),
    "offsets": (change("1.0.0", "param_encodings", 0, "offset", to=[-128]), "has 4 scales and 1 offsets"),
    "offset": (change("1.0.0", ACT, 0, "offset", to=[5]), "zero point -5 is not in uint8"),
    "torch's": (
        change("0.6.1", ACT, to={"conv1": {"input": {}}}),
        "activation_encodings.conv1: is keyed by modules of torch",
    ),
    "symmetric": (change("0.6.1", ACT, "r", 0, "is_symmetric", to="yes"), "must be True or False"),
    "ends": (change("0.6.1", ACT, "r", 0, "max", to=1e6), "r.max: is 1e+06, but scale and offset give"),
    "mixed": (change("0.6.1", "param_encodings", "w1", 0, "bitwidth", to=4), "mixes ['int'] of [4, 8] bits"),
    "dtype": (change("2.0.0", "encodings", 0, "output_dtype", to="in8"), "unknown qtype 'in8'"),
    "y_scale": (change("2.0.0", "encodings", 0, "y_scale", to=None), "encodings.0: lacks 'y_scale'"),
    "shifts": (change("1.0.0", ACT, 0, "zero_point_shift", to=[0.5, 0.5]), "has 1 offsets and 2 shifts"),
    "axis": (change("2.0.0", "encodings", 0, "axis", to=1), "scales along axis 1 in the file, and along"),
    "count": (change("2.0.0", "encodings", 0, "y_scale", to=[1.0, 2.0]), "needs scales of shape [4]"),
    "nothing": ({"version": "2.0.0", "encodings": []}, "AIMET encodings 2.0.0 without a tensor"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """A file with one thing wrong is one line that names the file, the place and the rule."""
    content, message = DAMAGED[name]
    path = file(tmp_path, content)
    with pytest.raises(PlanError) as caught:
        fitted(small(), path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


@pytest.mark.whole
@settings(max_examples=25)
@given(st.data())
def test_no_value_of_another_type_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any JSON value in any place of a file is read, or refused in one line."""
    version = data.draw(st.sampled_from(["1.0.0", "2.0.0"]))
    content, places = copy.deepcopy(vectors()["variants"]["LPBQ"]["files"][version]), []

    def walk(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(inner, (dict, list)):
                walk(inner)

    walk(content)
    holder, key = data.draw(st.sampled_from(places))
    junk = st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.text(max_size=3)
    holder[key] = data.draw(junk | st.lists(junk, max_size=2) | st.just({}) | st.just([[1.0], [1.0, 2.0]]))
    path = tmp_path_factory.getbasetemp() / "junk"
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        fitted(small(), path, "onnxruntime-int8")
    except onnxfq.OnnxfqError as fault:
        assert str(fault)


def test_widths_of_biases_are_not_used(tmp_path: Path) -> None:
    """2.0.0 has entries for int32 biases: they stay in float, and the summary says so."""
    _, found = fitted(small(), written_by_aimet("symmetric", "2.0.0", tmp_path))
    assert set(found.given.unusable) == {"b1", "b3"}
    assert any(line.startswith("not usable b1: ") for line in found.lines())
