"""Metrics by name agree with pycocotools, jiwer and torch, and refuse what they cannot read."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import onnx
import pytest
import torch
from builders import build, weights
from hypothesis import given
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import onnxfq
from onnxfq.cli.main import main
from onnxfq.data.labels import read_truth
from onnxfq.errors import DataError
from onnxfq.metrics import METRICS, Mean, find_metric, perplexity, read_value
from onnxfq.metrics.texts import count_edits

SIZE = 64.0


def draw_boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return corners of boxes inside an image."""
    low = rng.uniform(0, SIZE / 2, (count, 2))
    return np.concatenate([low, low + rng.uniform(4, SIZE / 2, (count, 2))], 1)


def draw_scene(seed: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return annotations of some images, crowds among them, and boxes [boxes, 6] near them and elsewhere.

    The images are in the order of their numbers, by which pycocotools takes boxes of equal scores.
    """
    rng = np.random.default_rng(seed)
    numbers = [3, 7, 20]
    images = [{"id": int(one), "width": 64, "height": 64} for one in sorted(rng.permutation(50)[:6])]
    annotations, found = [], []
    for image in images:
        corners = draw_boxes(rng, int(rng.integers(0, 7)))
        classes = rng.integers(0, 3, len(corners))
        for box, number in zip(corners, classes, strict=True):
            width, height = box[2:] - box[:2]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image["id"],
                    "category_id": numbers[number],
                    "bbox": [*map(float, box[:2]), float(width), float(height)],
                    "area": float(width * height),
                    "iscrowd": int(rng.random() < 0.15),
                }
            )
        moved = np.concatenate([corners + rng.normal(0, 3, corners.shape), draw_boxes(rng, 4)])
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        scores = rng.integers(1, 20, len(moved)) / 20  # some are equal
        names = np.concatenate([classes, rng.integers(0, 3, 4)])
        found.append(np.column_stack([moved, scores, names]))
    categories = [{"id": number, "name": str(number)} for number in numbers]
    return {"images": images, "annotations": annotations, "categories": categories}, found


def score_by_coco(annotations: dict[str, Any], found: list[np.ndarray]) -> float:
    """Return the AP that pycocotools computes."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = annotations
        truth.createIndex()
        results = [
            {
                "image_id": image["id"],
                "category_id": annotations["categories"][int(row[5])]["id"],
                "bbox": [*row[:2], *(row[2:4] - row[:2])],
                "score": row[4],
            }
            for image, rows in zip(annotations["images"], found, strict=True)
            for row in rows
        ]
        scored = COCOeval(truth, truth.loadRes(results), "bbox")
        scored.params.areaRng, scored.params.areaRngLbl = [[0, 1e10]], ["all"]
        scored.evaluate()
        scored.accumulate()
    precision = scored.eval["precision"][..., 0, -1]
    return float(precision[precision > -1].mean())


@pytest.mark.parametrize("seed", range(12))
def test_map_is_that_of_pycocotools(seed: int, tmp_path: Path) -> None:
    """Equal scores, crowds, images without boxes and classes without annotations included."""
    annotations, found = draw_scene(seed)
    (tmp_path / "truth.json").write_text(json.dumps(annotations))
    labels = read_truth(tmp_path / "truth.json", "map")
    wanted = score_by_coco(annotations, found)
    # Sums of the same numbers in another order.
    assert find_metric("map")(({"boxes": one[None]} for one in found), labels) == pytest.approx(
        wanted, abs=1e-9
    )
    apart = [
        {"a_boxes": one[None, :, :4], "scores": one[None, :, 4], "labels": one[None, :, 5].astype(np.int64)}
        for one in found
    ]
    assert find_metric("map")(iter(apart), labels) == pytest.approx(wanted, abs=1e-9)
    single = ({name: array[0] for name, array in one.items()} for one in apart)
    assert find_metric("map")(single, labels) == pytest.approx(wanted, abs=1e-9)


def test_f1_counts_each_annotation_once(tmp_path: Path) -> None:
    """The annotations themselves have 1; twice each has precision of half; none has 0."""
    annotations, _ = draw_scene(3)
    annotations["annotations"] = [{**one, "iscrowd": 0} for one in annotations["annotations"]]
    (tmp_path / "truth.json").write_text(json.dumps(annotations))
    labels = read_truth(tmp_path / "truth.json", "f1")
    exact = [np.column_stack([one.corners, one.scores, one.classes]) for one in labels]
    f1 = find_metric("f1")
    assert f1(({"y": one[None]} for one in exact), labels) == 1
    doubled = ({"y": np.concatenate([one, one])[None]} for one in exact)
    assert f1(doubled, labels) == pytest.approx(2 / 3)
    assert f1(({"y": one[None] * [1, 1, 1, 1, 0.2, 1]} for one in exact), labels) == 0


@given(made=st.text("ab c", max_size=12), wanted=st.text("ab c", min_size=1, max_size=12))
def test_edits_are_those_of_jiwer(made: str, wanted: str) -> None:
    """Characters and words are counted alike."""
    assert count_edits(made, wanted) == round(jiwer.cer(wanted, made) * len(wanted.strip() or wanted)) or (
        made != made.strip() or wanted != wanted.strip()  # jiwer leaves out blanks at the ends
    )
    if wanted.split():
        assert count_edits(made.split(), wanted.split()) == round(
            jiwer.wer(wanted, made) * len(wanted.split())
        )


@pytest.mark.parametrize("blank", ["first", "last", "unnamed"])
def test_error_rates_read_greedily(blank: str, tmp_path: Path) -> None:
    """Repeats are one symbol unless a blank is between; rates are jiwer's."""
    symbols = [*"abcdehlor ", "w"]
    lines = {"first": ["", *symbols], "last": [*symbols, ""], "unnamed": symbols}[blank]
    (tmp_path / "alphabet.txt").write_text("\n".join(lines) + ("\n" if blank == "last" else ""))
    full = symbols if "" in lines else symbols
    full = lines if "" in lines else ["", *symbols]
    texts, paths = ["hello world", "bad"], ["hheel_llo  worr_d", "ba_dd"]
    outputs = []
    for path in paths:
        places = [full.index("" if letter == "_" else letter) for letter in path]
        outputs.append({"y": np.eye(len(full), dtype=np.float32)[places][None]})
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    for name, rate in (("wer", jiwer.wer), ("cer", jiwer.cer)):
        metric = f"{name}:{tmp_path / 'alphabet.txt'}"
        labels = read_truth(tmp_path / "texts.txt", metric)
        assert find_metric(metric)(iter(outputs), labels) == pytest.approx(rate(texts, ["hello word", "bad"]))


def test_classes_and_masks() -> None:
    """Top-1 and top-5 are torch's; the mean overlap follows from the confusion matrix."""
    rng = np.random.default_rng(5)
    scores, labels = rng.normal(size=(40, 9)).astype(np.float32), rng.integers(0, 9, 40)
    for name, count in (("top1", 1), ("top5", 5)):
        best = torch.topk(torch.from_numpy(scores), count).indices
        wanted = 100 * (best == torch.from_numpy(labels)[:, None]).any(1).double().mean().item()
        assert find_metric(name)(({"y": row[None]} for row in scores), labels) == pytest.approx(wanted)
    maps, masks = rng.normal(size=(3, 4, 5, 6)), rng.integers(0, 3, (3, 5, 6))
    masks[0, 0] = 255
    found, counted = maps.argmax(1), masks != 255
    overlaps = []
    for number in range(4):
        both = ((found == number) & (masks == number) & counted).sum()
        either = (((found == number) | (masks == number)) & counted).sum()
        overlaps += [both / either] if either else []
    assert find_metric("miou")(({"y": one[None]} for one in maps), masks) == pytest.approx(np.mean(overlaps))


def test_embeddings() -> None:
    """Cosines are torch's, and neighbours the nearest of rows of length 1."""
    rng = np.random.default_rng(6)
    wanted = rng.normal(size=(20, 8)).astype(np.float32)
    made = wanted + 0.3 * rng.normal(size=(20, 8)).astype(np.float32)
    outputs = [{"y": row[None]} for row in made]
    cosine = torch.cosine_similarity(
        torch.from_numpy(made).double(), torch.from_numpy(wanted).double()
    ).mean()
    assert find_metric("cosine")(iter(outputs), wanted) == pytest.approx(cosine.item())
    unit = [torch.nn.functional.normalize(torch.from_numpy(one).double()) for one in (made, wanted)]
    nearest = [(torch.cdist(one, one) + 9 * torch.eye(20)).argmin(1) for one in unit]
    assert find_metric("neighbours")(iter(outputs), wanted) == pytest.approx(
        (nearest[0] == nearest[1]).double().mean()
    )


def test_intervals_of_means() -> None:
    """Rows of one length have Student's interval of pairs by a printed quantile; others a jackknife's."""
    rng = np.random.default_rng(3)
    counts, known = rng.integers(20, 200, 60), rng.normal(2.0, 0.3, 60)
    dearer = known + rng.normal(0.1, 0.05, 60)
    reference, candidate = (
        Mean.of(zip(7 * one, np.full(60, 7), strict=True), math.exp) for one in (known, dearer)
    )
    assert float(candidate) == pytest.approx(math.exp(dearer.mean()))
    reach = 1.671 * (dearer - known).std(ddof=1) / math.sqrt(60)  # 59 degrees, 95%
    ends = np.exp(dearer.mean() + np.array([-reach, reach]))
    assert candidate.interval(reference) == pytest.approx(ends, rel=1e-4)  # the quantile has four digits
    reference, candidate = (Mean.of(zip(one * counts, counts, strict=True)) for one in (known, dearer))
    more = (dearer - known) * counts
    left_out = (more.sum() - more) / (counts.sum() - counts)
    error = math.sqrt(59 * np.var(left_out))
    low, high = candidate.interval(reference)
    assert high - low == pytest.approx(2 * 1.671 * error, rel=0.05)  # a jackknife is equal to first order
    assert candidate.interval(candidate) is None and Mean.of([(1, 2)]).interval(Mean.of([(2, 2)])) is None
    assert candidate.interval(Mean.of([(1, 2)] * 60)) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of 30 samples with its labels, as files."""
    made = tmp_path_factory.mktemp("metrics")
    proto = build("g (float[N,8] x) => (float[N,6] y) { y = MatMul (x, w) }", {"w": weights(8, 6)})
    onnx.save(proto, made / "m.onnx")
    x = np.random.default_rng(1).normal(size=(30, 8)).astype(np.float32)
    np.savez(made / "x.npz", x=x)
    np.save(made / "labels.npy", (x @ onnx.numpy_helper.to_array(proto.graph.initializer[0])).argmax(1))
    np.save(made / "embeddings.npy", x @ onnx.numpy_helper.to_array(proto.graph.initializer[0]))
    return made


@pytest.mark.parametrize(
    ("metric", "labels", "shown"),
    [
        ("top1", "labels.npy", "100"),
        ("top5", "labels.npy", "100"),
        ("cosine", "embeddings.npy", "1"),
        ("neighbours", "embeddings.npy", "1"),
    ],
)
def test_commands_take_names(
    folder: Path, capfd: pytest.CaptureFixture[str], metric: str, labels: str, shown: str
) -> None:
    """`quantize` promises, `evaluate` measures, `sensitivity` ranks and `diagnose` repairs by a name."""
    given = [str(folder / "m.onnx"), "--data", str(folder / "x.npz")]
    task = ["--metric", metric, "--labels", str(folder / labels)]
    assert main(["quantize", *given, "-o", str(folder / "q.onnx"), *task, "--max-drop", "20"]) == 0
    said = capfd.readouterr().out
    name = "top-1" if metric == "top1" else metric
    assert f"promised   {name}: float {shown}" in said and " of 20 allowed, on 30 samples" in said
    assert main(["evaluate", given[0], str(folder / "q.onnx"), *given[1:], *task]) == 0
    assert metric in capfd.readouterr().out
    assert main(["sensitivity", *given, *task]) == 0
    assert main(["diagnose", str(folder / "q.onnx"), *given[1:], *task]) == 0


@pytest.mark.parametrize(
    ("metric", "labels", "words"),
    [
        ("top1", None, "metric top1 needs labels, the class of each row; give them"),
        ("map", None, "metric map needs labels, annotations as COCO JSON; give them"),
        ("map", "labels.npy", "cannot read"),
        ("map", "absent.json", "no such file"),
        ("miou", "labels.npy", "the metric needs an output of class scores [rows, classes, height, width]"),
        ("cosine", "labels.npy", "labels must be embeddings of a reference"),
        ("wer:absent.txt", "labels.npy", "cannot read the alphabet absent.txt"),
        (
            "accuracy",
            "labels.npy",
            "or one of top1, top5, map, f1, miou, cosine, neighbours, perplexity, wer:",
        ),
    ],
)
def test_what_cannot_be_measured(
    folder: Path, capfd: pytest.CaptureFixture[str], metric: str, labels: str | None, words: str
) -> None:
    """Each is one line, before or at the first sample."""
    task = ["--metric", metric, *([] if labels is None else ["--labels", str(folder / labels)])]
    line = ["evaluate", str(folder / "m.onnx"), str(folder / "m.onnx"), "--data", str(folder / "x.npz")]
    assert main([*line, *task]) == 1
    said = capfd.readouterr().err
    assert words in said and said.count("\n") == 1, said


def test_wrong_annotations(tmp_path: Path) -> None:
    """Files of other forms are one line that names the field."""
    good, _ = draw_scene(0)
    for change, words in (
        ({"images": []}, "images"),
        ({"categories": [{"id": 99}]}, "annotates category"),
        ({"annotations": [{"image_id": 1, "category_id": 3, "bbox": [0, 0, 1]}]}, "bbox"),
        ({"annotations": [{"image_id": 1, "category_id": 3, "bbox": [0, 0, 1, "1e999"]}]}, "bbox"),
    ):
        (tmp_path / "truth.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(DataError, match=words):
            read_truth(tmp_path / "truth.json", "map")


def test_every_name_has_a_test_here() -> None:
    """A new name comes with an authority."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in METRICS if name != "perplexity")
    assert onnxfq.metrics.METRICS is METRICS


def test_a_perplexity_beyond_floats_is_one_line() -> None:
    """A model that is sure of wrong tokens has an infinite one, which is refused by name."""
    logits = np.zeros((1, 4, 5), np.float32)
    logits[..., 0] = 5e3
    found = perplexity(iter([{"logits": logits}]), [{"input_ids": np.array([[1, 2, 3, 4]])}])
    with pytest.raises(DataError, match="^perplexity returned .*; return a finite number$"):
        read_value(found, "perplexity")
