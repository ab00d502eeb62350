"""Inserting observers: golden graph, and results of the operator for every activation."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
import pytest
from builders import BUILDERS, graph_text, planned, shared_weight, stage

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.graph.io.load import load
from onnxfq.passes.observe.insert_observers import OBSERVE_OUTPUTS, observe_output, with_observers
from onnxfq.runtime.session import Session


def test_golden_graph() -> None:
    """Each activation is observed; what only the model's own outputs needed is gone."""
    model = load(shared_weight())
    observed = with_observers(model, planned(shared_weight()))
    onnx.checker.check_model(observed.proto, full_check=True)
    seen = {t: ", ".join(observe_output(t, name) for name in OBSERVE_OUTPUTS) for t in "xr"}
    assert graph_text(observed.proto) == [
        f"[x/observe] {seen['x']} = Observe (x)",
        "[first] h = MatMul (x, w)",
        "[relu] r = Relu (h)",
        f"[r/observe] {seen['r']} = Observe (r)",
    ]
    assert [v.name for v in observed.proto.graph.output] == [
        *seen["x"].split(", "),
        *seen["r"].split(", "),
    ]


@pytest.mark.parametrize("name", BUILDERS)
def test_statistics_are_those_of_the_tensor(name: str) -> None:
    """The statistics of the observed model equal NumPy's statistics of the tensor of the float model."""
    staged = stage(BUILDERS[name]())
    tensors = [p.tensor for p in staged.plan.activations]
    probe = deepcopy(staged.model.proto)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.helper.make_empty_tensor_value_info(t) for t in tensors)
    # No optimisation on either side would change which kernels run; both sessions are as onnxfq makes them.
    values = dict(zip(tensors, Session(probe, 1).run(staged.feed), strict=True))
    for tensor in tensors:
        want, got = TensorStatistics.from_array(values[tensor]), staged.statistics[tensor]
        assert (got.rmin, got.rmax, got.elements, got.zeros) == (
            want.rmin,
            want.rmax,
            want.elements,
            want.zeros,
        )
        np.testing.assert_array_equal(got.bins, want.bins)
        np.testing.assert_array_equal(got.counts, want.counts)
