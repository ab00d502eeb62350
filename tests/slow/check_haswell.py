"""Runs int8 models on a processor without VNNI: a Haswell that `qemu-x86_64` emulates.

    python tests/slow/check_haswell.py

Not a pytest; Debian has the emulator in `qemu-user`. Products with neighbouring weights of one sign saturate
there in 16 bits. 8-bit weights of such a layer must lose accuracy on the Haswell alone, weights of 7 bits
nowhere, and `check` must warn of the first file and not of the second.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "networks"))

from builders import build, weights

import onnxfq

RUN = """
import sys
sys.path[:0] = {packages!r}
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
np.save(sys.argv[2], session.run(None, {{"x": np.load(sys.argv[3])}})[0])
"""
RECIPES = {"8 bits": "int8", "7 bits": "int8[-64,64]"}
LOSS_DB = 10.0


def outputs(model: Path, data: Path, emulator: list[str]) -> np.ndarray:
    """Return the output of `model` in a plain session, in an emulator if one is given."""
    made = model.with_suffix(".npy")
    code = RUN.format(packages=[path for path in sys.path if path.endswith("-packages")])
    command = [*emulator, str(Path(sys.executable).resolve()), "-c", code, str(model), str(made), str(data)]
    subprocess.run(command, check=True, capture_output=True)
    return np.load(made)


def main() -> int:
    """Compare both processors; return 1 if a sentence of the page does not hold."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        print("qemu-x86_64 is missing; install Debian's qemu-user")
        return 1
    kernel = 1 - np.abs(weights(32, 32, 3, 3)) * np.float32(0.05)  # all near the largest
    proto = build("g (float[N,32,8,8] x) => (float[] y) { y = Conv (x, w) }", {"w": kernel})
    images = 1 - np.abs(weights(16, 32, 8, 8, seed=1)) * np.float32(0.05)
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "x.npy", images)
        onnx.save(proto, folder / "float.onnx")
        wanted = outputs(folder / "float.onnx", folder / "x.npy", [])
        for label, qtype in RECIPES.items():
            path = folder / "q.onnx"
            recipe = onnxfq.load_recipe("onnxruntime-int8").override(weights={"qtype": qtype})
            off = onnxfq.AccuracyTarget(repair=None)
            onnxfq.quantize(proto, [{"x": images}], path, recipe=recipe, accuracy=off)
            here, haswell = (
                10
                * np.log10((wanted**2).mean() / ((outputs(path, folder / "x.npy", to) - wanted) ** 2).mean())
                for to in ([], [emulator, "-cpu", "Haswell"])
            )
            rules = {finding.rule for finding in onnxfq.check(path, "onnxruntime").findings}
            print(f"{label}: {here:.1f} dB here, {haswell:.1f} dB on a Haswell; check: {sorted(rules)}")
            found.append((here - haswell > LOSS_DB, "saturation" in rules))
    return 0 if found == [(True, True), (False, False)] else 1


if __name__ == "__main__":
    sys.exit(main())
