"""Files of other tools with each field in turn replaced by a wrong one: an error of one line, or read."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_graphs import CHECKPOINTS
from exported_engines import classic_layer, profile_of
from genai_folders import write_folder

from onnxfq.checkpoints import QuantizedCheckpoint
from onnxfq.data.preprocessor import read_preprocessor
from onnxfq.errors import OnnxfqError
from onnxfq.interchange import read_own
from onnxfq.interchange.genai_folder import GenaiFolder
from onnxfq.interchange.polygraphy_json import outputs_json, read_results
from onnxfq.targets.tensorrt.builder.exported import read_layers, read_times

HOSTILE: tuple[Any, ...] = (
    *(None, True, -5, 0, 2**62, 10**400, 0.5, float("nan"), float("inf"), "", "x", "\ud800", "../x", "a\0b"),
    *([], {}, [[]], [1, "x"], ["x"] * 99, [["x", "y"]], {"x": 1}, {"": {}}),
)
"""Values that may stand in place of any other."""

EVERY = 13
"""One replacement in so many is tried, unless all cases are asked for."""


def replaced(content: Any) -> Iterator[Any]:
    """Yield copies of JSON content, each with one value replaced, at every place."""
    for path in _paths(content):
        for value in HOSTILE:
            made = copy.deepcopy(content)
            if not path:
                yield value
                continue
            inner = made
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = value
            yield made


def _paths(content: Any) -> Iterator[list[Any]]:
    yield []
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for step, value in items:
        yield from ([step, *rest] for rest in _paths(value))


def genai(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """A folder of GenAI, whose texts become feeds."""
    write_folder(folder / "g")
    (folder / "t.txt").write_text("once upon a time there was a little girl")
    return folder / "g" / "genai_config.json", lambda path: list(
        GenaiFolder.read(path.parent).feeds(folder / "t.txt") or ()
    )


def layers(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """Layers of an engine."""
    listing = {"Layers": [classic_layer("n", "CaskConvolution", ["Int8"], "Int8", ["n"], ("Int8", 144))]}
    (folder / "l.json").write_text(json.dumps(listing))
    return folder / "l.json", read_layers


def times(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """Times of its layers."""
    listing = {"Layers": [classic_layer("n", "CaskConvolution", ["Int8"], "Int8", ["n"])]}
    (folder / "p.json").write_text(json.dumps(profile_of(listing, [0.5])))
    return folder / "p.json", lambda path: read_times(path, ["n"])


def preprocessor(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """The preprocessing of a model."""
    steps = {
        "size": {"shortest_edge": 8},
        "crop_size": 6,
        "resample": 2,
        "image_mean": [0.5],
        "image_std": [0.5],
    }
    content = {"image_processor_type": "CLIPImageProcessor"} | steps
    (folder / "h.json").write_text(json.dumps(content))
    return folder / "h.json", read_preprocessor


def results(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """Outputs of a run."""
    (folder / "r.json").write_text(outputs_json([{"y": np.ones(3, np.float32)}]))
    return folder / "r.json", read_results


def encodings(folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """Scales of another tool."""
    one = {"quant_type": "QInt8", "scale": 0.1, "zero_point": 0, "symmetric": True}
    (folder / "e.json").write_text(json.dumps({"x": [one]}))
    return folder / "e.json", read_own


def checkpoint(name: str) -> Callable[[Path], tuple[Path, Callable[[Path], object]]]:
    """The configuration of a checkpoint, of which every layer is read."""

    def make(folder: Path) -> tuple[Path, Callable[[Path], object]]:
        shutil.copytree(CHECKPOINTS / name, folder / "c")

        def read(path: Path) -> object:
            opened = QuantizedCheckpoint(path.parent)
            return [opened.read(module) for module in opened.modules]

        return folder / "c" / "config.json", read

    return make


READERS = {
    **{one.__name__: one for one in (genai, layers, times, preprocessor, results, encodings)},
    **{name: checkpoint(name) for name in ("gptq", "awq", "ct-int8", "modelopt-nvfp4")},
}


@pytest.mark.parametrize("name", READERS)
def test_wrong_fields(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whatever stands in place of a value, the reader returns or raises an error of one line."""
    path, read = READERS[name](tmp_path)
    sound = json.loads(path.read_text(encoding="utf-8"))
    read(path)
    step = 1 if request.config.getoption("--all-cases") else EVERY
    for made in [*replaced(sound)][::step]:
        path.write_text(json.dumps(made))
        try:
            read(path)
        except OnnxfqError as fault:
            assert len(str(fault)) < 2000
