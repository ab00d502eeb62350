"""Wide formats: float8 for layers on GPUs that have it, 16 bits where float would leave the hardware."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import onnx
import pytest
from builders import build, weights, with_constants

from onnxfq import AccuracyTarget, QuantizeOptions, load_recipe, quantize
from onnxfq.errors import RecipeError
from onnxfq.judging.judge import can_multiply
from onnxfq.quantizing.pipeline import QuantizeResult

FORMAT = "float8e4m3fn"


def spectrum() -> onnx.ModelProto:
    """Powers over 60 dB whose fourth root counts: int8 loses the small ones, float8 has digits for them."""
    return build(
        """g (float[N,32] x) => (float[N,8] y) {
            [mix] p = MatMul (x, mixing)
            s = Sqrt (p)
            r = Sqrt (s)
            [last] y = MatMul (r, w) }""",
        {
            "mixing": np.abs(weights(32, 32)) * np.float32(0.02) + np.eye(32, dtype=np.float32),
            "w": weights(32, 8),
        },
    )


def powers(count: int = 48) -> dict[str, np.ndarray]:
    """Return inputs of five decades."""
    rng = np.random.default_rng(0)
    return {"x": np.exp(rng.uniform(-9, 3, (count, 32))).astype(np.float32)}


@functools.cache
def run(gpu: str | None = None, **accuracy: object) -> QuantizeResult:
    """Quantize with weights that stay, so that only formats differ."""
    options = QuantizeOptions(gpus=(gpu,) if gpu else ())
    return quantize(spectrum(), powers(), accuracy=AccuracyTarget(**accuracy), options=options)


def formats(result: QuantizeResult) -> set[str]:
    """Return the formats of the activations."""
    return {placement.spec.qtype.name for placement in result.plan.activations}


@pytest.mark.sample
@pytest.mark.parametrize("words", [{"fallback": FORMAT}, {"gpu": "SM89"}])
def test_a_wide_format_joins_where_it_is_allowed(words: dict[str, str]) -> None:
    """Layers take it for what their outputs gain, and none stays in float."""
    plain, result = run(repair=None), run(**words)
    trial = result.trial("protected")
    assert trial.is_kept and trial.after > trial.before + 3
    assert FORMAT in formats(result) and formats(plain) == {"int8"}
    assert sum(map(str.isdigit, str(result.plan.coverage()))) and len(result.plan.activations) == 2
    assert result.evaluation.lowest_db > plain.evaluation.lowest_db + 3


@pytest.mark.parametrize("gpu", [None, "8.6"])
def test_a_gpu_without_the_format_never_gets_it(gpu: str | None) -> None:
    """It would not build there; the trial names the option that allows it, and what it would gain."""
    result = run(gpu=gpu, repair=45.0)
    assert formats(result) <= {"int8"}
    trial = result.trial("protected")
    assert trial.is_needed and any("--gpu SM89" in text and FORMAT in text for text in trial.texts)


@pytest.mark.parametrize(
    "qtype, capability, can",
    [
        ("int8", 75, True),
        (FORMAT, 88, False),
        (FORMAT, 89, True),
        ("float4e2m1", 90, False),
        ("int16", 120, False),
    ],
)
def test_formats_of_gpus(qtype: str, capability: int, can: bool) -> None:
    """NVIDIA's support matrix; a target without a table has no format by GPU."""
    assert can_multiply("tensorrt", qtype, capability) is can
    assert not can_multiply("onnxruntime", qtype, capability)


WIDE = "uint16"


def few_digits() -> onnx.ModelProto:
    """The spectrum with weights that 8 bits hold exactly, so that activations make all noise."""
    exact = {"mixing": np.eye(32, dtype=np.float32), "w": np.sign(weights(32, 8))}
    return with_constants(spectrum(), lambda name, array: exact[name])


@functools.cache
def run_on_htp(recipe: str = "qnn-int8", **accuracy: object) -> QuantizeResult:
    """Quantize for QNN, where the CPU runs what is in float."""
    return quantize(few_digits(), powers(), recipe=recipe, accuracy=AccuracyTarget(**accuracy))


@pytest.mark.parametrize("words", [{}, {"repair": "thorough"}, {"fallback": WIDE}, {"min_sqnr": 25.0}])
def test_all_activations_widen_where_float_leaves_the_hardware(words: dict[str, object]) -> None:
    """Activations have the grids of the recipe with 16 bits, and no layer is in float.

    Thorough repair goes on.
    """
    result = run_on_htp(**words)
    trial = result.trial("widened")
    assert trial.is_kept and trial.after > trial.before + 10 and trial.cost == "100.0% in uint16"
    assert formats(result) == {WIDE} and not result.recipe.overrides
    wide = run_on_htp("qnn-a16w8", repair=None)
    if "repair" not in words:
        assert result.plan.activations == wide.plan.activations
        assert all(result.encodings[p.tensor] == wide.encodings[p.tensor] for p in wide.plan.activations)
        assert [p.spec for p in result.plan.weights] == [p.spec for p in wide.plan.weights]


