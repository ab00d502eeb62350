"""onnxfq and the quantizers of its runtimes: the products in integers, and the SQNR of their models.

    python benchmarks/peers/runtimes.py [--nncf PYTHON] [--only TEXT] [--out benchmarks/results/runtimes.md]

The networks of tests/networks/structure_networks.py have random weights. 16 samples calibrate them, and 64
others are scored: of 8 a tool may be a decibel better by luck. NNCF quantizes for OpenVINO, as a transformer
where there is a Softmax. `quantize_static` with a scale for each channel quantizes for ONNX Runtime's CPU,
and `get_qnn_qdq_config` for QNN. Both models are preprocessed by ONNX Runtime's tools. All tools have 8 bits.
QNN needs an environment with the package onnxruntime-qnn: the emulation of the HTP is asked. The runtime says
which products it runs in integers. onnxfq has two columns: its default, and without repair, as no peer has
one. If the default is lower than QNN's quantizer, their difference has an interval over ten draws of the
weights. No time is measured.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from job import HERE, job_folder, run
from onnxruntime.quantization import QuantType, quantize, quantize_static
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
from onnxruntime.quantization.shape_inference import quant_pre_process
from timing import markdown_table, write_section
from worker import Feed, sqnr_db

TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "networks")]

from ort_quantizer import Reader  # noqa: E402  (just added)
from structure_networks import STRUCTURES, structure  # noqa: E402

import onnxfq  # noqa: E402
from onnxfq.runtime.session import Session  # noqa: E402
from onnxfq.targets.target import BuildOptions, target_by_name  # noqa: E402

PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
CALIBRATING, UNSEEN, DRAWS = 16, 64, 10
T_OF_DRAWS = 2.262
"""Student's t of 95% for ten draws."""
ALONE, QNN = "repair off", "get_qnn_qdq_config"
REMARKS = {
    "qnn": " The last column is of networks where onnxfq is lower by default: the difference in dB over "
    f"{DRAWS} draws of the weights, a mean with its 95% interval."
}
"""Causes of a difference between tools, by runtime."""

PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "qnn": "onnxruntime_qnn"}
Tool = Callable[[Path, onnx.ModelProto, list[Feed]], onnx.ModelProto]
"""A quantizer: a function of a folder with the model, the model and its samples."""

TYPES = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}


def by_onnxfq(target: str, **accuracy: None) -> Tool:
    """Return the function that quantizes for a target by its recipe, with these fields of its accuracy."""

    def quantized(folder: Path, proto: onnx.ModelProto, feeds: list[Feed]) -> onnx.ModelProto:
        wanted = onnxfq.AccuracyTarget(**accuracy)
        return onnxfq.quantize(proto, feeds, recipe=f"{target}-int8", accuracy=wanted).qdq

    return quantized


def by_static(folder: Path, proto: onnx.ModelProto, feeds: list[Feed]) -> onnx.ModelProto:
    """Quantize by ONNX Runtime's static quantizer."""
    quant_pre_process(folder / "model.onnx", folder / "ready.onnx", skip_symbolic_shape=True)
    quantize_static(folder / "ready.onnx", folder / "made.onnx", Reader(feeds), per_channel=True, **TYPES)
    return onnx.load(folder / "made.onnx")


def by_qnn(folder: Path, proto: onnx.ModelProto, feeds: list[Feed]) -> onnx.ModelProto:
    """Quantize by ONNX Runtime's configuration for QNN."""
    changed = qnn_preprocess_model(folder / "model.onnx", folder / "ready.onnx")
    ready = folder / ("ready.onnx" if changed else "model.onnx")
    quantize(ready, folder / "made.onnx", get_qnn_qdq_config(ready, Reader(feeds), **TYPES))
    return onnx.load(folder / "made.onnx")


def by_nncf(python: str | None) -> Tool:
    """Return the function that quantizes by NNCF in the environment of `python`."""

    def quantized(folder: Path, proto: onnx.ModelProto, feeds: list[Feed]) -> onnx.ModelProto:
        attends = any(node.op_type == "Softmax" for node in proto.graph.node)
        done = run(python, "nncf", "quantize", folder, transformer=attends)
        if "error" in done:
            raise RuntimeError(done["error"])
        return onnx.load(folder / done["model"])

    return quantized


