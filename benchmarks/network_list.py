"""Networks for counts of promised operators in each runtime.

Seven come from `models/networks` and have random weights. Nine come from the `onnx` package, and the rest
from a folder of trained networks, see `real_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from real_cases import CASES, Folder
from shapes import NETWORKS

import onnxfq
from onnxfq.data.model_inputs import input_specs

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Networks of the `onnx` package; their weights are constants of one number."""

_BATCH = {"vit_b16": 1}


class ListedNetwork(NamedTuple):
    """A network with data to calibrate it."""

    name: str
    model: onnx.ModelProto
    feeds: list[dict[str, Any]]


def list_networks(folder: Path | None) -> Iterator[ListedNetwork]:
    """Yield all networks; without `folder` none that is trained."""
    for name, build in NETWORKS.items():
        proto = build(1)
        yield ListedNetwork(name, proto, [draw_feed(proto)])
    for path in sorted(LIGHT.glob("*.onnx")):
        proto = onnx.load(path)
        yield ListedNetwork(path.stem, proto, [draw_feed(proto)])
    if folder is not None:
        trained = Folder(folder)
        for case in CASES:
            if not case.raised:
                yield ListedNetwork(case.name, onnx.load(folder / case.file), trained.feeds(case)[:4])


def draw_feed(proto: onnx.ModelProto, seed: int = 3) -> dict[str, np.ndarray]:
    """Return random values for each input."""
    rng, feed = np.random.default_rng(seed), {}
    for spec in input_specs(onnxfq.load(proto).proto):
        shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
        if np.dtype(spec.dtype).kind == "f":
            feed[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
        else:
            feed[spec.name] = rng.integers(0, 2, shape).astype(spec.dtype)
    return feed
