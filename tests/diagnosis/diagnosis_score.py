"""Score of `diagnose` on planted faults and sound files; as a script it prints a row for each file.

`python tests/diagnosis/diagnosis_score.py [WORD]`: all files, or those whose name has the word. A number
is the seed of a round of other files, which `unseen_cases.py` draws.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))

from builders import Arrays
from diagnosed_networks import network
from planted_cases import CASES, SOUND, Case
from planted_faults import Planted

from onnxfq import Diagnosis, diagnose
from onnxfq.judging.judge import LEAST_GAIN_DB

SAMPLES = 24
"""Samples of a diagnosis; those that measure the repair are as many others."""


@dataclass(frozen=True)
class Score:
    """Result of one file.

    Attributes:
        ranks: of each planted fault among the causes, from 0; 99 for one that is not named.
        lost_db: the SQNR of the sound file over that of the repaired one; nan where there is no repair.
        causes: as they were named.
    """

    name: str
    ranks: tuple[int, ...]
    lost_db: float
    causes: tuple[str, ...]

    @property
    def is_first(self) -> bool:
        """Whether a planted fault is the first cause."""
        return min(self.ranks) == 0 or self.costs_nothing

    @property
    def is_named(self) -> bool:
        """Whether all planted faults are among the first three causes."""
        return max(self.ranks) < 3 or self.costs_nothing

    @property
    def costs_nothing(self) -> bool:
        """Whether no cause is named and the file is as good as the sound one: a cause gains more."""
        return not self.causes and self.lost_db < LEAST_GAIN_DB

    @property
    def is_restored(self) -> bool:
        """Whether the repaired file is within 1 dB of the sound one."""
        return self.lost_db <= 1.0


def run(proto: onnx.ModelProto, feeds: Iterable[Arrays]) -> list[np.ndarray]:
    """Return each output over all feeds, as ONNX Runtime gives it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    runs = [session.run(None, feed) for feed in feeds]
    return [np.stack(arrays).astype(np.float64) for arrays in zip(*runs, strict=True)]


def sqnr_db(reference: onnx.ModelProto, candidate: onnx.ModelProto, feeds: list[Arrays]) -> float:
    """Return the SQNR of the worst output."""
    pairs = zip(run(reference, feeds), run(candidate, feeds), strict=True)
    ratios = [np.sum(a**2) / max(np.sum((a - b) ** 2), 1e-30) for a, b in pairs]
    return 10 * math.log10(min(ratios))


def rank(planted: Planted, diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return the place of each planted fault among the causes."""
    return tuple(
        next(
            (
                at
                for at, cause in enumerate(diagnosis.causes)
                if cause.kind in kinds and (not places or {cause.tensor, cause.node} & places)
            ),
            99,
        )
        for kinds, places in planted.answers
    )


def score(name: str, case: Case, folder: Path | None = None, *, with_float: bool = True) -> Score:
    """Diagnose one file; with a folder it is also repaired.

    Args:
        name: of the case.
        case: the file.
        folder: for the repaired file.
        with_float: whether the float model is given.
    """
    planted = case.plant()
    feeds = network(case.net).feeds(SAMPLES, seed=2)
    output = None if folder is None else folder / f"{name}.onnx"
    diagnosis = diagnose(
        planted.proto,
        reference=planted.shown if with_float else None,
        data=feeds,
        target=planted.target,
        output=output,
    )
    lost = math.nan
    if output is not None and planted.has_repair:
        unseen = network(case.net).feeds(SAMPLES, seed=3)
        repaired = onnx.load(output) if output.exists() else planted.proto
        lost = sqnr_db(planted.shown, case.plant_nothing(), unseen) - sqnr_db(planted.shown, repaired, unseen)
    causes = tuple(f"{cause.kind} {cause.tensor or cause.node}" for cause in diagnosis.causes)
    return Score(name, rank(planted, diagnosis), lost, causes)


def main(word: str, folder: Path) -> None:
    """Print a row for each file, and the sums."""
    faulty, sound = CASES, SOUND
    if word.isdecimal():
        from unseen_cases import draw_round, sound_cases

        faulty, sound, word = draw_round(int(word)), sound_cases(), ""
    scores: dict[bool, list[Score]] = {}
    for with_float in (True, False):
        scores[with_float] = []
        for name, case in {**faulty, **{f"sound {name}": case for name, case in sound.items()}}.items():
            if word in name:
                row = score(
                    name, case, folder if with_float and name in faulty else None, with_float=with_float
                )
                scores[with_float].append(row)
                print(f"{name:34} {row.ranks!s:10} {row.lost_db:6.1f} {row.causes[:4]}", flush=True)
    for with_float, rows in scores.items():
        planted = [row for row in rows if row.name in faulty]
        accused = [row for row in rows if row.name not in faulty and row.causes]
        print(
            f"{'with' if with_float else 'without'} the float model, of {len(planted)}: "
            f"first {sum(r.is_first for r in planted)}, "
            f"in the first three {sum(r.is_named for r in planted)}, "
            f"restored {sum(r.is_restored for r in planted)}; "
            f"sound files accused: {len(accused)} of {len(rows) - len(planted)}"
        )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        main("".join(sys.argv[1:2]), Path(scratch))
