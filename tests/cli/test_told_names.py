"""No command names a node or a tensor that neither the model of the user nor the file that it writes has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_server import CommandServer
from diagnosed_networks import network
from told_names import invented_names, list_names, mark, mark_names

STORED = sorted((Path(__file__).parents[1] / "diagnosis" / "files").glob("*.onnx"))
FILES = [pytest.param(file, id=file.stem, marks=[pytest.mark.sample][file != STORED[0] :]) for file in STORED]
LINES = (
    "check q.onnx --json --target onnxruntime",
    "check q.onnx --json --target tensorrt",
    "check q.onnx --json --target openvino",
    "check q.onnx --json --target qnn",
    "convert q.onnx -o c.onnx --data d.npz --json",
    "diagnose q.onnx --data d.npz --json",
    "diagnose q.onnx --float f.onnx --data d.npz",
    "inspect q.onnx --json",
    "inspect f.onnx q.onnx",
    "compare q.onnx --data d.npz --json",
    "evaluate f.onnx q.onnx --data d.npz --per-tensor",
    "cast q.onnx -o half.onnx --data d.npz --json",
    "quantize q.onnx --requantize --recipe qnn-int8 -o a.onnx --data d.npz --json",
    "quantize q.onnx --recipe tensorrt-int8 -o t.onnx --data d.npz",
    "quantize q.onnx --requantize --recipe onnxruntime-int8 -o b.onnx --data d.npz --report r.html",
    "quantize q.onnx --keep-existing --recipe tensorrt-int8 -o k.onnx --data d.npz",
    "plan q.onnx --recipe qnn-int8 -o p.json --requantize",
    "sensitivity f.onnx --data d.npz",
)


@pytest.mark.grid
@pytest.mark.parametrize("nameless", [False, True], ids=["named", "nameless"])
@pytest.mark.parametrize("file", FILES)
def test_names_are_those_of_the_user(
    file: Path, nameless: bool, server: CommandServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Names in texts, JSON, plans and reports are in the model, in the float model or in the written file.

    A quarter of the commands for each file, so that each is tried on two files; all with --all-cases.
    """
    lines = LINES if request.config.getoption("--all-cases") else LINES[STORED.index(file) % 4 :: 4]
    net = network(file.stem.partition("_")[2])
    models = {"q.onnx": onnx.load(file), "f.onnx": net.float_model}
    known = set()
    for name, proto in models.items():
        marked = mark_names(proto, nameless)
        known |= list_names(marked)
        onnx.save(marked, tmp_path / name)
    np.savez(tmp_path / "d.npz", **{mark("x"): np.concatenate([feed["x"] for feed in net.feeds(8, seed=1)])})
    for line in lines:  # a plan names what a file of its quarter has
        ended = server.run(line.split(), cwd=tmp_path)
        written = [
            tmp_path / word for word in line.split() if Path(word).suffix in (".json", ".html", ".onnx")
        ]
        known = known.union(*(list_names(onnx.load(one)) for one in written if is_model(one)))
        texts = [ended.out, ended.err, *(one.read_text() for one in written if one.suffix != ".onnx")]
        assert not ended.fault, (line, ended.fault)
        assert invented_names("\n".join(texts).replace("\\u0027", "'"), known) == [], line


def is_model(path: Path) -> bool:
    """Tell whether a command wrote this model."""
    return path.suffix == ".onnx" and path.exists()
