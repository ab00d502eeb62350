"""Runs the commands on quantized files of NNCF, ONNX Runtime, Brevitas and torch.ao.

    python tests/slow/check_foreign_files.py [--python PYTHON] [--floats FOLDER] [--keep FOLDER] [WORD ...]

Not a pytest. An environment in FOLDER, by default build/foreign, has the four tools; PYTHON names another.
`make_quantized_files.py` in it quantizes the networks of the tests of `diagnose`, and with --floats others.
FOLDER keeps the files for the next run, and what the commands print. A file is wrong when a command
ends in anything but results or one line, or when the converted file differs from the source by more than the
rounding. `check` is wrong when it refuses what ONNX Runtime or OpenVINO runs as the pairs say, and when it
passes another. No command may name a node or a tensor that neither the source nor a written file has. With
WORDs only files whose names have all of them are tried.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))

from command_server import CommandServer, command_server
from diagnosed_networks import NETWORKS, network
from told_names import derived_names, list_names

PACKAGES = (
    *("torch==2.13.0", "nncf", "brevitas", "torchao"),
    *("onnx", "onnxruntime", "onnxscript", "onnxoptimizer"),
)
BUILD = Path(__file__).resolve().parents[2] / "build" / "foreign"
MAKER = Path(__file__).with_name("make_quantized_files.py")
STORED = Path(__file__).parents[1] / "diagnosis" / "files"
TARGETS = ("onnxruntime", "tensorrt", "openvino", "qnn")
LONGEST = 600.0
"""Seconds of a command; trained networks take minutes."""
SAME_DB = 15.0
"""Least SQNR of a runtime against the pairs: fused products round elsewhere."""
KEPT_DB = 20.0
"""Least SQNR of a converted file against its source: TensorRT's grids are symmetric."""


