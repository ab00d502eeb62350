"""`open_in_runtime`: a candidate in the runtime of its target, where promised metrics are proven."""

from __future__ import annotations

import logging

from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.task_metric import Run
from onnxfq.remedies.forms import Models
from onnxfq.support.clock import Clock
from onnxfq.targets.target import target_by_name

log = logging.getLogger(__name__)


def name_runtime(candidate: Candidate) -> str:
    """Return ` in openvino`; empty, with a warning, without the runtime of the target on this machine."""
    target = target_by_name(candidate.recipe.target)
    try:
        target.release()
    except RuntimeLibraryError as error:
        log.warning("the promise is measured in ONNX Runtime: %s", error)
        return ""
    return "" if target.values is None else f" in {target.name}"


def open_in_runtime(candidate: Candidate, judge: Judge) -> Run | None:
    """Return the written form of `candidate` in the runtime of its target; None where nothing here has it."""
    target = target_by_name(candidate.recipe.target)
    if target.values is None:
        return None
    with weights_stored_in(candidate.session.scratch):
        proto = Models(candidate, judge.options, Clock()).qdq
        try:
            compute = target.values(proto, judge.options.threads)
        except RuntimeLibraryError:
            return None
    return lambda feeds: map(dict, map(compute, feeds))
