"""Runs of the float model that inputs of layers are read from."""

from __future__ import annotations

import weakref
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from builders import build, weights
from onnx.reference import ReferenceEvaluator

import onnxfq
from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.calibration.statistics.kind import InputKey
from onnxfq.data import Feed
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.runtime.session import Session

pytestmark = pytest.mark.sample

PROTO = build(
    "g (float[2,8] x) => (float[2,8] y) { a = MatMul (x, w) b = Relu (a) y = MatMul (b, w) }",
    {"w": weights(8, 8)},
)
KEYS: list[InputKey] = [(name, InputView("MatMul", -1)) for name in ("x", "b")]


def feeds() -> list[Feed]:
    """Return four samples."""
    return [{"x": np.full((2, 8), number, np.float32)} for number in range(4)]


@pytest.mark.parametrize("threads", [1, 2])
def test_inputs_are_read_where_the_model_runs(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers get the reference's values of each feed, and no input outlives its run."""
    made: list[weakref.ref[Any]] = []
    run = Session.run

    def watched(*given: Any) -> list[Any]:
        found = run(*given)
        made.extend(map(weakref.ref, found))
        return found

    monkeypatch.setattr(Session, "run", watched)
    readers = {key: lambda results, number: (number, results[0].copy()) for key in KEYS}
    with closing(FloatRuns(onnxfq.load(PROTO), ["x", "b"], threads, 1 << 30)) as runs:
        read = runs.read(feeds(), readers, first=7)
        next(read)
        assert runs._runs._pool is not None
        runs._runs._pool.shutdown(wait=True)
        assert len(made) >= 4 and not any(one() is not None for one in made)
        runs.close()
        for number, (feed, (found, _)) in enumerate(zip(feeds(), runs.read(feeds(), readers), strict=True)):
            wanted = ReferenceEvaluator(PROTO).run(None, feed, intermediate=True)
            for key in KEYS:
                assert found[key][0] == number
                np.testing.assert_allclose(found[key][1], wanted[key[0]], rtol=1e-6)
