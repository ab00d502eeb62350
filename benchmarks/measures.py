"""Which measure ranks the quantized forms of a network as its task does, on seen and unseen samples.

    python benchmarks/measures.py FOLDER [--only TEXT,TEXT] [--out benchmarks/results/measures.md]

FOLDER is the one of `real_models.py`. Every network is quantized in the same ways, without tuning and without
repair. A quarter of the calibration samples, by hash, gives neither ranges nor moments. The figures of the
tasks are of the data of the tasks. Measures that differ are also taken on samples of the task.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from measures_page import page
from measures_rank import SETS, TASK, TOOL, Network, Scored
from numpy.typing import NDArray
from real_cases import CASES, Case, Feed, Folder, Run, open_model, raised_to_float32
from variants import VARIANTS, quantize

import onnxfq
from onnxfq.data.digest import sample_digest
from onnxfq.data.inputs import samples
from onnxfq.data.model_inputs import input_specs
from onnxfq.graph.model import list_nodes
from onnxfq.graph.patterns.logits import judge_given
from onnxfq.graph.patterns.parts import OutputPart
from onnxfq.numerics.metrics import ErrorSums, ratio_db

MOST_SAMPLES = 64
"""Most calibration samples of a network, and most of its task, by least digest."""

LEAST_ODDS = 1e-7
"""Least probability, and least distance from 1, that logits are computed from; float32 has steps of it."""


class Task(NamedTuple):
    """The figure of a network that ranks variants.

    metric: place in the metrics of its `Case`. step: a difference that matters: half a point of a share, 0.05
    dB of PSNR, half a percent of a perplexity.
    """

    metric: int = 0
    step: float = 0.005


TASKS = {
    "s01_mnist_cnn/mnist_op8.onnx": Task(),
    "s02_resnet20_cifar10/resnet20_op13_bn.onnx": Task(),
    "s03_yolox_nano/yolox_nano.onnx": Task(1),
    "s04_ultraface/ultraface_rfb320_op9.onnx": Task(),
    "s05_ppocr_det_cls/ppocrv3_det_op12.onnx": Task(),
    "s05_ppocr_det_cls/ppocr_cls_op11.onnx": Task(),
    "s06_silero_vad/silero_vad_op16.onnx": Task(1),
    "s08_minilm/minilm_l6_fp16_op17.onnx": Task(),
    "s09_super_resolution/espcn_x3_op10.onnx": Task(step=0.05),
    "s10_basic_pitch/basic_pitch_op15.onnx": Task(1),
    "s11_stories260k/stories260k_ts_op17.onnx": Task(step=0.035),
}
"""Tasks by file; a model of float16 is raised to float32."""


def take(proto: onnx.ModelProto, feeds: Iterable[Feed]) -> list[Feed]:
    """Return the samples of least digest, in its order."""
    inputs = input_specs(proto)
    found = {sample_digest(one): one for feed in feeds for one in samples(feed, inputs)}
    return [found[digest] for digest in sorted(found)[:MOST_SAMPLES]]


def divide(ordered: Sequence[Feed]) -> tuple[Sequence[Feed], Sequence[Feed]]:
    """Return the seen and the unseen samples, at least one of each."""
    unseen = max(1, len(ordered) // 4)
    return ordered[unseen:], ordered[:unseen]


def log_odds(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logits of probabilities."""
    p = np.clip(probabilities.astype(np.float64), LEAST_ODDS, 1 - LEAST_ODDS)
    return np.log(p) - np.log1p(-p)


