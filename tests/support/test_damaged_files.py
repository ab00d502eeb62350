"""Damaged models and data, through the command line: it works, or one clear line says what is wrong.

python -m pytest tests/support/test_damaged_files.py --damaged-files 2000
"""

from __future__ import annotations

import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, feed_for
from onnx import external_data_helper

from onnxfq.cli.main import main

Rng = np.random.Generator

MODELS = ("conv_relu", "tied_embedding", "if_body", "attention", "conv_transpose", "shared_weight")


def _span(content: bytearray, rng: Rng) -> slice:
    start = int(rng.integers(len(content)))
    return slice(start, start + int(rng.integers(1, 40)))


def _flip(content: bytearray, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 4))):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))


def _cut(content: bytearray, rng: Rng) -> None:
    del content[int(rng.integers(len(content))) :]


def _delete(content: bytearray, rng: Rng) -> None:
    del content[_span(content, rng)]


def _insert(content: bytearray, rng: Rng) -> None:
    at = int(rng.integers(len(content)))
    content[at:at] = rng.bytes(int(rng.integers(1, 40)))


def _repeat(content: bytearray, rng: Rng) -> None:
    span = _span(content, rng)
    content[span.start : span.start] = content[span]


def _blank(content: bytearray, rng: Rng) -> None:
    span = _span(content, rng)
    content[span] = bytes(len(content[span]))


BYTES: dict[str, Callable[[bytearray, Rng], None]] = {
    f.__name__.strip("_"): f for f in (_flip, _cut, _delete, _insert, _repeat, _blank)
}


def _some(items: list, rng: Rng) -> object:
    return items[int(rng.integers(len(items)))] if items else None


def _mangled_field(proto: onnx.ModelProto, rng: Rng) -> None:
    """Change one field of the structure to another value of its kind: what flipped bytes rarely reach."""
    graph = proto.graph
    node, tensor = _some(list(graph.node), rng), _some(list(graph.initializer), rng)
    value = _some([*graph.input, *graph.output, *graph.value_info], rng)
    names = [name for n in graph.node for name in (*n.input, *n.output)] + ["", "nowhere", "\x00", "x" * 5000]
    number = int(rng.choice([-(2**63), -1, 0, 1, 2, 3, 7, 16, 99, 2**31, 2**62]))
    small = int(np.clip(number, -(2**31), 2**31 - 1))
    changes = [
        lambda: node.input.append(_some(names, rng)),
        lambda: node.input.__setitem__(0, _some(names, rng)),
        lambda: node.output.__setitem__(0, _some(names, rng)),
        lambda: setattr(node, "op_type", _some(["Conv", "If", "Loop", "Gemm", "Nothing", "", "Cast"], rng)),
        lambda: setattr(node, "domain", _some(["com.microsoft", "own", "onnxfq", "trt"], rng)),
        lambda: node.attribute.append(onnx.helper.make_attribute("axis", number)),
        lambda: node.attribute.append(onnx.helper.make_attribute("pads", [number] * 4)),
        lambda: node.attribute.append(onnx.helper.make_attribute("group", number)),
        lambda: node.attribute.append(onnx.helper.make_attribute("perm", [number, 0])),
        lambda: node.ClearField("attribute"),
        lambda: graph.node.append(graph.node[0]),
        lambda: graph.node.insert(0, graph.node.pop()),
        lambda: setattr(tensor, "data_type", small),
        lambda: tensor.dims.append(number),
        lambda: tensor.dims.__setitem__(0, number),
        lambda: tensor.ClearField("raw_data"),
        lambda: tensor.ClearField("dims"),
        lambda: setattr(tensor, "raw_data", rng.bytes(len(tensor.raw_data))),
        lambda: setattr(tensor, "name", _some(names, rng)),
        lambda: setattr(value.type.tensor_type, "elem_type", small),
        lambda: value.type.tensor_type.shape.dim.add(dim_value=number),
        lambda: value.type.tensor_type.ClearField("shape"),
        lambda: value.ClearField("type"),
        lambda: setattr(value, "name", _some(names, rng)),
        lambda: setattr(proto.opset_import[0], "version", number),
        lambda: setattr(proto.opset_import[0], "domain", _some(["own", "ai.onnx", "com.microsoft"], rng)),
        lambda: proto.ClearField("opset_import"),
        lambda: setattr(proto, "ir_version", number),
        lambda: graph.ClearField("output"),
        lambda: graph.ClearField("input"),
        lambda: graph.initializer.append(graph.initializer[0]),
    ]
    _some(changes, rng)()


