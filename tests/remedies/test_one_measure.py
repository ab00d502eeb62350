"""One measure: what a promise keeps, what protects, what remedies are judged by and what is printed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights, with_constants
from detector_heads import detector, one_tensor

import onnxfq
from onnxfq.cli.main import main
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import RecipeError
from onnxfq.judging.candidate import Candidate, Sources, build_candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.samples import split_samples
from onnxfq.report.text import quantize_summary
from onnxfq.runtime.session import Session
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions

WEIGHTS = {"w": weights(16, 16, seed=1), "u": weights(16, 16, seed=3) / 4, "v": weights(16, 4, seed=2) / 16}
BODY = "a = MatMul (x, w) r = Relu (a) c = MatMul (r, u) d = Relu (c) b = MatMul (d, v)"
PROBABILITIES = build(f"g (float[N,16] x) => (float[N,4] y) {{ {BODY} y = Softmax (b) }}", WEIGHTS)
TWO_OUTPUTS = build(
    f"""g (float[N,16] x) => (float[N,16] d, float[N,4] y, int64[N] i) {{
        {BODY} y = Sigmoid (b) i = ArgMax <axis = 1, keepdims = 0> (r) }}""",
    WEIGHTS,
)
CLASSES = build(
    f"g (float[N,16] x) => (int64[N] i) {{ {BODY} i = ArgMax <axis = 1, keepdims = 0> (b) }}", WEIGHTS
)
STATEFUL = build(
    """g (float[N,16] x, float[N,16] h) => (float[N,4] y, float[N,16] hn) {
        a = MatMul (x, w) s = Add (a, h) hn = Tanh (s) y = MatMul (hn, v) }""",
    {"w": weights(16, 16, seed=1), "v": weights(16, 4, seed=2)},
)
NETWORKS = {
    "boxes and scores": detector("side by side"),
    "levels": detector("levels of both"),
    "probabilities": PROBABILITIES,
    "two outputs and a class": TWO_OUTPUTS,
    "classes": CLASSES,
    "state": STATEFUL,
}


NEAREST = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "nearest"})


def data_of(proto: onnx.ModelProto, count: int = 40) -> dict[str, np.ndarray]:
    """Return samples."""
    rng = np.random.default_rng(count)
    return {v.name: rng.normal(size=(count, 16)).astype(np.float32) for v in proto.graph.input}


def judge_of(proto: onnx.ModelProto, options: QuantizeOptions) -> tuple[Candidate, Judge]:
    """Return the first candidate, and its judge."""
    session = open_inputs(proto, data_of(proto), NEAREST, options)
    candidate = build_candidate(session, NEAREST, Sources(), options)
    return candidate, Judge(candidate, options, Sources())


@pytest.mark.grid
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_judge_has_what_is_printed(name: str, exact: bool) -> None:
    """On the same samples, the figure of the judge is that of `evaluate`, to the last bit."""
    proto = NETWORKS[name]
    options = QuantizeOptions(batch=1, exact=exact)
    candidate, judge = judge_of(proto, options)
    board = candidate.open_toggles(options)
    for feeds in split_samples(judge.kept)[:2]:
        (figure,) = judge.score([candidate], feeds)
        printed = onnxfq.evaluate(proto, candidate.simulate(), feeds, options=options)
        assert figure == printed.lowest_db and 5 < figure < 60
        (noise,) = board.noise(feeds, [board.everything])
        if candidate.session.judged.sources:
            # An inner tensor is measured in front of its own quantizer.
            assert -10 * math.log10(noise) >= figure - 1e-3
        else:
            # The switchboard runs in segments, whose kernels sum in another order.
            assert -10 * math.log10(noise) == pytest.approx(figure, abs=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_summary_has_what_the_judge_has(name: str) -> None:
    """With few samples all of them are compared: the figure of the result is the judge's, to the last bit."""
    proto = NETWORKS[name]
    feeds = {key: array[:7] for key, array in data_of(proto).items()}
    options = QuantizeOptions(batch=1, exact=True)
    result = plain_quantize(proto, feeds, recipe=NEAREST, options=options)
    candidate = result.candidate
    assert candidate is not None and result.evaluation.feeds == 7
    judge = Judge(candidate, options, Sources())
    assert judge.score([candidate], judge.kept)[0] == result.evaluation.lowest_db


