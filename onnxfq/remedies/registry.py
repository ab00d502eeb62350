"""`REMEDIES`: what `quantize` tries for a loss, in this order; a new remedy is a file and a line here.

`finish` does what was asked for after them.
"""

from __future__ import annotations

from onnxfq.documents.trial import Trial
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge, Remedy
from onnxfq.remedies.calibrator_search import CALIBRATOR
from onnxfq.remedies.center import CENTER
from onnxfq.remedies.center_keys import KEYS
from onnxfq.remedies.correct_biases import BIASES
from onnxfq.remedies.equalize_search import EQUALIZE, SMOOTH
from onnxfq.remedies.mixed_precision import PROTECT, keep_target
from onnxfq.remedies.rotate import ROTATE
from onnxfq.remedies.rounding_search import ROUNDING
from onnxfq.remedies.sample_search import SAMPLES
from onnxfq.remedies.widen_activations import WIDEN
from onnxfq.remedies.widen_sums import WIDEN_SUMS

REMEDIES: tuple[Remedy, ...] = (
    SAMPLES,
    EQUALIZE,
    ROTATE,
    CALIBRATOR,
    CENTER,
    ROUNDING,
    KEYS,
    SMOOTH,
    WIDEN_SUMS,
    WIDEN,
    PROTECT,
)
"""The first six cost nothing at run time, keys a Sub, smoothing no layer; the rest costs time."""


def finish(judge: Judge, candidate: Candidate) -> tuple[Candidate, list[Trial]]:
    """Return the candidate that keeps what was promised, with corrected biases, and both trials."""
    candidate, promised = judge.keep(candidate, keep_target)
    candidate, corrected = judge.better(candidate, BIASES)
    return candidate, [promised, corrected]
