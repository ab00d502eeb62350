"""Runs the operators in several versions of onnxruntime, each in its own virtual environment.

    python tests/custom_ops/check_runtimes.py [VERSION ...] [--library FILE] [--folder FOLDER]

The library speaks to onnxruntime through positions in a function table (ort_abi.h); this is the proof that
they are right in the oldest supported version and in the newest. Needs a package index. Not a pytest: it
installs some 100 MB for each version. Prints one line a version; the exit code is 1 when one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ["1.20.1", "1.22.1", "1.24.4", "1.31.1"]

# The script of each environment: only numpy, onnx and onnxruntime are there, and the library's path.
SMOKE = '''
import sys
import numpy as np
import onnxruntime
from onnx import parser

MODEL = """<ir_version: 8, opset_import: ["": 17, "onnxfq": 1]>
smoke (float[n, c] x, float[c] scale, bool enabled) =>
      (float[n, c] y, float[2] range, int64[4] counts, int32[k] bins, int64[k] bin_counts, float[n, c] z)
{
    negated = Neg(x)
    moved = onnxfq.FakeQuantize <qtype = "int8", axis = 1> (negated, scale)
    y = Neg(moved)
    range, counts, bins, bin_counts = onnxfq.Observe(x)
    z = onnxfq.FakeQuantize <qtype = "int8", axis = 1> (x, scale, , enabled)
}"""

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.register_custom_ops_library(sys.argv[1])
session = onnxruntime.InferenceSession(parser.parse_model(MODEL).SerializeToString(), options)
rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 300)).astype(np.float32)
scale = rng.uniform(0.01, 0.1, 300).astype(np.float32)
expected = scale * (np.clip(np.rint(x / scale), -127, 128) + np.float32(0))
for enabled in (True, False):
    feeds = {"x": x, "scale": scale, "enabled": np.array(enabled)}
    y, bounds, counts, bins, bin_counts, z = session.run(None, feeds)
    assert np.array_equal(y, expected)
    upper = scale * (np.clip(np.rint(x / scale), -128, 127) + np.float32(0))
    assert np.array_equal(z, upper if enabled else x)
    assert bounds.tolist() == [x.min(), x.max()]
    assert counts.tolist() == [x.size, 0, 0, 0]
    wanted, wanted_counts = np.unique(x.view(np.uint32) >> 17, return_counts=True)
    assert np.array_equal(bins, wanted) and np.array_equal(bin_counts, wanted_counts)

# Several types under one name, attributes that are lists, outputs that are optional.
TYPES = """<ir_version: 8, opset_import: ["": 17, "onnxfq": 1]>
types (float16[n, c] x, float16[n, k] scale, float global)
      => (float16[n, c] y, float16[n, c] z, float16[n, c] m, float[n, b] m_scale, bfloat16[n, c] w)
{
    y = onnxfq.FakeQuantize <qtype = "float8e4m3fn", block_shape = [1, 16]> (x, scale)
    wide = Cast <to = 1> (scale)
    z = onnxfq.FakeQuantize <qtype = "float8e4m3fn", block_shape = [1, 16]> (x, wide)
    m, m_scale =
        onnxfq.DynamicFakeQuantize <qtype = "int8", scale_type = "e8m0", axis = -1, block_size = 32> (x)
    u = onnxfq.DynamicFakeQuantize
        <qtype = "float4e2m1", scale_type = "e4m3", block_shape = [1, 16]> (x, global)
    v = Cast <to = 16> (u)
    w = onnxfq.DynamicFakeQuantize <qtype = "int16"> (v)
}"""
model = parser.parse_model(TYPES)
halves = onnxruntime.InferenceSession(model.SerializeToString(), options)
x16 = rng.standard_normal((8, 64)).astype(np.float16)
feeds = {"x": x16, "scale": np.full((8, 4), 0.5, np.float16), "global": np.array(0.01, np.float32)}
y, z, m, m_scale = halves.run(["y", "z", "m", "m_scale"], feeds)
step = np.exp2(np.maximum(np.floor(np.log2(np.abs(x16.astype(np.float32) * 2))), -6) - 3)
fp8 = np.rint(x16.astype(np.float32) * 2 / step) * step / 2
assert np.array_equal(y, fp8.astype(np.float16)) and np.array_equal(y, z)
amax = np.abs(x16.astype(np.float32)).reshape(8, 2, 32).max(axis=-1)
assert np.array_equal(m_scale, np.exp2(np.floor(np.log2(amax)) - 6))
try:
    session.run(None, {"x": x, "scale": scale * np.float32(np.nan), "enabled": np.array(True)})
except Exception as error:
    assert "finite and positive" in str(error), error
else:
    raise AssertionError("a NaN scale was accepted")
print("onnxruntime", onnxruntime.__version__, "numpy", np.__version__, "ok")
'''


def check(version: str, library: Path, folder: Path) -> bool:
    """Make the environment of one version, run the smoke test in it and print the outcome."""
    home = folder / version
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        packages = [f"onnxruntime=={version}", "onnx", "numpy"]
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", *packages], check=True)
    result = subprocess.run([python, "-c", SMOKE, str(library)], capture_output=True, text=True)
    outcome = result.stdout.strip() if result.returncode == 0 else result.stderr.strip()
    print(outcome if result.returncode == 0 else f"onnxruntime {version} FAILED:\n{outcome}", flush=True)
    return result.returncode == 0


def main() -> int:
    """Check every version named, or the usual ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--library", type=Path, help="the custom-op library; default: this package's")
    parser.add_argument("--folder", type=Path, help="keep the environments here")
    arguments = parser.parse_args()
    library = arguments.library
    if library is None:
        from onnxfq.support.resources import custom_ops_library

        library = custom_ops_library()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        return 0 if all([check(version, library.resolve(), folder) for version in arguments.versions]) else 1


if __name__ == "__main__":
    sys.exit(main())
