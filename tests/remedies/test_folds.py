"""Few samples are compared in folds, each with ranges of the others: the printed SQNR is unseen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session

TEXT = "g (float[N,16] x) => (float[N,4] y) { a = MatMul (x, w) r = Relu (a) y = MatMul (r, v) }"


def network() -> onnx.ModelProto:
    """Return two layers."""
    return build(TEXT, {"w": weights(16, 16), "v": weights(16, 4, seed=1)})


def draw(count: int) -> np.ndarray:
    """Return samples whose ranges differ much."""
    return np.random.default_rng(0).standard_t(3, (count, 16)).astype(np.float32)


def quantize(x: np.ndarray, **given: object) -> onnxfq.QuantizeResult:
    """Return the result of the largest values without remedies."""
    recipe = onnxfq.load_recipe("tensorrt-int8").override(
        activations={"calibrator": "minmax", "equalize": "none"}, weights={"rounding": "nearest"}
    )
    given = {"accuracy": onnxfq.AccuracyTarget(repair=None), **given}
    return onnxfq.quantize(network(), {"x": x}, recipe=recipe, **given)


@pytest.mark.parametrize(("count", "folds"), [(2, 2), (3, 3), (4, 2), (7, 2)])
def test_ranges_are_of_the_other_samples(count: int, folds: int) -> None:
    """A model for each fold, which the others made and the fold runs, has this SQNR."""
    result = quantize(draw(count))
    kept = [feed["x"] for feed in result.candidate.session.kept]
    assert result.evaluation.folds == folds and result.evaluation.feeds == count
    noise = signal = 0.0
    for fold in range(folds):
        others = [x for at, x in enumerate(kept) if at % folds != fold]
        model = quantize(np.concatenate(others)).simulation
        for x in kept[fold::folds]:
            wanted, found = (Session(one, exact=True).run({"x": x}, ["y"])[0] for one in (network(), model))
            noise += float(((found - wanted).astype(np.float64) ** 2).sum())
            signal += float((wanted.astype(np.float64) ** 2).sum())
    # The float model ran with its graph optimised, and rounds otherwise.
    assert result.evaluation.lowest_db == pytest.approx(10 * np.log10(signal / noise), abs=1e-3)


def test_order_and_batches_decide_nothing() -> None:
    """The same figures in any order and batch."""
    x = draw(6)
    (first,) = quantize(x).evaluation.candidates
    for again in (quantize(x[::-1].copy()), quantize(x, options=onnxfq.RunOptions(batch=1))):
        assert again.evaluation.candidates[0].outputs == first.outputs


def test_the_summary_says_so() -> None:
    """The verdict is about unseen samples, and names the folds; the written model has the ranges of all."""
    x = draw(4)
    result = quantize(x)
    assert result.encodings["x"].scale.max() == pytest.approx(np.abs(x).max() / 127)
    text = quantize_summary(result)
    assert text.startswith("SQNR       about ") and ", on unseen samples\n" in text
    assert "against the float model, 4 of 4 samples, unseen, in 2 folds:" in text


def test_others_are_as_before(tmp_path: Path) -> None:
    """One sample, samples that are left out, and statistics that saw all have no folds."""
    x, stats = draw(4), tmp_path / "stats.npz"
    quantize(x).statistics.save(stats)
    results = [quantize(draw(1)), quantize(draw(8)), quantize(x, sources=onnxfq.Sources(statistics=stats))]
    assert [result.evaluation.folds for result in results] == [0, 0, 0]
    assert ", unseen:" in quantize_summary(results[1])
    assert all(", seen:" in quantize_summary(result) for result in (results[0], results[2]))


def test_a_promise_is_proven_in_folds() -> None:
    """Few samples that do not choose prove it; next to unseen ones, ranges of a quarter must keep it."""
    few = quantize(draw(6), accuracy=onnxfq.AccuracyTarget(min_sqnr=5.0))
    assert few.evaluation.folds == 2 and few.evaluation.feeds == 3
    x = draw(40)
    wanted = quantize(x).evaluation.candidates[0].low_db - 0.1
    with pytest.raises(onnxfq.errors.RecipeError, match="with ranges of fewer samples was reached"):
        quantize(x, accuracy=onnxfq.AccuracyTarget(min_sqnr=wanted))


def test_a_part_without_values_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A branch that one sample alone takes: the figures are of samples that gave the ranges, in silence."""
    text = """g (float[1,16] x) => (float[1,4] y) {
        m = ReduceMax <keepdims = 0> (x)
        large = Greater (m, limit)
        y = If (large) <
            then_branch = t () => (float[1,4] p) { r = Relu (x) p = MatMul (r, w) },
            else_branch = e () => (float[1,4] q) { q = Identity (rest) }> }"""
    model = build(text, {"w": weights(16, 4), "limit": np.float32(50), "rest": np.zeros((1, 4), np.float32)})
    x = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    x[0, 0] = 60
    recipe = onnxfq.load_recipe("tensorrt-int8").override(activations={"equalize": "none"})
    result = plain_quantize(model, [{"x": x[:1]}, {"x": x[1:]}], recipe=recipe)
    assert len(result.candidate.session.kept) == 2
    assert result.evaluation.folds == 0
    assert not [line for line in caplog.messages if "branch" in line]
