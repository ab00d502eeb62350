"""Recipes: built-ins, files with base and overrides, and every slip in one line with the nearest name."""

from __future__ import annotations

import json
import textwrap

import pytest
from text_tables import read_table

from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError
from onnxfq.numerics.qtypes import qtype_by_name
from onnxfq.numerics.spec import QuantSpec
from onnxfq.placement.weighted_ops import list_numbers
from onnxfq.targets.recipe_schema import recipe_schema
from onnxfq.targets.recipes import RECIPES, load_recipe


def written(tmp_path, text, name="mine.yaml"):
    """A recipe file with `text`."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return path


def loaded(tmp_path, text):
    """The recipe that a file with `text` gives."""
    return load_recipe(written(tmp_path, text))


def refused(tmp_path, text):
    """The one line with which a file with `text` is refused, after the file's path."""
    path = written(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", RECIPES)
def test_built_ins_load_by_name_and_as_given(name):
    """A name, or a recipe already loaded, gives the recipe."""
    assert load_recipe(name) is RECIPES[name] is load_recipe(RECIPES[name])
    assert RECIPES[name].name == name


def test_built_ins_are_what_the_targets_take():
    """TensorRT takes symmetric int8; ONNX Runtime's CPU kernels unsigned activations and int8 weights."""
    assert DEFAULT_RECIPE in RECIPES
    trt, ort = RECIPES["tensorrt-int8"], RECIPES["onnxruntime-int8"]
    assert (trt.target, trt.activations.qtype.name, trt.activations.symmetric) == ("tensorrt", "int8", True)
    assert (ort.target, ort.activations.qtype.name, ort.activations.symmetric) == (
        "onnxruntime",
        "uint8",
        False,
    )
    for recipe in (trt, ort):
        assert (recipe.weights.qtype.name, recipe.weights.symmetric) == ("int8", True)
        assert recipe.weights.granularity == "per_axis"


def test_a_file_gives_only_what_differs(tmp_path):
    """Everything not in the file comes from its base, the default one if none is named."""
    assert loaded(tmp_path, "{}") == RECIPES[DEFAULT_RECIPE].model_copy(update={"name": "mine"})
    recipe = loaded(
        tmp_path,
        """
        base: onnxruntime-int8
        name: ours
        activations: {calibrator: percentile:99.9}
        """,
    )
    base = RECIPES["onnxruntime-int8"]
    assert (recipe.name, recipe.target, recipe.weights) == ("ours", "onnxruntime", base.weights)
    assert recipe.activations == base.activations.model_copy(update={"calibrator": "percentile:99.9"})


def test_json_files_do_as_well(tmp_path):
    """A recipe may be JSON."""
    path = written(tmp_path, '{"target": "onnxruntime"}', "a.json")
    assert load_recipe(str(path)).target == "onnxruntime"


OVERRIDES = """
overrides:
  - {tensors: ["conv1/*"], activations: {calibrator: minmax}}
  - {nodes: ["layer[0]", "head?"], weights: {granularity: per_tensor}}
  - {op_types: [Gemm], activations: {calibrator: percentile}, weights: {calibrator: mse}}
  - {tensors: ["conv1/last"], keep_float: true}
"""


@pytest.mark.parametrize(
    ("where", "calibrator", "granularity", "keeps_float"),
    [
        pytest.param(("n", "Conv", "x"), "best_error", "per_axis", False, id="nothing matches"),
        pytest.param(("n", "Conv", "conv1/out"), "minmax", "per_axis", False, id="glob of tensors"),
        pytest.param(("layer[0]", "Conv", "x"), "best_error", "per_tensor", False, id="glob characters"),
        pytest.param(("layer0", "Conv", "x"), "best_error", "per_tensor", False, id="read as a glob"),
        pytest.param(("head1", "Conv", "x"), "best_error", "per_tensor", False, id="glob of nodes"),
        pytest.param(("head12", "Conv", "x"), "best_error", "per_axis", False, id="one character only"),
        pytest.param(("n", "Gemm", "x"), "percentile", "per_axis", False, id="op type"),
        pytest.param(("n", "gemm", "x"), "best_error", "per_axis", False, id="case counts"),
        pytest.param(("n", "Gemm", "conv1/out"), "percentile", "per_axis", False, id="the later wins"),
        pytest.param(("n", "Conv", "conv1/last"), "minmax", "per_axis", True, id="kept in float"),
    ],
)
def test_overrides(tmp_path, where, calibrator, granularity, keeps_float):
    """An override changes what it matches, later ones win, fields not named stay."""
    recipe = loaded(tmp_path, OVERRIDES)
    assert recipe.activation_for(*where).calibrator == calibrator
    assert recipe.activation_for(*where).qtype == recipe.activations.qtype
    assert recipe.weight_for(*where).granularity == granularity
    assert recipe.weight_for(*where).calibrator == ("mse" if where[1] == "Gemm" else "minmax")
    assert bool(recipe.explain_float(*where)) is keeps_float


def test_an_override_starts_from_another_recipe(tmp_path):
    """With `base` nodes have the schemes of that recipe, below the override's own changes."""
    text = "base: tensorrt-nvfp4\noverrides:\n  - {op_types: [Conv], base: tensorrt-fp8}\n"
    recipe = loaded(tmp_path, text + "  - {nodes: [a], base: onnxruntime-int8, weights: {qtype: int4}}\n")
    fp8, nvfp4, int8 = map(load_recipe, ("tensorrt-fp8", "tensorrt-nvfp4", "onnxruntime-int8"))
    for where, base in (
        (("c", "Conv", "x"), fp8),
        (("m", "MatMul", "x"), nvfp4),
        (("a", "MatMul", "x"), int8),
    ):
        assert recipe.activation_for(*where) == base.activations
        changes = {"qtype": qtype_by_name("int4")} if base is int8 else {}
        assert recipe.weight_for(*where) == base.weights.model_copy(update=changes)
    printed = json.dumps(recipe.model_dump(mode="json"))
    assert load_recipe(written(tmp_path, printed, "printed.json")) == recipe
    weights_alone = loaded(tmp_path, "overrides:\n  - {nodes: [a], base: tensorrt-int4}\n")
    assert weights_alone.activation_for("a", "MatMul", "x") is None
    with pytest.raises(RecipeError, match="unknown base 'tensorrt-fp9'; nearest: tensorrt-fp8"):
        loaded(tmp_path, "overrides:\n  - {nodes: [a], base: tensorrt-fp9}\n")


def test_the_reason_of_an_override(tmp_path):
    """The first override that leaves a tensor in float gives the reason: its own, or the recipe's name."""
    text = "name: r\noverrides:\n  - {nodes: [a], keep_float: true, why: too noisy}\n"
    recipe = loaded(tmp_path, text + "  - {nodes: [a, b], keep_float: true}\n")
    whys = [recipe.explain_float(node, "Conv", "x") for node in ("a", "b", "c")]
    assert whys == ["too noisy", "kept in float by an override of recipe r", ""]
    assert whys[0].rule == "override"
    with pytest.raises(RecipeError, match="why is the reason for keep_float; leave it out, or set that"):
        loaded(tmp_path, "overrides:\n  - {nodes: [a], activations: null, why: small}\n")


def test_an_override_starts_from_the_files_own_scheme(tmp_path):
    """A block size alone is enough where the file itself says blocked."""
    recipe = loaded(
        tmp_path,
        """
        weights: {granularity: blocked, block_size: 32}
        overrides:
          - {nodes: [head], weights: {block_size: 64}}
          - {nodes: [tail], weights: {granularity: per_axis, block_size: null}}
        """,
    )
    assert recipe.weight_for("head", "Gemm", "w").block_size == 64
    assert recipe.weight_for("body", "Gemm", "w").block_size == 32
    assert recipe.weight_for("tail", "Gemm", "w").block_size is None


SLIPS = """
bas: x
    bas: no such field; nearest: base
activations: {calibrater: mse}
    activations.calibrater: no such field; nearest: calibrator
overrides: [{tensrs: [x], keep_float: true}]
    overrides.0.tensrs: no such field; nearest: tensors
overrides: [{tensors: [x], weights: {qtyp: int4}}]
    overrides.0.weights: qtyp: no such field; nearest: qtype
base: tensorrt
    unknown base 'tensorrt'; nearest: tensorrt-fp8, tensorrt-int8, tensorrt-int4
activations: {known_ranges: [Softmx]}
    activations.known_ranges: no range is known for outputs of 'Softmx'; nearest: Softmax
activations: {calibrator: auto}
    activations.calibrator: unknown calibrator 'auto': it is called best_error here
activations: {calibrator: mze}
    activations.calibrator: unknown calibrator 'mze'; nearest: mse
overrides: [{tensors: [x], activations: {calibrator: percentile:1}}]
    overrides.0.activations: calibrator: calibrator 'percentile:1': the percentile must be
weights: {qtype: int17}
    weights.qtype: unknown qtype 'int17'; nearest: int
activations: {qtype: uint8}
    activations: symmetric needs a signed qtype, got uint8; use int8 or symmetric: false
weights: {qtype: uint4}
    weights: symmetric needs a signed qtype, got uint4
overrides: [{op_types: [Conv], activations: {qtype: uint8}}]
    overrides.0.activations: symmetric needs a signed qtype
weights: {granularity: blocked}
    weights: granularity blocked and block_size go together; give both or neither
weights: {block_size: 32}
    weights: granularity blocked and block_size go together
weights: {granularity: blocked, block_size: 0}
    weights.block_size: Input should be greater than or equal to 1
weights: {granularity: channel}
    weights.granularity: Input should be 'per_tensor'
overrides: [{keep_float: true}]
    overrides.0: an override needs tensors, nodes, op_types or modules
overrides: [{nodes: [a]}]
    overrides.0: an override needs keep_float, activations or weights
[1, 2]
    must be a mapping of fields, got [1, 2]
overrides: {tensors: [a]}
    overrides: Input should be a valid list
"""


@pytest.mark.parametrize(("text", "words"), read_table(SLIPS))
def test_slips(tmp_path, text, words):
    """Each slip is one line: file, field, rule, nearest name or remedy; before any model is read."""
    assert refused(tmp_path, text).startswith(words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "tensorrt_int8",
            "unknown recipe 'tensorrt_int8': give a built-in name or a .yaml file; nearest: tensorrt-int8",
        ),
        (
            "zzz",
            "known: genai-int4, genai-int8, genai-uint4, mxfp4, mxfp6, mxfp8, mxint8, nvfp4, ",
        ),
        ("none.yaml", "no such file: none.yaml; check the path"),
    ],
)
def test_unknown_recipe(name, words):
    """A name that is neither built in nor a file is refused with the nearest."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(name)
    assert words in str(caught.value)


def test_broken_yaml(tmp_path):
    """A file that is not YAML is one line with the place."""
    with pytest.raises(RecipeError, match=r"mine.yaml is not valid yaml: .* line 2"):
        loaded(tmp_path, "a: [1\nb: 2")


NODES = {"layer[0]": "Conv", "head": "Gemm"}
TENSORS = {"x", "conv1/out"}


@pytest.mark.parametrize(
    "override",
    [
        "{nodes: ['layer[0]', 'h*'], keep_float: true}",
        "{tensors: ['conv?/*'], keep_float: true}",
        "{op_types: [Gemm, Conv], keep_float: true}",
    ],
)
def test_names_that_are_there(tmp_path, override):
    """Names, globs and op types pass in the model that has them, and in no other."""
    recipe = loaded(tmp_path, f"overrides: [{override}]")
    recipe.check_names(NODES, TENSORS)
    with pytest.raises(RecipeError, match="which the model lacks"):
        recipe.check_names({"other": "Relu"}, {"elsewhere"})


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("{tensors: [x, conv1/in]}", "tensor 'conv1/in', which the model lacks; known: conv1/out, x"),
        ("{nodes: [heads]}", "node 'heads', which the model lacks; nearest: head"),
        ("{nodes: ['z*']}", "node 'z*', which the model lacks; known: head, layer[0]"),
        ("{op_types: [conv]}", "op type 'conv', which the model lacks; nearest: Conv"),
        ("{op_types: ['Con*']}", "op type 'Con*', which the model lacks"),
    ],
)
def test_names_that_are_not(tmp_path, override, words):
    """A pattern that matches nothing is refused, else it would silently do nothing."""
    recipe = loaded(tmp_path, f"overrides: [{override[:-1]}, keep_float: true}}]")
    with pytest.raises(RecipeError) as caught:
        recipe.check_names(NODES, TENSORS)
    assert f"recipe mine: override names {words}" in str(caught.value)


def test_override():
    """Another calibrator of activations leaves weights and the recipe itself alone."""
    recipe = RECIPES[DEFAULT_RECIPE]
    changed = recipe.override(activations={"calibrator": "minmax"})
    assert changed.activations.calibrator == "minmax" and changed.weights == recipe.weights
    assert recipe.activations.calibrator != "minmax"
    with pytest.raises(RecipeError, match="unknown calibrator 'entropi'; nearest: entropy"):
        recipe.override(activations={"calibrator": "entropi"})


@pytest.mark.parametrize("name", RECIPES)
def test_every_scheme_makes_a_spec(name):
    """A scheme's whole number format makes a QuantSpec with the same fields."""
    schemes = [scheme for scheme in (RECIPES[name].activations, RECIPES[name].weights) if scheme]
    assert schemes
    for scheme in schemes:
        spec = QuantSpec(**list_numbers(scheme))
        assert list_numbers(spec) == list_numbers(scheme)