def measure(
    target: str, made: onnx.ModelProto, wanted: list[list[np.ndarray]], feeds: list[Feed]
) -> tuple[int, float]:
    """Return the products that the runtime runs in integers, and the SQNR in dB of its worst output."""
    checked = onnxfq.check(made, target, build=BuildOptions())
    low = sum(row.verdict == "low" and row.op_type in PRODUCTS for row in checked.engine)
    opener = target_by_name(target).values
    assert opener is not None
    opened = opener(made, 1)
    found = [opened(feed) for feed in feeds]
    names = [output.name for output in made.graph.output]
    outputs = range(len(names))
    return low, min(sqnr_db([one[at] for one in wanted], [one[names[at]] for one in found]) for at in outputs)


def compare(name: str, target: str, tools: dict[str, Tool], seed: int = 0) -> list[str]:
    """Return a row: the network, its products, and for each tool the products in integers and the dB."""
    proto, samples = structure(name, CALIBRATING + UNSEEN, seed)
    calibrating, unseen = samples[:CALIBRATING], samples[CALIBRATING:]
    reference = Session(proto, 1, exact=True)
    wanted = [reference.run(feed) for feed in unseen]
    prepared = onnxfq.load(proto).proto
    row = [name, str(sum(node.op_type in PRODUCTS for node in prepared.graph.node))]
    for tool in tools.values():
        with job_folder(proto, calibrating) as folder:
            try:
                low, found = measure(target, tool(folder, proto, calibrating), wanted, unseen)
                row += [str(low), f"{found:.2f}"]
            except Exception as error:  # each tool and runtime has its own
                print(name, target, type(error).__name__, str(error)[:300], file=sys.stderr)
                row += ["no model", ""]
    return row


def explain_lower(name: str, target: str, tools: dict[str, Tool]) -> str:
    """Return the mean difference of two tools over draws of the weights, and its interval."""
    rows = [compare(name, target, tools, seed) for seed in range(DRAWS)]
    found = [float(row[3]) - float(row[5]) for row in rows]
    return f"{np.mean(found):+.2f} ± {T_OF_DRAWS * np.std(found, ddof=1) / DRAWS**0.5:.2f}"


def main() -> None:
    """Compare on all networks, and write a table for each runtime whose package is here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nncf", metavar="PYTHON", help="python of NNCF's environment")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    peers = {
        "onnxruntime": {"quantize_static": by_static},
        "openvino": {"NNCF": by_nncf(given.nncf)} if given.nncf else {},
        "qnn": {QNN: by_qnn},
    }
    for target, others in peers.items():
        if find_spec(PACKAGES[target]) is None or not others:
            continue
        tools = {"onnxfq": by_onnxfq(target), ALONE: by_onnxfq(target, repair=None), **others}
        rows = []
        with warnings.catch_warnings(action="ignore"):
            for name in STRUCTURES:
                if given.only in name:
                    rows.append(compare(name, target, tools))
                    if target == "qnn":
                        own, peer = rows[-1][3], rows[-1][2 * [*tools].index(QNN) + 3]
                        lower = bool(peer) and float(own) < float(peer)
                        both = {"onnxfq": tools["onnxfq"], QNN: by_qnn}
                        rows[-1].append(explain_lower(name, target, both) if lower else "")
                    print(*rows[-1], sep=" | ", flush=True)
        heads = [f"{tool}: {what}" for tool in tools for what in ("in integers", "dB")]
        heads += ["difference of draws"] * (target == "qnn")
        release = target_by_name(target).release()
        text = f"{release}; products by its word, and dB of the worst output on {UNSEEN} unseen samples."
        text += REMARKS.get(target, "")
        table = markdown_table(["network", "products", *heads], rows)
        write_section(given.out, "onnxfq next to the quantizers of runtimes", target, f"{text}\n\n{table}")


if __name__ == "__main__":
    main()
