"""A model run in segments gives the outputs of the whole, to the bit."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from builders import BUILDERS, feed_for, qdq_of, stage

from onnxfq.graph.signature import output_names
from onnxfq.passes.insert_fake_quantize import ENABLED_INPUT, switch_activations
from onnxfq.runtime import segmented_session
from onnxfq.runtime.segmented_session import SegmentedSession, open_in_segments
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_fake_quantize
from onnxfq.stages.score import score_models

MODELS = ["two_branch", "downsample", "if_body", "attention", "inner_output"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", ["given", "float", "int8"])
@pytest.mark.parametrize("kept", [True, False])
def test_segments_give_the_bits_of_the_whole(
    model: str, form: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Onnxruntime without optimisation computes node by node, so that a cut changes nothing."""
    proto: onnx.ModelProto = BUILDERS[model]()
    if form != "given":
        staged = stage(proto)
        proto = staged.model.proto if form == "float" else qdq_of(staged)
    opened: list[onnx.ModelProto] = []

    def open_session(part: onnx.ModelProto) -> Session:
        opened.append(part)
        return Session(part, threads=1, exact=True)

    feed, names = feed_for(proto), output_names(proto)
    whole = Session(proto, 1, exact=True).run(feed)
    monkeypatch.setattr(segmented_session, "MOST_NODES", max(2, len(proto.graph.node) // 3))
    session = open_in_segments(proto, open_session, names, kept=kept)
    for _ in range(2):
        found = session.run(feed)
        assert [array.tobytes() for array in found] == [array.tobytes() for array in whole]
    assert (len(opened) > 1) == (len(proto.graph.node) >= 4)
    runs = 2 if len(opened) > 1 and not kept else 1
    assert sum(len(part.graph.node) for part in opened) == runs * len(proto.graph.node)


def test_a_switch_reaches_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input with a default may be given or not."""
    staged = stage(BUILDERS["attention"]())
    proto = switch_activations(insert_fake_quantize(staged.model, staged.plan, staged.encodings))
    assert proto is not None
    feed, names = feed_for(BUILDERS["attention"]()), output_names(proto)
    open_session = partial(Session, threads=1, exact=True)
    whole = open_session(proto)
    monkeypatch.setattr(segmented_session, "MOST_NODES", len(proto.graph.node) // 3)
    session = open_in_segments(proto, open_session, names, given=[ENABLED_INPUT])
    assert isinstance(session, SegmentedSession)
    for given in (feed, feed | {ENABLED_INPUT: np.asarray(False)}):
        assert [a.tobytes() for a in session.run(given)] == [a.tobytes() for a in whole.run(given)]


def test_models_are_compared_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner tensors are outputs of segments; the scores are the same as for whole models."""
    staged = stage(BUILDERS["attention"]())
    reference, qdq = staged.model.proto, qdq_of(staged)
    tensors = [node.output[0] for node in reference.graph.node if f"{node.output[0]}/dq" in str(qdq.graph)]
    feeds = [feed_for(reference, seed) for seed in range(3)]
    score = partial(score_models, reference, {"Q/DQ": qdq}, feeds, tensors=tensors, threads=1, device="cpu")
    whole = score()
    opened = []
    monkeypatch.setattr(segmented_session, "MOST_NODES", 4)
    build = SegmentedSession.__init__
    monkeypatch.setattr(SegmentedSession, "__init__", lambda *a, **k: opened.append(build(*a, **k)))
    found = score()
    assert len(opened) == 2 and tensors
    for one, other in zip(found.candidates[0].outputs, whole.candidates[0].outputs, strict=True):
        # The float model is optimised segment by segment: its sums may differ in the last bit.
        assert one.output == other.output and one.sqnr_db == pytest.approx(other.sqnr_db, abs=1e-3)
