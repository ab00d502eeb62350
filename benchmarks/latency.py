"""Latency of int8 models in the runtimes that run here, next to the runtimes' own quantizers.

    python benchmarks/latency.py [--folder FOLDER] [--nncf PYTHON] [--networks NAME ...] [--rounds N]
        [--out PAGE.md]

One thread, sessions with default options, candidates in turn in one process; the least time counts. Random
networks have 64 samples for calibration and 8 others for the dB. Networks of FOLDER, of `real_models.py`,
have half of their calibration data for each. The peers are `quantize_static` with uint8 activations and int8
weights by channel, `quantize_dynamic`, and NNCF by the python of its own environment. dB are given for the
worst output.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from calibration import feeds
from peers.job import Folder, find_case, float_model, job_folder, run
from shapes import NETWORKS
from timing import machine, markdown_table, paired_times, write_section

import onnxfq
from onnxfq.runtime.ort import onnxruntime

Feed = Mapping[str, np.ndarray]
Run = Callable[[Feed], list[np.ndarray]]

RANDOM = ("resnet50", "mobilenetv2", "vit_b16")
REAL = ("yolox_nano", "minilm_l6_fp16_op17", "ppocrv3_det_op12", "ultraface_rfb320_op9")
TRANSFORMERS = ("vit_b16", "minilm_l6_fp16_op17")
SAMPLES, UNSEEN = 64, 8


@dataclass(frozen=True)
class Network:
    """A float model with its data.

    Attributes:
        path: of the float32 model.
        calibration: feeds for ranges.
        unseen: other feeds, for dB; the first one is timed.
    """

    name: str
    path: Path
    calibration: list[Feed]
    unseen: list[Feed]


def networks(names: list[str], folder: Path | None, work: Path) -> Iterator[Network]:
    """Yield the networks; without `folder` the random ones alone."""
    for name in names:
        path = work / f"{name}.onnx"
        if name in RANDOM:
            onnx.save(NETWORKS[name](1), path)
            rng = np.random.default_rng(7)
            unseen = [{"x": rng.standard_normal((1, 3, 224, 224)).astype(np.float32)} for _ in range(UNSEEN)]
            yield Network(name, path, list(feeds(1, SAMPLES)), unseen)
        elif folder is not None:
            real, case = Folder(folder), find_case(name, raised="fp16" in name)
            onnx.save(float_model(real, case), path)
            held = real.feeds(case)
            half = max(len(held) // 2, 1)
            yield Network(name, path, held[:half], held[half:][:UNSEEN])


def by_static(network: Network, out: Path) -> None:
    """Quantize by onnxruntime's static quantizer."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.source = iter(network.calibration)

        def get_next(self) -> Feed | None:
            return next(self.source, None)

    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(network.path, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)


def by_dynamic(network: Network, out: Path) -> None:
    """Quantize by onnxruntime's dynamic quantizer."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(network.path, out, per_channel=True, weight_type=QuantType.QInt8)


def by_nncf(python: str) -> Callable[[Network, Path], None]:
    """Return what quantizes by NNCF."""

    def quantize(network: Network, out: Path) -> None:
        with job_folder(onnx.load(network.path), network.calibration) as place:
            transformer = network.name in TRANSFORMERS
            result = run(python, "nncf", "quantize", place, transformer=transformer)
            if "error" in result:
                raise RuntimeError(result["error"])
            out.write_bytes((place / result["model"]).read_bytes())

    return quantize


def by_onnxfq(recipe: str) -> Callable[[Network, Path], None]:
    """Return what quantizes by one command with its defaults."""

    def quantize(network: Network, out: Path) -> None:
        onnxfq.quantize(network.path, network.calibration, out, recipe=recipe)

    return quantize


def open_onnxruntime(path: Path) -> Run:
    """Return a plain session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, dict(feed))


def open_openvino(path: Path) -> Run:
    """Return OpenVINO's CPU plugin with its default hints, on one thread."""
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1})
    compiled = core.compile_model(str(path), "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return lambda feed: list(compiled(dict(feed)).values())


def worst_db(reference: list[list[np.ndarray]], made: list[list[np.ndarray]]) -> float:
    """Return the least SQNR of the outputs over all feeds, in dB."""

    def db(number: int) -> float:
        pairs = [
            (np.asarray(a[number], np.float64), np.asarray(b[number], np.float64))
            for a, b in zip(reference, made, strict=True)
        ]
        noise = sum(((a - b) ** 2).sum() for a, b in pairs)
        return float(10 * np.log10(sum((a**2).sum() for a, _ in pairs) / max(noise, 1e-30)))

    return min(db(number) for number in range(len(reference[0])))


def measure(
    network: Network,
    ways: Mapping[str, Callable[[Network, Path], None]],
    opener: Callable[[Path], Run],
    rounds: int,
    work: Path,
) -> Iterator[list[str]]:
    """Yield a row for the float model and for each way in one runtime."""
    runs, failures = {"float": opener(network.path)}, {}
    for label, way in ways.items():
        out = work / f"{network.name}.quantized.onnx"
        try:
            way(network, out)
            runs[label] = opener(out)
            runs[label](network.unseen[0])
        except Exception as fault:  # the row of the tool states it
            failures[label] = str(fault).splitlines()[0][:80]
            runs.pop(label, None)
    times = paired_times(
        {label: lambda one=one: one(network.unseen[0]) for label, one in runs.items()}, rounds
    )
    reference = [runs["float"](feed) for feed in network.unseen]
    base = min(times["float"])
    for label in ("float", *ways):
        if label in failures:
            yield [network.name, label, "", "", failures[label]]
            continue
        made = [runs[label](feed) for feed in network.unseen]
        decibel = "" if label == "float" else f"{worst_db(reference, made):.1f}"
        least = min(times[label])
        yield [network.name, label, f"{1e3 * least:.2f}", f"{least / base:.2f}", decibel]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="the folder of real_models.py")
    parser.add_argument("--nncf", help="python of NNCF's environment")
    parser.add_argument("--networks", nargs="+", default=[*RANDOM, *REAL])
    parser.add_argument("--runtimes", nargs="+", default=["onnxruntime", "openvino"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ways: dict[str, tuple[Callable[[Path], Run], dict[str, Any]]] = {
        "onnxruntime": (
            open_onnxruntime,
            {
                "onnxfq, `onnxruntime-int8`": by_onnxfq("onnxruntime-int8"),
                "onnxruntime, `quantize_static`": by_static,
                "onnxruntime, `quantize_dynamic`": by_dynamic,
            },
        ),
        "openvino": (open_openvino, {"onnxfq, `openvino-int8`": by_onnxfq("openvino-int8")}),
    }
    if arguments.nncf:
        ways["openvino"][1]["NNCF"] = by_nncf(arguments.nncf)
    for runtime in arguments.runtimes:
        opener, tools = ways[runtime]
        rows: list[list[str]] = []
        with tempfile.TemporaryDirectory() as work:
            for network in networks(arguments.networks, arguments.folder, Path(work)):
                rows += measure(network, tools, opener, arguments.rounds, Path(work))
        table = markdown_table(["network", "model", "least ms", "of float", "dB, unseen"], rows)
        text = f"One thread, batch 1, least of {arguments.rounds} runs in turn; {machine()}.\n\n{table}"
        write_section(arguments.out, "Latency of int8 models", runtime, text)


if __name__ == "__main__":
    main()