def test_block_shapes(tmp_path):
    """block_shape comes with its granularity; sizes are checked where they are written."""
    good = written(
        tmp_path, "{base: onnxruntime-int8, weights: {granularity: block_shape, block_shape: [1, -1]}}"
    )
    assert load_recipe(str(good)).weights.block_shape == (1, -1)


SLIPS_OF_FORMATS = """
weights: {block_shape: [2, 2]}
    weights: granularity block_shape and block_shape go together; give both or neither
weights: {granularity: block_shape, block_shape: [2, 0]}
    weights: block_shape must hold a size of at least 1, or -1 for a whole axis, for each dimension, got [2,
    0]
activations: {scale_type: e8m0}
    activations: scale_type e8m0 of activations needs dynamic: true; or use float32, with power_of_two for
    powers of two
activations: {granularity: per_row}
    activations: granularity per_row of activations needs dynamic: true, because every sample has other
    rows; or use per_axis or per_tensor
activations: {dynamic: true, granularity: blocked}
    activations: granularity blocked and block_size go together; give both or neither
weights: {scale_type: e8m0, symmetric: false}
    weights: scale_type e8m0 needs symmetric: true, or use scale_type float32
weights: {scale_type: e4m3}
    weights: scale_type e4m3 needs a float qtype, got int8; use float4e2m1 (NVFP4), or scale_type float32
weights: {scale_type: e8m0, calibrator: sqnr}
    weights: scale_type e8m0 takes scales by the largest magnitude or the least error; use calibrator minmax
    or mse
activations: {zero_point: fractional}
    activations: zero_point fractional needs symmetric: false; a symmetric zero point is 0
activations: {qtype: float8e4m3fn, symmetric: false}
    activations: float8e4m3fn has no zero point; use symmetric: true, or an integer qtype
"""