def main() -> int:
    """Make the files, run the commands; return 1 if a rule does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="Use this environment.")
    parser.add_argument("--floats", type=Path, help="Quantize the networks of this folder, too.")
    parser.add_argument("--keep", type=Path, default=BUILD, help="Keep the files and what was printed here.")
    parser.add_argument("words", nargs="*", metavar="WORD")
    asked = parser.parse_args()
    wrong = count = 0
    files, floats = asked.keep / "files", asked.keep / "floats"
    if not files.exists():
        if asked.floats is not None:
            shutil.copytree(asked.floats, floats)
        make_files(asked.keep, asked.python, asked.words)
    with command_server() as server:
        for file in sorted(files.glob("*.onnx")):
            if all(word in file.name for word in asked.words):
                count += 1
                faults = try_file(file, floats, asked.keep, server)
                wrong += bool(faults)
                for fault in faults:
                    print(f"{file.stem}: {fault:.500}", flush=True)
    print(f"{count} files, {wrong} wrong")
    return 1 if wrong or not count else 0


def make_files(root: Path, python: str | None, words: list[str]) -> None:
    """Write networks and samples, and let the tools quantize them."""
    files, floats = root / "files", root / "floats"
    files.mkdir(parents=True)
    floats.mkdir(exist_ok=True)
    for name in (*NETWORKS, "picture"):
        net = network("conv" if name == "picture" else name)
        onnx.save(net.float_model, floats / f"{name}.onnx")
        drawn = net.feeds(32, seed=1)
        np.savez(floats / f"{name}.npz", x=np.concatenate([feed["x"] for feed in drawn]))
    python = python or str(root / "env/bin/python")
    if not Path(python).exists():
        venv.create(root / "env", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    subprocess.run([python, MAKER, floats, files, *words], check=True)
    for stored in sorted(STORED.glob("*.onnx")):
        tool, _, name = stored.stem.partition("_")
        (files / f"{tool}-stored@{name}.onnx").write_bytes(stored.read_bytes())


def try_file(file: Path, floats: Path, root: Path, server: CommandServer) -> list[str]:
    """Return what is wrong with the commands on one file, and keep what they print."""
    name = file.stem.partition("@")[2]
    float_model, data = floats / f"{name}.onnx", floats / f"{name}.npz"
    out = root / "made" / file.stem
    out.mkdir(parents=True, exist_ok=True)
    if name == "picture":  # its exporters choose the name of the input
        with np.load(data) as arrays:
            np.savez(out / "samples.npz", **{onnx.load(file).graph.input[0].name: arrays["x"]})
        data = out / "samples.npz"
    given = ["--data", str(data)]
    commands = {
        **{f"check-{target}": ["check", str(file), "--target", target] for target in TARGETS},
        "check": ["check", str(file)],
        "convert": ["convert", str(file), "-o", "plain.onnx"],
        "convert-data": ["convert", str(file), "-o", "converted.onnx", "--json", *given],
        "diagnose": ["diagnose", str(file), *given],
        "inspect": ["inspect", str(file)],
        "cast": ["cast", str(file), "-o", "cast.onnx", *given],
    }
    for recipe in ("onnxruntime-int8", "tensorrt-int8"):
        words = ["quantize", str(file), "--requantize", "--recipe", recipe, "-o", f"{recipe}.onnx", *given]
        commands[f"requantize-{recipe}"] = words
    if name != "picture":
        commands["diagnose-float"] = ["diagnose", str(file), "--float", str(float_model), *given]
        commands["evaluate"] = ["evaluate", str(float_model), str(file), *given]
        commands["diff"] = ["inspect", str(float_model), str(file)]
    faults, said = [], []
    refused: dict[str, list[str]] = {}
    for what, words in commands.items():
        ended = server.run(words, cwd=out, seconds=LONGEST)
        if what.startswith("check-"):
            refused[what] = [line for line in ended.out.splitlines() if line.startswith(("refused", "wrong"))]
        said.append(f"==== {what}: exit code {ended.code}, {ended.seconds:.1f} s\n{ended.out}{ended.err}")
        slow = ended.fault.startswith("hangs") and ended.seconds < LONGEST
        faults += [f"{what}: {ended.fault}"] if ended.fault and not slow else []
        models = [Path(word) for word in words if word.endswith(".onnx")]
        known = {name for one in models if (out / one).exists() for name in list_names(onnx.load(out / one))}
        faults += [f"{what}: invents {name}" for name in derived_names(ended.out + ended.err, known)]
    (out / "said.txt").write_text("\n".join(said), encoding="utf-8")
    with np.load(data) as arrays:
        feed = {key: values[:1] for key, values in arrays.items()}
    source = run(file, feed)
    if source is None:
        return faults
    for target, runs in {"onnxruntime": run_fused, "openvino": run_openvino}.items():
        result, found = runs(file, feed), refused[f"check-{target}"]
        ratio = -np.inf if result is None else sqnr(source, result)
        said.append(f"==== {target}: {ratio:.1f} dB beside the pairs")
        if (ratio < SAME_DB) != bool(found):
            faults.append(f"check-{target}: {ratio:.1f} dB in the runtime, and these errors: {found}")
    for made in ("plain", "converted"):
        if (out / f"{made}.onnx").exists():
            result = run(out / f"{made}.onnx", feed)
            ratio = -np.inf if result is None else sqnr(source, result)
            said.append(f"==== {made}: {ratio:.1f} dB beside the source")
            faults += [f"{made}: {ratio:.1f} dB beside the source"] if ratio < KEPT_DB else []
    (out / "said.txt").write_text("\n".join(said), encoding="utf-8")
    return faults


def run(
    file: Path,
    feed: dict[str, Any],
    level: onnxruntime.GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
) -> list[Any] | None:
    """Return the outputs by ONNX Runtime, whose basic optimizations leave the pairs; None if it refuses."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return session.run(None, feed)
    except Exception:  # one class for each status code
        return None


def run_fused(file: Path, feed: dict[str, Any]) -> list[Any] | None:
    """Return the outputs as the users of ONNX Runtime get them."""
    return run(file, feed, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)


def run_openvino(file: Path, feed: dict[str, Any]) -> list[Any] | None:
    """Return the outputs of OpenVINO on the CPU; None if it refuses."""
    import openvino

    try:
        model = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = model(list(feed.values()))
        return [results[output] for output in model.outputs]
    except RuntimeError:
        return None


def sqnr(reference: list[Any], result: list[Any]) -> float:
    """Return the lowest SQNR of the outputs in dB."""
    ratios = []
    for one, other in zip(reference, result, strict=True):
        noise = np.square(one.astype(np.float64) - other).sum()
        ratios.append(10 * np.log10(np.square(one.astype(np.float64)).sum() / noise) if noise else np.inf)
    return min(ratios)


if __name__ == "__main__":
    sys.exit(main())