class Measuring:
    """The float model on some samples, with which variants are compared by every measure."""

    def __init__(self, proto: onnx.ModelProto, feeds: Sequence[Feed], run: Run) -> None:
        """Run the float model; `run` is its session."""
        self._judged = judge_given(proto)
        self._names = [value.name for value in proto.graph.output]
        self._pairs = [(feed, run(feed)) for feed in feeds]
        squashed = any(node.op_type in ("Sigmoid", "Softmax") for node in list_nodes(proto.graph))
        inside: dict[tuple[str, int], bool] = defaultdict(lambda: squashed)
        for _, outputs in self._pairs:
            for name, output in zip(self._names, outputs, strict=True):
                for place, part in enumerate(self._parts(name)):
                    values = part.of(output)
                    inside[name, place] &= bool(((values >= 0) & (values <= 1)).all())
        self._probabilities = {key for key, yes in inside.items() if yes}

    @property
    def tells_apart(self) -> bool:
        """Whether measures in dB differ: there are several outputs or parts, or probabilities."""
        return len(self._names) > 1 or len(self._parts(self._names[0])) > 1 or bool(self._probabilities)

    def _parts(self, name: str) -> Sequence[OutputPart]:
        """Return the parts of an output that decide; none of a state that is fed back."""
        if name not in self._judged.deciding:
            return ()
        return self._judged.parts.get(name) or [OutputPart(name, {})]

    def compare(self, run: Run) -> dict[str, float]:
        """Return the value of every measure for a variant; larger is better, NaN if it measures nothing."""
        whole, plain, odds = (defaultdict[Any, ErrorSums](ErrorSums) for _ in range(3))
        agreed: list[NDArray[np.bool_]] = []
        for feed, wanted in self._pairs:
            for name, want, have in zip(self._names, wanted, run(feed), strict=True):
                whole[name] += ErrorSums.from_arrays(want, have)
                agreed += self._decisions(name, want, have)
                for key, part in (((name, n), one) for n, one in enumerate(self._parts(name))):
                    pair = part.of(want), part.of(have)
                    plain[key] += ErrorSums.from_arrays(*pair)
                    if key in self._probabilities:
                        pair = log_odds(pair[0]), log_odds(pair[1])
                    odds[key] += ErrorSums.from_arrays(*pair)
        every = [sums.sqnr_db for sums in plain.values() if sums.signal > 0]
        whole_odds = [s.sqnr_db for (n, _), s in odds.items() if len(self._parts(n)) == 1 and s.signal > 0]
        return {
            "pooled": ratio_db(sum(s.signal for s in whole.values()), sum(s.noise for s in whole.values())),
            "worst output": min(whole[name].sqnr_db for name in whole if self._parts(name)),
            "worst part": min(every),
            "worst part, logits": min(sums.sqnr_db for sums in odds.values() if sums.signal > 0),
            TOOL: min(*every, *whole_odds, math.inf),
            "mean of parts": float(np.mean(every)),
            "agreement": float(np.mean(np.concatenate(agreed))) if agreed else math.nan,
        }

    def _decisions(self, name: str, want: NDArray[Any], have: NDArray[Any]) -> list[NDArray[np.bool_]]:
        """Return which decisions are the same: the first class of rows, or the side of 0.5."""
        classes = (want.ndim == 2 and want.shape[1] > 1) or name in self._judged.classes
        if classes and self._parts(name):
            return [(want.argmax(-1) == have.argmax(-1)).ravel()]
        return [
            ((part.of(want) > 0.5) == (part.of(have) > 0.5)).ravel()
            for place, part in enumerate(self._parts(name))
            if (name, place) in self._probabilities
        ]


def measure(path: Path, case: Case, task: Task, names: Iterable[str], work: Path) -> Network:
    """Return every measure and the figure of the task for variants of one model."""
    folder, model = Folder(path), path / case.file
    if case.raised:
        model = work / "raised.onnx"
        onnx.save(raised_to_float32(path / case.file), model)
    proto = onnx.load(model)
    seen, unseen = divide(take(proto, folder.feeds(case)))
    groups = dict(zip(SETS, (seen, unseen), strict=True))
    sets = {which: Measuring(proto, feeds, open_model(model)) for which, feeds in groups.items()}
    if sets["unseen"].tells_apart:
        sets[TASK] = Measuring(proto, take(proto, folder.task_feeds(case)), open_model(model))
    score = partial(figure, folder, case, task)
    scored: list[Scored] = []
    refused: dict[str, str] = {}
    for name in names:
        file = work / "variant.onnx"
        try:
            onnx.save(quantize(model, seen, VARIANTS[name]), file)
        except onnxfq.OnnxfqError as error:
            refused[name] = str(error)
            continue
        run = open_model(file, "ORT_ENABLE_BASIC")
        values = {which: one.compare(run) for which, one in sets.items()}
        scored.append(Scored(name, score({case.file: file}), values))
    return Network(
        case.name,
        case.metrics[task.metric],
        task.step,
        score({case.file: model}),
        tuple(map(len, groups.values())),
        tuple(scored),
        refused,
    )


def figure(folder: Folder, case: Case, task: Task, replaced: Mapping[str, Path]) -> float:
    """Return the figure of the task with some models replaced."""
    return folder.measure(case, dict(replaced))[task.metric]


def main() -> None:
    """Measure all networks, and write the page after each one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds one of these texts, by commas")
    parser.add_argument("--out", type=Path, help="file of the page; printed without it")
    arguments = parser.parse_args()
    found: list[Network] = []
    cases = {case.file: case for case in CASES}  # the raised one is the last of a file
    for file, task in TASKS.items():
        if any(text in file for text in arguments.only.split(",")):
            with tempfile.TemporaryDirectory() as work:
                path = arguments.folder.resolve()
                found.append(measure(path, cases[file], task, VARIANTS, Path(work)))
            if arguments.out:
                arguments.out.write_text(page(found), encoding="utf-8")
    if not arguments.out:
        print(page(found))


if __name__ == "__main__":
    main()
