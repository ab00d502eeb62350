"""`benchmarks/measures.py`: it measures as the tool does, ranks as Spearman did, and writes its page."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from builders import build
from detector_heads import detector

import onnxfq

ROOT = Path(__file__).resolve().parents[1]
FILE = "s04_ultraface/ultraface_rfb320_op9.onnx"
SCORER = """
import numpy as np
def feeds(folder, file):
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(4, 16)).astype(np.float32)} for _ in range(4)]
def ev_s04(file, keep):
    run = S(file)
    keep += [run(feed)[0][:, :, 4] > 0.05 for feed in feeds("", "")]
    return {}
def f1(reference, got):
    return float(np.mean([(a == b).mean() for a, b in zip(reference, got)]))
"""
"""A scorer of a detector: its figure is the share of equal decisions of the first score."""


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("variants", "timing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import measures

    yield measures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one model, whose output joins boxes and scores, and its scorer."""
    (tmp_path / FILE).parent.mkdir()
    onnx.save(detector("turned"), tmp_path / FILE)
    (tmp_path / "score.py").write_text(SCORER)
    return tmp_path


def test_the_measure_of_the_tool(measures: ModuleType, folder: Path, tmp_path: Path) -> None:
    """The worst output and the worst part are the dB of `evaluate`; boxes hide the other figures."""
    proto, run = onnx.load(folder / FILE), measures.open_model(folder / FILE)
    seen, unseen = measures.divide(measures.take(proto, measures.Folder(folder).feeds(case(measures))))
    assert (len(seen), len(unseen)) == (12, 4)
    assert not {one["x"].tobytes() for one in seen} & {one["x"].tobytes() for one in unseen}
    made = measures.quantize(folder / FILE, seen, measures.VARIANTS["int4 weights"])
    onnx.save(made, tmp_path / "made.onnx")
    quantized = measures.open_model(tmp_path / "made.onnx", "ORT_ENABLE_BASIC")
    found = measures.Measuring(proto, unseen, run).compare(quantized)
    told = onnxfq.evaluate(proto, made, unseen).candidates[0]
    near = 1e-3  # onnxruntime's optimisations round differently
    assert found["worst part, both"] == pytest.approx(told.lowest_db, abs=near)
    assert found["worst part"] == found["worst part, both"]  # the logits of parts decide nothing
    assert found["worst output"] == pytest.approx(told.outputs[0].sqnr_db, abs=near)
    assert found["pooled"] == found["worst output"]
    assert found["worst part"] < found["mean of parts"] < found["worst output"] + near
    assert found["worst part, logits"] != found["worst part"]
    (boxes,) = (one.sqnr_db for one in told.parts if "boxes" in one.part)
    assert 2 * found["mean of parts"] == pytest.approx(boxes + found["worst part"], abs=near)
    scores = [run(feed)[0][:, :, 4:] > 0.5 for feed in unseen]
    others = [quantized(feed)[0][:, :, 4:] > 0.5 for feed in unseen]
    assert found["agreement"] == np.mean(np.array(scores) == np.array(others))


def test_logits_stand_for_probabilities_alone(measures: ModuleType) -> None:
    """Logits of probabilities are compared as logits; other outputs stay as they are."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 1, 4)) * np.float64([[[1]], [[5]], [[2]]])
    noise = rng.normal(size=logits.shape) / 10
    feeds = [{"x": one.astype(np.float32)} for one in logits]
    noisy = {one["x"].tobytes(): one["x"] + more for one, more in zip(feeds, noise, strict=True)}
    plain = build("g (float[N,4] x) => (float[N,4] y) { y = Identity (x) }")
    squashed = build("g (float[N,4] x) => (float[N,4] y) { y = Sigmoid (x) }")
    wanted = 10 * np.log10((logits**2).sum() / (noise**2).sum())

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    as_is = measures.Measuring(plain, feeds, lambda feed: [feed["x"]])
    found = as_is.compare(lambda feed: [noisy[feed["x"].tobytes()]])
    assert found["worst part"] == found["worst part, logits"] == pytest.approx(wanted)
    behind = measures.Measuring(squashed, feeds, lambda feed: [sigmoid(feed["x"])])
    found = behind.compare(lambda feed: [sigmoid(noisy[feed["x"].tobytes()])])
    assert found["worst part, logits"] == pytest.approx(wanted, abs=1e-3)
    assert found["worst part"] != pytest.approx(wanted, abs=0.1)
    assert found["worst part, both"] == min(found["worst part"], found["worst part, logits"])


def case(measures: ModuleType) -> object:
    """Return the case of FILE."""
    return next(one for one in measures.CASES if one.file == FILE)


@pytest.mark.whole
def test_the_page_is_written(
    measures: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script measures every variant of a model, and the page has a row for each variant and measure."""
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["measures.py", str(folder), "--only", "ultraface", "--out", str(out)])
    measures.main()
    rows = [line.split(" | ") for line in out.read_text(encoding="utf-8").splitlines()]
    for name in measures.VARIANTS:
        (figures,) = [row for row in rows if row[0] == f"| {name}" and len(row) == 3]
        assert " (" in figures[2] or "refused" in figures[2], figures
    (chosen,) = [row for row in rows if len(row) == 12 and row[1] == "F1 to float"]
    assert chosen[3] == "12 + 4" and int(chosen[4]) >= 15
    assert {row[0].strip("| ") for row in rows if len(row) == 9} >= {"pooled", "worst part", "agreement"}


def test_ranks_are_spearmans(measures: ModuleType) -> None:
    """Equal to a published value, -29/165 (Wikipedia's example); equal values share a rank.

    Constant values and NaN have no correlation.
    """
    import measures_rank as ranks

    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert ranks.correlate(iq, hours) == pytest.approx(-29 / 165)
    assert ranks.rank([3, 1, 3, math.inf]).tolist() == [2.5, 1, 2.5, 4]
    assert math.isnan(ranks.correlate([1, 1], [1, 2]))
    assert math.isnan(ranks.correlate([1, math.nan], [1, 2]))


def test_what_a_choice_gains(measures: ModuleType) -> None:
    """The first variant by a measure is so many steps below the best, and has this share of the gain."""
    import measures_page
    import measures_rank as ranks

    scored = tuple(
        ranks.Scored(name, figure, {"seen": {"a": a}, "unseen": {"a": -a}})
        for name, figure, a in (("default", 7.5, 1.0), ("gptq", 7.3, 2.0), ("qronos", 7.1, 0.5))
    )
    made = ranks.Network("n", "perplexity (lower is better)", 0.1, 7.0, (3, 1), scored, {})
    assert ranks.choose(made, "seen", "a") == pytest.approx((2, 0.5))
    assert ranks.choose(made, "unseen", "a") == pytest.approx((0, 1))
    assert ranks.correlation(made, scored, "seen", "a") == pytest.approx(-0.5)
    assert measures_page.worse([(2.0, 0.5), (0.5, 1.0), None]) == "1 of 2"
    assert measures_page.captured([(2.0, 0.5), (0.5, math.nan), None]) == "0.50 (1)"
