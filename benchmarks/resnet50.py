"""Cost of observing and fake-quantizing ResNet-50: time relative to plain inference.

    python benchmarks/resnet50.py [--threads N] [--batch N] [--rounds N] [--out FILE]

The network has ResNet-50's shapes and random weights; plan, observers and quantizers are those that
`onnxfq quantize` would put in. For comparison the same plan as standard Q/DQ, run by onnxruntime at
ORT_ENABLE_BASIC, above which it would turn the pairs into integer kernels.

Marks: observing at most 1.25 times, fake-quantizing at most 1.15 times plain inference.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import onnx
from shapes import NETWORKS
from timing import machine, markdown_table, median_ratio, paired_times, report

import onnxfq
from onnxfq.passes.observe.insert_observers import with_observers
from onnxfq.runtime.observing_session import open_observing_session
from onnxfq.runtime.ort import onnxruntime


def session(model: onnx.ModelProto, threads: int, basic: bool = False) -> onnxruntime.InferenceSession:
    """Return a session with the custom operators; its threads sleep between runs: sessions take turns."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if basic:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxfq.register_custom_ops(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()

    float_model = NETWORKS["resnet50"](arguments.batch)
    feeds = {"x": np.random.default_rng(1).standard_normal((arguments.batch, 3, 224, 224)).astype(np.float32)}
    model = onnxfq.load(float_model)
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8"))
    encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, [feeds]))
    observed = with_observers(model, plan).proto
    simulation = onnxfq.insert_fake_quantize(model, plan, encodings)
    qdq = onnxfq.insert_qdq(model, plan, encodings)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(observed, Path(folder) / "model.onnx")
        ours = open_observing_session(Path(folder) / "model.onnx", arguments.threads)
    sessions = {
        "plain": session(float_model, arguments.threads),
        "observed": ours,
        "fake-quantized": session(simulation, arguments.threads),
        "plain, basic": session(float_model, arguments.threads, basic=True),
        "onnxruntime Q/DQ, basic": session(qdq, arguments.threads, basic=True),
    }
    calls = {
        name: (lambda s=s: s.run(feeds)) if s is ours else (lambda s=s: s.run(None, feeds))
        for name, s in sessions.items()
    }
    times = paired_times(calls, arguments.rounds)
    rows = []
    for name, seconds in times.items():
        figures = (f"{statistics.median(seconds) * 1e3:.1f}", f"{min(seconds) * 1e3:.1f}")
        rows.append([name, *figures, f"{median_ratio(times, name, 'plain'):.3f}"])
    title = f"ResNet-50, batch {arguments.batch}, {arguments.threads} thread{'s' * (arguments.threads > 1)}"
    head = (
        f"{machine()}; onnxruntime {onnxruntime.__version__}, numpy {np.__version__}. "
        f"{len(plan.activations)} activations observed or quantized. {arguments.rounds} rounds in which all "
        "take turns; times / plain is the median of the rounds' ratios.\n\n"
    )
    header = ["session", "median ms", "best ms", "times / plain"]
    report(title, head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