@pytest.mark.parametrize(("text", "words"), read_table(SLIPS_OF_FORMATS))
def test_slips_of_formats(tmp_path, text, words):
    """A format that contradicts itself is refused in one line that names the field."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(written(tmp_path, text)))
    assert str(caught.value).endswith(words)


def test_weight_only_files(tmp_path):
    """`activations: null` makes a recipe weight-only; an override may still quantize some activations."""
    text = """
    activations: null
    overrides: [{nodes: [head], activations: {qtype: int8}}]
    """
    recipe = load_recipe(str(written(tmp_path, text)))
    assert recipe.activations is None
    assert recipe.activation_for("body", "Conv", "x") is None
    assert str(recipe.activation_for("head", "Gemm", "x").qtype) == "int8"


def test_weight_only_bases(tmp_path):
    """A weight-only base stays so, unless the file gives activations a scheme."""
    assert load_recipe(str(written(tmp_path, "base: tensorrt-int4"))).activations is None
    both = written(tmp_path, "{base: tensorrt-int4, activations: {qtype: int8}}")
    assert str(load_recipe(str(both)).activations.qtype) == "int8"


def test_blocks_have_a_usual_size(tmp_path):
    """Blocks of e8m0 scales have 32 elements and of e4m3 scales 16, where the recipe names no size."""
    for scale_type, size in (("e8m0", 32), ("e4m3", 16)):
        text = f"weights: {{qtype: float4e2m1, scale_type: {scale_type}, granularity: blocked}}"
        assert load_recipe(str(written(tmp_path, text))).weights.block_size == size
        other = text.replace("blocked", "blocked, block_size: 8")
        assert load_recipe(str(written(tmp_path, other))).weights.block_size == 8


def test_overrides_switch_activations_off(tmp_path):
    """`activations: null` of an override is weight-only for what it matches, and says something."""
    text = "overrides: [{nodes: [head], activations: null}]"
    recipe = load_recipe(str(written(tmp_path, text)))
    assert recipe.activation_for("head", "Gemm", "x") is None
    assert recipe.activation_for("body", "Gemm", "x") == recipe.activations


@pytest.mark.parametrize("short", ["int8", "fp8", "int4", "int8-weights"])
def test_a_name_without_a_target(short):
    """It is the recipe for TensorRT; a recipe of that very name, as nvfp4, comes first."""
    assert load_recipe(short) is RECIPES[f"tensorrt-{short}"]
    assert load_recipe("nvfp4").target == "simulation"


def test_the_schema_of_recipe_files():
    """By jsonschema: it takes every built-in recipe, refuses wrong names and types, and describes all."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = recipe_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for recipe in RECIPES.values():
        validator.validate(recipe.model_dump(mode="json") | {"base": "tensorrt-int8"})
    validator.validate({"weights": {"calibrator": "mse"}, "activations": None})
    validator.validate({"overrides": [{"op_types": ["Conv"], "activations": {"qtype": "int8[-127,127]"}}]})
    for wrong in (
        {"activation": {}},
        {"weights": {"qtyp": "int8"}},
        {"weights": {"qtype": "int99"}},
        {"overrides": [{"nodes": "conv"}]},
        {"base": "tensorrt-int9"},
    ):
        assert not validator.is_valid(wrong), wrong
    assert schema["properties"].keys() == {"base", *Recipe.model_fields}
    for part in (schema, *schema["$defs"].values()):
        assert all(field["description"] for field in part["properties"].values())
