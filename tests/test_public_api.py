"""The public surface: what `onnxfq` exports, pinned."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from command_table import TABLE
from loops import loop_over
from onnx import parser

import onnxfq
from onnxfq.errors import ArgumentError
from onnxfq.support.arguments import _read_hints

NAMES = """AccuracyTarget BuildOptions Candidate Casting Cause CheckResult Comparison Conversion DataOptions
    Diagnosis DrawnInputs Encoding Encodings Evaluation Finding FloatOptions Handoff Model Moments
    ObserveOptions OnnxfqError Override ParamRules Plan PlannedEncodings QuantizationNoise
    QuantizeOptions QuantizeResult QuantizedArray Recipe RecipeOutcome Remedy RunOptions Sensitivity
    Sources Statistics Trial __version__ adjust_min_max calibrate cast check choose_qparams
    collect_statistics compare compare_recipes convert custom_ops_path dequantize_array diagnose
    diff_models evaluate export_encodings export_torch fake_quantize gather_moments handoff
    insert_fake_quantize insert_qdq inspect_model load load_recipe make_plan match_encodings
    observation_plan open_feeds plan_encodings plot plot_quantization_errors quantization_noise
    quantize quantize_array read_preprocessor register_custom_ops save sensitivity use_custom_ops
    write_report""".split()


def test_names_are_pinned() -> None:
    """A public name appears or goes on purpose only."""
    assert onnxfq.__all__ == dir(onnxfq) == NAMES


@loop_over("name", [name for name in NAMES if name not in ("__version__", "export_torch")])
def test_public_names_are_documented(name: str) -> None:
    """Every public function and class, and every public method of one, tells what it does."""
    thing = getattr(onnxfq, name)
    assert inspect.getdoc(thing)
    if not inspect.isclass(thing):
        return
    for method, value in vars(thing).items():
        if not method.startswith("_") and callable(getattr(value, "__func__", value)):
            assert inspect.getdoc(value), f"{name}.{method}"


def test_functions_are_annotated() -> None:
    """Every parameter and result of a public function has a type."""
    for name in NAMES:
        thing = None if name == "export_torch" else getattr(onnxfq, name)
        if inspect.isfunction(thing):
            signature = inspect.signature(thing)
            kinds = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
            assert inspect.Signature.empty not in kinds, name


def test_arguments_of_another_class_are_named(tmp_path: Path) -> None:
    """A path or a number in place of an object of onnxfq: the error names the parameter and the class."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": np.ones((1, 4), np.float32)}]
    loaded, recipe = onnxfq.load(tmp_path / "m.onnx"), onnxfq.load_recipe("tensorrt-int8")
    plan = onnxfq.make_plan(loaded, recipe)
    statistics = onnxfq.collect_statistics(loaded, plan, feeds)
    known = {
        "model": loaded,
        "recipe": recipe,
        "plan": plan,
        "feeds": feeds,
        "data": feeds,
        "statistics": statistics,
        "encodings": onnxfq.calibrate(loaded, plan, statistics),
        "reference": loaded,
    }
    asked: set[tuple[str, str]] = set()
    for function in filter(inspect.isfunction, (getattr(onnxfq, one) for one in NAMES if "torch" not in one)):
        parameters = inspect.signature(function).parameters
        hints = {name: _read_hints(function).get(name) for name in parameters}
        given = {name: known.get(name) for name, one in parameters.items() if one.default is one.empty}
        for name in parameters.keys() & hints.keys():
            ours = [one for one in get_args(hints[name]) or [hints[name]] if inspect.isclass(one)]
            if None in given.values() or not any(one.__module__.startswith("onnxfq") for one in ours):
                continue
            for wrong in ("m.onnx", 5):
                if not isinstance(wrong, tuple(ours)):
                    asked.add((function.__name__, name))
                    with pytest.raises(onnxfq.OnnxfqError, match=r"^[^\n]+$"):
                        function(**given | {name: wrong})
    assert {("make_plan", "model"), ("insert_qdq", "plan"), ("quantize", "accuracy")} <= asked
    with pytest.raises(ArgumentError, match=r"^recipe of make_plan is 5, .*onnxfq\.load_recipe\(\.\.\.\)"):
        onnxfq.make_plan(loaded, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="make_plan.* missing 1 required"):
        onnxfq.make_plan(loaded)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(onnxfq.make_plan)) is onnxfq.make_plan


def test_unknown_names_are_refused() -> None:
    """A misspelled name is an AttributeError as of any module."""
    with pytest.raises(AttributeError, match="quantise"):
        _ = onnxfq.quantise


CLI_ONLY = set(
    "output report artifacts time build shape thumbnails custom_ops python as_json verbose quiet".split()
)
"""Options of the command for its files and its text; other functions do the same in Python."""


@pytest.mark.parametrize(
    "name", [one.name for one in TABLE["quantize"] if one.name not in CLI_ONLY] + ["calibrator", "floats"]
)
def test_quantize_reaches_what_its_command_does(name: str) -> None:
    """A word of the command is a parameter, or a field that the error spells out."""
    if name in inspect.signature(onnxfq.quantize).parameters:
        return
    with pytest.raises(ArgumentError) as caught:
        onnxfq.quantize("m.onnx", None, **{name: 1})
    place = re.search(r"; write (data|sources|accuracy|options|recipe)=(onnxfq\..*)$", str(caught.value))
    assert place is not None and place[1] in inspect.signature(onnxfq.quantize).parameters
    call = place[2].replace("...", "1").replace("(NAME)", "('tensorrt-int8')")
    try:  # the field is there: its value 1 may be refused, its name not
        eval(call)
    except (onnxfq.OnnxfqError, TypeError) as refused:
        assert "no such field" not in str(refused) and "keyword" not in str(refused)


@pytest.mark.parametrize("name", sorted(CLI_ONLY - {"output", "as_json", "verbose", "quiet"}))
def test_other_functions_are_named(name: str) -> None:
    """A word of the command for its files is answered with a public function that does it."""
    with pytest.raises(ArgumentError, match=r"; write ") as caught:
        onnxfq.quantize("m.onnx", None, **{name: 1})
    for function in re.findall(r"onnxfq\.(\w+)\(", str(caught.value)):
        assert function in onnxfq.__all__
    for part in re.findall(r"result\.(\w+)\.save", str(caught.value)):
        assert part in onnxfq.QuantizeResult.__dataclass_fields__


def test_an_unknown_keyword_names_the_nearest() -> None:
    """A misspelled keyword is a TypeError, as of any function, and names the nearest."""
    with pytest.raises(TypeError, match="takes no keyword 'calibrater'; nearest: calibrator"):
        onnxfq.quantize("m.onnx", None, calibrater="mse")
