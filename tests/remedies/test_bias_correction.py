"""Bias correction: the mean error of rounded weights goes into biases, and the rest stays with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import Arrays, build, weights

from onnxfq import QuantizeResult, RunOptions, quantize
from onnxfq.calibration.weights import InputView
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.constants import weight_array
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Sources, build_candidate
from onnxfq.judging.judge import Judge, Proposal
from onnxfq.passes.replace_constants import BiasFinder, BiasPlace, shift_biases
from onnxfq.remedies.correct_biases import correct_biases, find_targets
from onnxfq.report.text import quantize_summary
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import RECIPES

RNG = np.random.default_rng(5)
DATA = (RNG.normal(size=(40, 4, 9, 8)) ** 2).astype(np.float32)
ROWS = (RNG.normal(size=(40, 64)) * 0.3 + RNG.uniform(1, 3, 64)).astype(np.float32)
INT4 = Recipe.model_validate(
    {
        "name": "int4",
        "target": "simulation",
        "activations": None,
        "weights": {"qtype": "int4"},
        "bias_correction": "auto",
    }
)


def image_layer(attributes: str, inputs: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """One Conv on DATA."""
    text = f"g (float[N,4,9,8] x) => (float[N,M,H,W] y) {{ [conv] y = Conv <{attributes}> ({inputs}) }}"
    return build(text, {"w": weights(*shape), **({"b": weights(shape[0])} if "b" in inputs else {})})


def row_layer(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """One matrix product on ROWS."""
    return build(f"g (float[N,64] x) => (float[N,6] y) {{ {text} }}", constants)


LAYERS = {
    "conv": image_layer("pads = [1,2,0,1], strides = [2,1], dilations = [1,2]", "x, w, b", (6, 4, 3, 3)),
    "groups, no bias": image_layer('group = 2, auto_pad = "SAME_LOWER"', "x, w", (6, 2, 2, 4)),
    "gemm": row_layer(
        "[fc] y = Gemm <transB = 1, alpha = 0.5, beta = 4.0> (x, w, b)", w=weights(6, 64), b=weights(6)
    ),
    "gemm, no bias": row_layer("[fc] y = Gemm <alpha = 3.0> (x, w)", w=weights(64, 6)),
    "matmul": row_layer("[fc] h = MatMul (x, w) [add] y = Add (b, h)", w=weights(64, 6), b=weights(1, 6)),
}


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return the output `y` of a standard model."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


@dataclass(frozen=True)
class Quantized:
    """A correction, and the fake-quant models without and with it."""

    made: Model
    details: Sequence[str]
    encodings: Encodings
    plain: onnx.ModelProto
    corrected: onnx.ModelProto
    seen: np.ndarray


def correct(proto: onnx.ModelProto, data: object, batch: int = 1) -> Quantized:
    """Quantize the weights of `proto` and correct its biases."""
    options = QuantizeOptions(threads=1, batch=batch)
    candidate = build_candidate(open_inputs(proto, data, INT4, options), INT4, Sources(), options)
    proposal = correct_biases(candidate, Judge(candidate, options, Sources()))
    assert isinstance(proposal, Proposal)
    models = (one.simulate() for one in (candidate, proposal.candidate))
    seen = np.concatenate([feed["x"] for feed in candidate.session.feeds.again()])
    return Quantized(proposal.candidate.model, proposal.details, candidate.encodings, *models, seen)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_keep_their_means(name: str) -> None:
    """The mean of each output channel of a corrected layer equals the float layer's, in ONNX Runtime.

    The unseen samples give no means.
    """
    proto = LAYERS[name]
    result = correct(proto, DATA if "conv" in name or "groups" in name else ROWS)
    x = result.seen
    wanted, found = run(proto, x), run(result.corrected, x)
    axes = tuple(axis for axis in range(wanted.ndim) if axis != 1)
    assert result.details == ["1 layers"]
    assert np.abs(found - wanted).max() > 0.01
    # Biases and outputs are float32 numbers of up to about 100.
    np.testing.assert_allclose(found.mean(axis=axes), wanted.mean(axis=axes), rtol=0, atol=3e-5)


@pytest.mark.parametrize("rank", [1, 2])
def test_sums_are_those_of_the_rows(rank: int) -> None:
    """Sums of an input by slices are the sums of all its rows, for any window and padding."""
    rng = np.random.default_rng(rank)
    for _ in range(60):
        kernel, strides, dilations, pads, ends = (
            tuple(int(n) for n in rng.integers(low, high, rank))
            for low, high in ((1, 5), (1, 4), (1, 4), (0, 6), (0, 6))
        )
        padding = str(rng.choice(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
        view = InputView("Conv", -1, 2, kernel, strides, dilations, pads, ends, padding)
        x = rng.integers(-9, 10, (3, 4, *rng.integers(10, 15, rank))).astype(np.float32)
        sample = view.sample(x.shape, 3, 10**6)
        rows = sample.rows(sample.take(x))
        sums, count = view.sums(x)
        assert count == rows.shape[2]
        assert (sums == rows.sum(axis=2)).all()


def network() -> onnx.ModelProto:
    """Layers with and without biases, one shared bias, and layers that stay."""
    constants: Arrays = {
        "w1": weights(8, 4, 3, 3),
        "w2": weights(8, 1, 3, 3),
        "w3": weights(8, 8, 2, 2),
        "w4": weights(8, 8, 1, 1),
        "w5": weights(8, 12),
        "w6": weights(12, 5),
        "b": weights(8),
        "b5": weights(1),
    }
    return build(
        """g (float[N,4,9,8] x) => (float[N,5] y) {
            [c1] a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w1, b)
            [r1] r = Relu (a)
            [c2] d = Conv <pads = [1,1,1,1], group = 8> (r, w2)
            [up] u = ConvTranspose <strides = [2,2]> (d, w3, b)
            [c4] e = Conv (u, w4, b)
            [pool] p = GlobalAveragePool (e)
            [flat] f = Flatten (p)
            [fc5] h = MatMul (f, w5)
            [a5] k = Add (h, b5)
            [fc6] y = MatMul (k, w6) }""",
        constants,
    )


def test_what_stays_has_a_reason() -> None:
    """Layers without a bias that can change are named; a bias that others read stays as it is for them."""
    result = correct(network(), DATA)
    made, float_outputs = result.made, run(network(), DATA)
    assert result.details == [
        "3 layers",
        "'up' stays: ConvTranspose has other inputs at each position of its output",
        "'fc5' stays: its bias 'b5' has shape [1], not one value for each of 12 output channels",
        "'fc6' stays: no Add of a constant alone reads its output",
    ]
    assert (weight_array(made, "b") == weights(8)).all()
    biases = {node.name: list(node.input)[2:] for node in made.proto.graph.node if node.name in "c1 c2 c4 up"}
    assert biases == {"c1": ["c1/bias"], "c2": ["c2/bias"], "up": ["b"], "c4": ["c4/bias"]}
    before, after = (
        ((run(one, DATA) - float_outputs) ** 2).sum() for one in (result.plain, result.corrected)
    )
    assert after < before


def test_no_float_bias_beside_integer_ones() -> None:
    """If the target quantizes biases, an old one changes under its name; a layer without is left."""
    model = load(LAYERS["conv"])
    place = BiasFinder(model, make_plan(model, INT4), True).find("conv", 0, "w", 6)
    assert isinstance(place, BiasPlace)
    assert (place.tensor, place.gain) == ("b", 1.0)
    shifted = shift_biases(model, {place: np.full(6, 0.5)})
    assert (weight_array(shifted, "b") == weights(6) + np.float32(0.5)).all()
    model = load(LAYERS["groups, no bias"])
    assert BiasFinder(model, make_plan(model, INT4), True).find("conv", 0, "w", 6) == (
        "it has no bias, and a new one in float would not fit the integer kernel of the target"
    )


@pytest.mark.parametrize(
    "text, why",
    [
        ("[fc] y = Gemm <beta = 0.0> (x, w, b)", "it has alpha 1 and beta 0, and both must differ from 0"),
        (
            "t = ReduceMax <keepdims = 0> (x) [fc] y = Gemm (x, w, t)",
            "its bias 't' is computed while the model runs",
        ),
        ("[fc] h = MatMul (x, w) t = Neg (h) y = Add (h, t)", "no Add of a constant alone reads its output"),
        (
            "[fc] h = MatMul (x, w) t = Neg (x) s = ReduceSum (t) y = Add (h, s)",
            "its bias 's' is computed while",
        ),
    ],
)
def test_refusals(text: str, why: str) -> None:
    """Each form whose bias cannot change gives its reason."""
    model = load(row_layer(text, w=weights(64, 6), b=weights(6)))
    targets, left = find_targets(model, model, make_plan(model, INT4))
    assert not targets
    assert left["fc"].startswith(why)


def test_quantize_keeps_only_a_gain() -> None:
    """`quantize` names the correction in file and summary; without a gain it changes no bit of the model."""
    recipe = RECIPES["tensorrt-int4"].override(weights={"rounding": "nearest"})
    proto = row_layer("[fc] h = MatMul (x, w) [add] y = Add (h, b)", w=weights(64, 6), b=weights(6))

    def correct(rows: np.ndarray, way: str) -> QuantizeResult:
        chosen = recipe.model_copy(update={"bias_correction": way})
        nothing, options = AccuracyTarget(repair=None), RunOptions(batch=40)
        return quantize(proto, rows, recipe=chosen, accuracy=nothing, options=options)

    made, none = (correct(ROWS, way) for way in ("auto", "none"))
    assert not none.trial("biases").is_needed and made.trial("biases").is_kept
    assert {p.key: p.value for p in made.qdq.metadata_props}["onnxfq.bias_correction"] == "auto"
    trial = made.trial("biases")
    assert (trial.result, trial.texts[1:]) == ("kept", ["1 layers"]) and "biases" in quantize_summary(made)
    assert trial.texts[0].startswith("its gain is ") and trial.gain[0] > 0
    before, after = (one.evaluation.candidates[0].outputs[0].sqnr_db for one in (none, made))
    assert after > before + 0.1
    centred = ROWS * np.where(RNG.random(ROWS.shape) < 0.5, -1, 1).astype(np.float32)
    centred = np.concatenate([centred, -centred])  # means of 0
    left, same = (correct(centred, way) for way in ("auto", "none"))
    assert left.trial("biases").is_needed and not left.trial("biases").is_kept
    assert left.qdq.SerializeToString() == same.qdq.SerializeToString()
    assert left.trial("biases").result == "left" and left.trial("biases").figures


def test_no_correction_without_other_feeds() -> None:
    """One sample cannot confirm its own means, and no data has none."""
    recipe = RECIPES["tensorrt-int4"].model_copy(update={"bias_correction": "auto"})
    result = quantize(LAYERS["matmul"], [{"x": ROWS[:1]}], recipe=recipe, options=RunOptions(batch=0))
    assert result.trial("biases").why == "one sample cannot both choose and prove it"
    result = quantize(LAYERS["matmul"], None, recipe=recipe)
    assert result.trial("biases").why == "no data was given"
