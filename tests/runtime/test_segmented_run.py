"""A model run in segments gives the outputs of the whole, to the bit."""

from __future__ import annotations

import onnx
import pytest
from builders import BUILDERS, feed_for, qdq_of, stage

from onnxfq.graph.signature import output_names
from onnxfq.runtime.session import Session
from onnxfq.stages import segmented_run


@pytest.mark.parametrize("model", ["two_branch", "downsample", "if_body", "attention", "inner_output"])
@pytest.mark.parametrize("form", ["float", "int8"])
def test_segments_give_the_bits_of_the_whole(model: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Onnxruntime without optimisation computes node by node, so that a cut changes nothing."""
    proto: onnx.ModelProto = BUILDERS[model]()
    staged = stage(proto)
    proto = staged.model.proto if form == "float" else qdq_of(staged)
    opened: list[onnx.ModelProto] = []

    def open_session(part: onnx.ModelProto) -> Session:
        opened.append(part)
        return Session(part, threads=1, exact=True)

    feed = feed_for(proto)
    whole = dict(zip(output_names(proto), Session(proto, 1, exact=True).run(feed), strict=True))
    monkeypatch.setattr(segmented_run, "MOST_NODES", max(2, len(proto.graph.node) // 3))
    found = segmented_run.run_in_segments(proto, feed, open_session)
    assert list(found) == list(whole)
    assert all(found[name].tobytes() == whole[name].tobytes() for name in whole)
    assert len(opened) > 1 or len(proto.graph.node) < 4
    assert sum(len(part.graph.node) for part in opened) == len(proto.graph.node)