@pytest.mark.grid
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("more", [-15.0, -1.0, 0.5])
def test_a_promise_is_kept_in_the_printed_measure(name: str, more: float) -> None:
    """Whatever is promised and kept, the summary has at least that, on the samples that prove it."""
    proto, options = NETWORKS[name], QuantizeOptions(batch=1)
    data = data_of(proto)
    candidate, judge = judge_of(proto, options)
    split = split_samples(judge.kept)
    wanted = min(judge.score([candidate], feeds)[0] for feeds in split[:2]) + more
    target = onnxfq.AccuracyTarget(min_sqnr=wanted, repair=None)
    try:
        kept = onnxfq.quantize(proto, data, recipe=NEAREST, accuracy=target, options=options)
    except RecipeError as fault:
        # 11 samples have a wide interval, and ranges of 10 leave values outside: near the figure all layers
        # would have to stay in float.
        assert more > -15 and f"cannot keep {wanted:g} dB" in str(fault)
        return
    folded = 40 - len(split.choosing)
    assert kept.evaluation.feeds == (folded if kept.evaluation.folds else len(split.promised))
    assert kept.evaluation.candidates[0].low_db >= wanted and kept.evaluation.lowest_db > wanted
    assert more > -15 or not kept.trial("promised").is_needed


@pytest.mark.sample
def test_boxes_do_not_hide_scores(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The scores beside boxes in pixels are named, with the dB that NumPy finds; the whole is better."""
    proto = detector("side by side")
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **data_of(proto))
    line = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--repair", "off"]
    line += ["-o", str(tmp_path / "q.onnx"), "--rounding", "nearest", "--exact"]
    assert main(line) == 0
    shown = capfd.readouterr().out
    assert re.search(r" dB \(.* to .*\) at 'y', part 'scores', the worst of 2 parts", shown)
    line = ["evaluate", str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main([*line, "--json"]) == 0
    found = Evaluation.model_validate_json(capfd.readouterr().out)
    want, got = (
        Session(onnx.load(tmp_path / f"{name}.onnx"), 1, exact=True).run(data_of(proto))[0].astype(np.float64)
        for name in "mq"
    )

    def sqnr(part: slice) -> float:
        error = np.square(want - got)[:, part].sum()
        return float(10 * np.log10(np.square(want)[:, part].sum() / error))

    (whole,), (boxes, scores) = found.candidates[0].outputs, found.candidates[0].parts
    # The reference runs optimised, with sums in another order.
    assert whole.sqnr_db == pytest.approx(sqnr(slice(None)), abs=1e-3) and not whole.decides
    assert boxes.sqnr_db == pytest.approx(sqnr(slice(0, 4)), abs=1e-3)
    assert scores.sqnr_db == pytest.approx(sqnr(slice(4, None)), abs=1e-3)
    assert found.lowest_db == scores.sqnr_db < whole.sqnr_db - 2


def test_columns_of_other_size_are_parts(tmp_path: Path) -> None:
    """Boxes 640 times as large as the scores of the same product hide nothing; NumPy divides the same."""
    proto = one_tensor()
    x = np.random.default_rng(3).standard_normal((60, 16), dtype=np.float32)
    recipe = onnxfq.load_recipe("tensorrt-int8").override(
        overrides=[{"op_types": ["Mul"], "keep_float": True}], weights={"granularity": "per_tensor"}
    )
    result = plain_quantize(proto, {"x": x}, tmp_path / "q.onnx", recipe=recipe)
    parts = {one.part: one for one in result.evaluation.candidates[0].parts}
    assert [*parts] == ["channels 0-3", "channels 4-6"]
    assert result.evaluation.lowest_db == min(one.sqnr_db for one in parts.values())
    assert result.candidate is not None and result.candidate.session.judged.parts["y"][1].ranges == {
        1: (4, 7)
    }
    for batch in (1, 60):
        options = onnxfq.RunOptions(batch=batch)
        scores = onnxfq.evaluate(proto, result.simulation, {"x": x}, options=options).candidates[0]
        wanted, given = (Session(one, 1).run({"x": x})[0].astype(float) for one in (proto, result.simulation))
        for part, places in (("channels 0-3", slice(0, 4)), ("channels 4-6", slice(4, 7))):
            want, have = wanted[:, places], given[:, places]
            truth = 10 * math.log10(np.square(want).sum() / np.square(want - have).sum())
            (found,) = (one.sqnr_db for one in scores.parts if one.part == part)
            assert found == pytest.approx(truth, abs=0.05)  # float sums in another order
    board = result.candidate.open_toggles(onnxfq.RunOptions())
    feeds = result.candidate.session.kept[:6]
    ratio = board.noise(feeds, [board.everything])[0]
    assert -10 * math.log10(ratio) == pytest.approx(
        onnxfq.evaluate(proto, result.simulation, feeds).lowest_db,
        abs=0.3,  # ranges of all samples
    )


@pytest.mark.parametrize(("shift", "worst"), [(0.0, "logits"), (-8.0, "outputs")])
def test_the_worse_of_probabilities_and_logits_decides(shift: float, worst: str) -> None:
    """Probabilities around a half hide the noise of logits; large negative logits hide the small ones."""
    proto = build(
        f"g (float[N,16] x) => (float[N,4] y) {{ {BODY} e = Add (b, shift) y = Sigmoid (e) }}",
        {**WEIGHTS, "shift": np.float32(shift)},
    )
    result = plain_quantize(proto, data_of(proto))
    (candidate,) = result.evaluation.candidates
    (logits,) = candidate.parts
    assert (logits.output, logits.part, logits.decides) == ("y", "logits 'e'", True)
    assert candidate.judging == (*candidate.outputs, logits) and candidate.worst.kind == worst
    first = quantize_summary(result).splitlines()[0]
    lowest = min(candidate.judging, key=lambda one: one.sqnr_db)
    assert first.startswith(f"SQNR       about {lowest.figure} at 'y'")
    assert first.endswith(", the worst of 2 outputs and logits, on unseen samples")
    assert ("logits 'e'" in first) == (worst == "logits")


def test_state_decides_nothing() -> None:
    """State that is fed back is scored and noted; the worse of the other outputs is the figure."""
    result = plain_quantize(STATEFUL, data_of(STATEFUL))
    (candidate,) = result.evaluation.candidates
    assert [(one.output, one.decides) for one in candidate.outputs] == [("y", True), ("hn", False)]
    assert candidate.lowest_db == candidate.outputs[0].sqnr_db
    assert result.evaluation.notes == (
        "output 'hn' counts as state that input 'h' takes: its SQNR judges nothing; no feed has the state "
        "that the one before leaves, and frames were compared",
    )


def test_a_part_without_signal_decides_nothing() -> None:
    """Zeros of the float model have no SQNR; the other parts have."""
    proto = build(
        """g (float[N,16] x) => (float[N,20] y) {
            a = MatMul (x, w) b = MatMul (x, v) z = Mul (b, zero) y = Concat <axis = 1> (a, z) }""",
        {"w": weights(16, 16), "v": weights(16, 4), "zero": np.float32(0)},
    )
    other = with_constants(proto, lambda name, array: array + np.float32(0.0 if name == "v" else 0.1))
    found = onnxfq.evaluate(proto, other, data_of(proto)).candidates[0]
    assert [one.decides for one in found.parts] == [True, False]
    assert found.parts[1].sqnr_db == -math.inf and found.lowest_db == found.parts[0].sqnr_db
