"""Damaged models and data, through the command line: it works, or one clear line says what is wrong.

python -m pytest tests/support/test_damaged_files.py --damaged-files 2000
"""

from __future__ import annotations

import shutil
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, feed_for
from damage import BYTES, Rng, _mangled_field, _some
from onnx import external_data_helper

from onnxfq.cli.main import main

MODELS = ("conv_relu", "tied_embedding", "if_body", "attention", "conv_transpose", "shared_weight")


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


@pytest.mark.sample
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
