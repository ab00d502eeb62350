"""Polygraphy JSON of samples and outputs: arrays as base64 of their .npy bytes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.support.arrays import read_npy
from onnxfq.support.reading import read_text
from onnxfq.support.records import read_json

Arrays = Mapping[str, NDArray[Any]]

RUNNER = "onnxruntime"
"""Name of the runtime that computed the results."""

_MOST = 1 << 30


def inputs_json(feeds: Iterable[Arrays]) -> str:
    """Return the file for `polygraphy run --load-inputs`: a list of feeds."""
    return json.dumps([{name: _array(array) for name, array in feed.items()} for feed in feeds])


def outputs_json(results: Iterable[Arrays]) -> str:
    """Return the file for `polygraphy run --load-outputs`: results of one runner, in feed order."""
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


def read_results(path: Path) -> list[dict[str, NDArray[Any]]]:
    """Return the results that `polygraphy run --save-outputs` wrote for its first runner, in feed order.

    Raises DataError for any other file.
    """
    try:
        _, iterations = read_json(read_text(path, _MOST))["lst"][0]
        return [{name: _read(held["values"]) for name, held in run["outputs"].items()} for run in iterations]
    except OSError as fault:
        raise DataError(f"cannot read {path}: {fault.strerror}; give the file of --save-outputs") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as fault:
        raise DataError(
            f"{path} does not hold Polygraphy results ({type(fault).__name__}); give the file of "
            "`polygraphy run --save-outputs`"
        ) from None


def _read(held: Mapping[str, Any]) -> NDArray[Any]:
    content = base64.b64decode(held["array"])
    return read_npy(io.BytesIO(content), len(content))


def _array(array: NDArray[Any]) -> dict[str, str]:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=False)
    return {"array": base64.b64encode(held.getvalue()).decode(), "polygraphy_class": "ndarray"}
