"""Samples and expected outputs as Polygraphy reads them: JSON with arrays as base64 of their .npy bytes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

RUNNER = "onnxruntime"
"""What the results are called: who computed them."""


def inputs_json(feeds: Iterable[Arrays]) -> str:
    """Return what `polygraphy run --load-inputs` takes: a list of feeds."""
    return json.dumps([{name: _array(array) for name, array in feed.items()} for feed in feeds])


def outputs_json(results: Iterable[Arrays]) -> str:
    """Return what `polygraphy run --load-outputs` takes: results of one runner, in the order of the feeds."""
    iterations = [
        {
            "outputs": {
                name: {"values": _array(array), "polygraphy_class": "LazyArray"}
                for name, array in result.items()
            },
            "runtime": 0.0,
            "runner_name": RUNNER,
            "polygraphy_class": "IterationResult",
        }
        for result in results
    ]
    return json.dumps({"lst": [[RUNNER, iterations]], "polygraphy_class": "RunResults"})


def _array(array: NDArray[Any]) -> dict[str, str]:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=False)
    return {"array": base64.b64encode(held.getvalue()).decode(), "polygraphy_class": "ndarray"}