def test_a_promise_of_a_metric_widens_too() -> None:
    """No SQNR is asked for, so the promise itself tries it before layers in float."""
    data, wanted = powers(), []

    def near(outputs: Iterable[dict[str, np.ndarray]], samples: Iterable[dict[str, np.ndarray]]) -> float:
        """Return minus the mean distance from the float model."""
        wanted[:] = wanted or [compute(one) for one in samples]
        pairs = zip(outputs, wanted, strict=True)
        return -float(np.mean([np.abs(found["y"] - real).mean() for found, real in pairs]))

    def compute(sample: dict[str, np.ndarray]) -> np.ndarray:
        matrix = np.sign(weights(32, 8))
        return np.asarray(np.sqrt(np.sqrt(sample["x"])) @ matrix)

    loose = run_on_htp(repair=None)
    assert formats(loose) == {"uint8"}
    accuracy = AccuracyTarget(metric=near, max_drop=0.25)
    result = quantize(few_digits(), data, recipe="qnn-int8", accuracy=accuracy)
    assert result.trial("promised").is_kept and formats(result) == {WIDE}
    assert not result.recipe.overrides and "all activations in uint16" in result.trial("promised").details[0]


def test_what_widens_nothing() -> None:
    """Repair that is off, sound outputs, formats by override, another fallback, 16 bits already."""
    named = load_recipe("qnn-int8").override(
        overrides=[{"nodes": ["last"], "activations": {"qtype": "uint8"}}]
    )
    formats_by_name = quantize(few_digits(), powers(), recipe=named)
    cases = [
        (run_on_htp(repair=None), "repair is off"),
        (run_on_htp(repair=10.0), "the outputs have 10 dB"),
        (formats_by_name, "the recipe names the formats of some layers"),
        (run_on_htp(fallback="weights", min_sqnr=20.0), "layers that lose get weights"),
        (run_on_htp("qnn-a16w8"), "no activation has fewer bits"),
        (run(repair=45.0), "layers in float stay on the hardware"),
    ]
    for result, why in cases:
        assert result.trial("widened").why == why
    with pytest.raises(RecipeError, match="all activations take uint16 or none; ask for less"):
        run_on_htp(min_sqnr=90.0, fallback=WIDE)


def stream() -> onnx.ModelProto:
    """A sum in which one channel is 30 times the others and counts for nothing, between products."""
    grow, keep = np.ones(8, np.float32), np.ones(8, np.float32)
    grow[0], keep[0] = 30, 0
    return build(
        """g (float[N,8] x) => (float[N,4] y) {
            [first] a = MatMul (x, v)
            [grow] t = Mul (a, grow)
            [sum] s = Add (t, a)
            [keep] m = Mul (s, keep)
            [last] y = MatMul (m, w) }""",
        {"v": np.eye(8, dtype=np.float32), "grow": grow, "keep": keep, "w": np.sign(weights(8, 4))},
    )


@functools.cache
def run_stream(**accuracy: object) -> QuantizeResult:
    """Quantize the sum for QNN."""
    data = {"x": np.random.default_rng(0).uniform(-1, 1, (256, 8)).astype(np.float32)}
    return quantize(stream(), data, recipe="qnn-int8", accuracy=AccuracyTarget(**accuracy))


@pytest.mark.parametrize("words", [{}, {"min_sqnr": 20.0}, {"min_sqnr": 20.0, "fallback": WIDE}])
def test_sums_widen_before_all(words: dict[str, object]) -> None:
    """Two tensors in 16 bits are enough, and all others keep 8."""
    plain, result = run_stream(repair=None), run_stream(**words)
    assert {p.tensor for p in result.plan.activations if p.spec.qtype.name == WIDE} == {"s", "t"}
    before, after = (one.evaluation.candidates[0].lowest_db for one in (plain, result))
    assert before < 20 and after > 28
    trial = next(one for one in result.trials if one.is_kept)
    assert trial.remedy in ("sums widened", "promised") and trial.cost == "2 tensors in uint16"


def test_what_has_no_such_sum() -> None:
    """A tensor that a product makes or reads is none: it has one format for both operands."""
    trial = run_on_htp().trial("sums widened")
    assert not trial.is_kept and "no tensor lies between" in trial.why
    asked = run_on_htp(fallback=WIDE).trial("sums widened")
    assert asked.why == "all activations take the wide format at once"
