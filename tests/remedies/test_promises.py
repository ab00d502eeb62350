"""Promises of an accuracy: each ends in a model that keeps it on data that did not choose, or in one line."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.cli.main import main
from onnxfq.data import Feed, sample_digest
from onnxfq.data.labels import read_labels
from onnxfq.errors import DataError, RecipeError
from onnxfq.judging.samples import split_samples
from onnxfq.metrics import read_value
from onnxfq.runtime.session import Session


def draw(seed: int) -> tuple[onnx.ModelProto, Feed]:
    """A chain of one to four products, and samples of which a few are larger than the others."""
    rng = np.random.default_rng(seed)
    count, width = int(rng.integers(1, 5)), 16
    lines = [f"h{n} = MatMul ({f'r{n - 1}' if n else 'x'}, w{n}) r{n} = Relu (h{n})" for n in range(count)]
    text = f"g (float[N,{width}] x) => (float[N,{width}] h{count - 1}) {{ {' '.join(lines)} }}"
    drawn = {f"w{n}": weights(width, width, seed=seed + n) * np.float32(0.3) for n in range(count)}
    x = rng.normal(size=(int(rng.integers(1, 50)), width))
    x *= np.where(rng.random((len(x), 1)) < 0.2, 1.0, 10.0 ** -rng.uniform(0, 2))
    return build(text, drawn), {"x": x.astype(np.float32)}


def unseen_of(count: int) -> int:
    """The number of samples that the documentation leaves out of the ranges; all if that is none."""
    return min(max(count // 4, 16), 64, count // 2) if count >= 8 else count


def proving_db(result: onnxfq.QuantizeResult, proto: onnx.ModelProto, data: Feed) -> float:
    """The SQNR of onnxruntime on the samples that must prove it, by the rule of the documentation."""
    rows = sorted(
        (data["x"][n : n + 1] for n in range(len(data["x"]))), key=lambda x: sample_digest({"x": x})
    )
    pairs = [
        (Session(proto, 1).run({"x": row})[0], Session(result.simulation, 1).run({"x": row})[0])
        for row in split_samples(rows[: unseen_of(len(rows))]).proving
    ]
    noise = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in pairs)
    signal = sum(float(np.square(a.astype(np.float64)).sum()) for a, _ in pairs)
    return 10 * np.log10(signal / noise) if noise else np.inf


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", range(8))
def test_a_promise_is_kept_or_refused(seed: int) -> None:
    """Near the value that quantizing gives: kept on samples that did not choose, or refused in one line."""
    proto, data = draw(seed)
    rng = np.random.default_rng(seed)
    plain = plain_quantize(proto, data)
    wanted = plain.evaluation.candidates[0].outputs[0].sqnr_db + rng.uniform(-3, 4)
    fallback = str(rng.choice(["float", "weights"]))
    try:
        kept = onnxfq.quantize(
            proto, data, accuracy=onnxfq.AccuracyTarget(min_sqnr=wanted, fallback=fallback)
        )
    except RecipeError as refusal:
        assert "cannot keep" in str(refusal)
        return
    assert kept.evaluation.lowest_db >= wanted
    # The written model has the ranges of all samples, and was judged with those of the others.
    assert proving_db(kept, proto, data) > wanted - 0.5
    protected = onnxfq.quantize(proto, data, accuracy=onnxfq.AccuracyTarget(repair=wanted))
    assert protected.sensitivity is None or protected.sensitivity.remedy is not None


@pytest.mark.parametrize("option", [["--min-sqnr", "25"], ["--repair", "30"], ["--max-drop", "0"]])
def test_the_part_that_chooses_keeps_it_alone(option: list[str], tmp_path, capfd) -> None:
    """Most samples are quiet: whichever part has the loud ones, the command ends with a model or a reason."""
    proto = build(
        "g (float[N,32] x) => (float[N,32] y) { a = MatMul (x, w) r = Relu (a) y = MatMul (r, w2) }",
        {"w": weights(32, 32, seed=1), "w2": weights(32, 32, seed=2)},
    )
    onnx.save(proto, tmp_path / "m.onnx")
    for seed in range(2):
        x = np.random.default_rng(seed).normal(size=(64, 32)).astype(np.float32)
        x[[i for i in range(64) if i % 9]] *= 0.1
        np.savez(tmp_path / "d.npz", x=x)
        np.save(tmp_path / "l.npy", Session(proto, 1).run({"x": x})[0].argmax(1))
        words = ["quantize", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx"]
        words += [*option, *(["--labels", tmp_path / "l.npy"] if "--max-drop" in option else [])]
        code, said = main([str(word) for word in words]), capfd.readouterr().err
        assert code == 0 or (code == 1 and "cannot keep" in said)


class Nameless:
    """A value without a text."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "value",
    [
        10**400,
        10**5000,
        float("nan"),
        float("inf"),
        "high",
        "1.0",
        b"1",
        None,
        1j,
        [1.0],
        np.zeros(2),
        Nameless(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_finite_number(value: object) -> None:
    """It is refused in a line that names the metric, whatever a metric returns."""
    with pytest.raises(DataError, match="metric m returned .*; return a finite number"):
        read_value(value, "metric m")


def test_what_is_a_number() -> None:
    """Numbers of Python and NumPy, and arrays of one element, are accepted; a promise refuses others."""
    for value, number in ((1, 1), (True, 1), (np.float16(2), 2), (np.array(3.0), 3), (np.array([4.0]), 4)):
        assert read_value(value, "metric m") == number
    proto, data = draw(1)
    with pytest.raises(DataError, match=r"metric <?lambda>? returned None; return a finite number"):
        onnxfq.quantize(proto, data, accuracy=onnxfq.AccuracyTarget(max_drop=1, metric=lambda *_: None))


@pytest.mark.sample
def test_nobody_writes_into_the_data() -> None:
    """Samples and outputs that a metric gets are read-only, and the caller's arrays stay what they were."""
    proto, data = draw(2)
    before, refused = data["x"].copy(), []

    def scribble(outputs, samples) -> float:
        for given in (*samples, *outputs):
            for array in given.values():
                try:
                    array *= 0
                except ValueError:
                    refused.append(True)
        return 1.0

    onnxfq.quantize(proto, data, accuracy=onnxfq.AccuracyTarget(max_drop=1, metric=scribble))
    assert len(refused) >= 4 * len(before) // 2 and np.array_equal(data["x"], before)


def test_labels_in_any_form() -> None:
    """A list, a tuple, an array and a tensor of labels are the same labels, wherever they are given."""
    proto, data = draw(3)
    numbers = Session(proto, 1).run(data)[0].argmax(1).tolist()
    labels = pytest.importorskip("torch").tensor(numbers)
    for form in (list(numbers), tuple(numbers), np.asarray(numbers), labels):
        assert read_labels(form).tolist() == numbers
    result = onnxfq.quantize(proto, data, accuracy=onnxfq.AccuracyTarget(max_drop=100, labels=labels))
    found = onnxfq.evaluate(proto, result.simulation, data, labels=labels)
    assert found.accuracy == 1.0
    assert onnxfq.sensitivity(proto, data, labels=labels).metric is not None


@pytest.mark.parametrize("labels", [3, [[1], [1, 2]], [None], [0.5] * 5])
def test_what_is_no_labels(labels: object) -> None:
    """One line tells what labels are."""
    with pytest.raises(DataError, match="the given labels(: labels must be whole| are no labels)"):
        read_labels(labels)


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_promise_by_samples_of_any_size(seed: int) -> None:
    """A promise that samples of lognormal size keep is true of 200 others, some larger than all known.

    Samples of one size keep the promise. By the point estimate two of four were 20 dB short.
    """
    proto = build(
        "g (float[N,24] x) => (float[N,24] y) { a = MatMul (x, w) r = Relu (a) y = MatMul (r, w2) }",
        {"w": weights(24, 24, seed=1), "w2": weights(24, 24, seed=2)},
    )
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(296, 24)).astype(np.float32)
    sizes = np.exp(rng.normal(size=(296, 1))).astype(np.float32)
    accuracy = onnxfq.AccuracyTarget(min_sqnr=28.0)
    alike = onnxfq.quantize(proto, {"x": x[:96]}, accuracy=accuracy)
    assert onnxfq.evaluate(proto, alike.simulation, {"x": x[96:]}).lowest_db > 28
    try:
        kept = onnxfq.quantize(proto, {"x": (x * sizes)[:96]}, accuracy=accuracy)
    except RecipeError as refusal:
        assert "cannot keep 28 dB" in str(refusal) and "give more data" in str(refusal)
        return
    assert onnxfq.evaluate(proto, kept.simulation, {"x": (x * sizes)[96:]}).lowest_db > 25
