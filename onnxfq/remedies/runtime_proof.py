"""`open_in_runtime`: a candidate in the runtime of its target, where promises are proven."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.errors import RuntimeLibraryError
from onnxfq.execution.toggled_segments import State
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.judging.candidate import Candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.written_proof import Written
from onnxfq.remedies.forms import build_forms
from onnxfq.support.clock import Clock
from onnxfq.targets.target import Opener, Values, target_by_name

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RuntimeModel:
    """A quantized model in the runtime of its target, for metrics in place of switched quantizers.

    Attributes:
        target: name of the target.
        proto: the model with Q/DQ pairs.
        opener: of the target.
        compute: returns the outputs of a feed.
    """

    target: str
    proto: onnx.ModelProto
    opener: Opener
    compute: Callable[[Feed], Values]

    def run(self, feeds: Iterable[Feed], state: State) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the outputs for each feed; its quantizers have one state only."""
        return map(dict, map(self.compute, feeds))

    def score(self, judge: Judge, feeds: Sequence[Feed]) -> float:
        """Return the SQNR in dB that a promise may count on."""
        session, name = judge.start.session, self.target
        written = Written(
            self.proto, self.proto, session.compared, feeds, session.judged, judge.options.threads
        )
        return written.score({name: self.proto}, {name: self.opener}, feeds)[name].lasting_db


def open_in_runtime(candidate: Candidate, judge: Judge) -> RuntimeModel | None:
    """Return the written form of `candidate` in the runtime of its target; None if that is ONNX Runtime.

    Without the runtime on this machine a warning says that the promise is measured in ONNX Runtime.
    """
    target = target_by_name(candidate.recipe.target)
    if target.values is None:
        return None
    with weights_stored_in(candidate.session.scratch):
        proto = build_forms(candidate, judge.options, Clock()).qdq
        try:
            compute = target.values(proto, judge.options.threads)
        except RuntimeLibraryError as error:
            log.warning("the promise is measured in ONNX Runtime: %s", error)
            return None
    return RuntimeModel(target.name, proto, target.values, compute)