def _mangled_reference(proto: onnx.ModelProto, rng: Rng) -> None:
    """Change where a tensor says that its values are."""
    tensor = next(t for t in proto.graph.initializer if external_data_helper.uses_external_data(t))
    entry = _some(list(tensor.external_data), rng)
    entry.value = str(rng.choice(["-1", "", "0", "7", str(2**63), "x", "../m.data", "m.onnx", "/dev/zero"]))


def damaged(folder: Path, rng: Rng) -> str:
    """Write a model, its data file and samples, one of them damaged; return what was done."""
    name = MODELS[int(rng.integers(len(MODELS)))]
    proto = BUILDERS[name]()
    model, samples = folder / "m.onnx", folder / "d.npz"
    external = bool(rng.integers(2))
    onnx.save(proto, model, save_as_external_data=external, location="m.data", size_threshold=0)
    feed = feed_for(proto, count=8)
    single = len(feed) == 1 and bool(rng.integers(2))
    if single:
        samples = folder / "d.npy"
        np.save(samples, next(iter(feed.values())))
    else:
        np.savez(samples, **feed)
    targets = [model, model, model, samples, samples, *([folder / "m.data"] if external else [])]
    target = targets[int(rng.integers(len(targets)))]
    if target is model and rng.integers(2):
        light = onnx.load(model, load_external_data=False)
        kinds = [_mangled_field, *([_mangled_reference] if external else [])]
        kind = kinds[int(rng.integers(len(kinds)))]
        kind(light, rng)
        model.write_bytes(light.SerializeToString())
        return f"{name}: {kind.__name__}"
    kind = list(BYTES)[int(rng.integers(len(BYTES)))]
    content = bytearray(target.read_bytes())
    BYTES[kind](content, rng)
    target.write_bytes(content)
    return f"{name}: {kind} of {target.name}"


def complaint(folder: Path, out: Path, capfd: pytest.CaptureFixture[str], ends: Counter[str]) -> str:
    """Quantize what is in `folder`; return what is wrong with how it ended, empty if nothing is."""
    data = next(folder.glob("d.np*"))
    capfd.readouterr()
    inputs = [str(folder / "m.onnx"), "--data", str(data)]
    try:
        code = main(["quantize", *inputs, "-o", str(out / "q.onnx"), "--quiet"])
    except BaseException as fault:
        return f"raises {type(fault).__name__}: {fault} at {traceback.extract_tb(fault.__traceback__)[-1]}"
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    errors = [line for line in lines if line.startswith("onnxfq: error: ")]
    if "Traceback" in printed.err or printed.out:
        return f"prints {printed}"
    if code == 0:
        ends["went on"] += 1
        onnx.checker.check_model(str(out / "q.onnx"))
        return "both an error and success" if errors else ""
    ends["one line"] += 1
    if len(errors) != 1 or lines[-1] != errors[0]:
        return f"not one line last: {printed.err}"
    if len(errors[0]) > 1000 or not errors[0].isprintable():
        return f"not a clear line: {errors[0][:300]!r}"
    return f"exit code {code} or a file left" if code not in (1, 2) or list(out.iterdir()) else ""


def test_damaged_files(
    request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is damaged: a run that works and writes, or one line, an exit code and no file."""
    count = request.config.getoption("--damaged-files")
    ends: Counter[str] = Counter()
    wrong = []
    for seed in range(count):
        folder, out = tmp_path / str(seed), tmp_path / f"{seed} out"
        folder.mkdir()
        out.mkdir()
        what = damaged(folder, np.random.default_rng(seed))
        if found := complaint(folder, out, capfd, ends):
            wrong.append(f"seed {seed}, {what}: {found}")
        shutil.rmtree(folder)
        shutil.rmtree(out)
    print(dict(ends))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert ends["one line"] > 0.3 * count and ends["went on"] > 0.03 * count
