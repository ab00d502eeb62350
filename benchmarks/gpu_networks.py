"""Cost and correctness of observing and fake-quantizing whole networks on a GPU.

    python benchmarks/gpu_networks.py [--device cuda|cpu] [--batch N] [--rounds N] [--networks A,B]
                                      [--out FILE]

Networks with the shapes of ResNet-50 and ViT-B/16 and random weights. Three sessions take turns: plain;
with statistics of every planned activation merged on the device, and their heads fetched; with
FakeQuantize. Inputs, outputs and statistics stay on the device.

Then, from profiles and from one run whose observed tensors are fetched too:
- no Memcpy node, and no node of domain onnxfq on another device;
- the statistics file equals, byte for byte, the one that the CPU's kernel makes of the tensors fetched.

Exit code 1 when one of these does not hold. Marks: observing at most 1.2 times, fake-quantizing at most 1.15
times plain inference. On the CPU, where no mark applies, it tries the script itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
from shapes import NETWORKS
from timing import machine, markdown_table, median_ratio, paired_times, report

import onnxfq
from onnxfq.calibration.statistics import HISTOGRAM, Observed, Statistics, TensorStatistics, empty_state
from onnxfq.calibration.statistics.state import StateNames
from onnxfq.data import Feed, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.plan import Plan
from onnxfq.graph.model import Model
from onnxfq.passes.observe.insert_merging import with_merging
from onnxfq.runtime import kernels
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.device_statistics import Gathering
from onnxfq.runtime.devices import Device, gpus, open_place
from onnxfq.runtime.ort import onnxruntime
from onnxfq.runtime.providers import providers
from onnxfq.runtime.session import Session

MARKS = {"observed": 1.2, "fake-quantized": 1.15}


def runs_of(
    session: Session, feed: Feed, device: Device, observed: list[Observed], stack: ExitStack
) -> Callable[[], object]:
    """Return a call that runs `feed` entirely on the device; `observed` names tensors with a state."""
    place = stack.enter_context(open_place(device))
    gathering = Gathering(session, observed, place) if observed else None
    bindings = gathering.bindings if gathering else session.bindings()
    for name, array in feed.items():
        bindings.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0))
    if gathering:
        return lambda: gathering.add({})
    for name in session.output_names:
        bindings.bind_output(name, device)
    return lambda: session.run_bound({}, bindings)


def measured(
    models: dict[str, onnx.ModelProto], feed: Feed, observed: list[Observed], device: Device, rounds: int
) -> list[list[str]]:
    """Return rows of the table of times: name, median and best in ms, ratio to plain, mark."""
    with ExitStack() as stack:
        calls = {
            name: runs_of(
                Session(model, device=device), feed, device, observed if name == "observed" else [], stack
            )
            for name, model in models.items()
        }
        times = paired_times(calls, rounds)
    rows = []
    for name, seconds in times.items():
        ratio = median_ratio(times, name, "plain")
        mark = MARKS.get(name) if device == "cuda" else None
        met = "" if mark is None else f"{mark}" if ratio <= mark else f"{mark} missed"
        figures = (f"{statistics.median(seconds) * 1e3:.2f}", f"{min(seconds) * 1e3:.2f}")
        rows.append([name, *figures, f"{ratio:.3f}", met])
    return rows


def misplaced(model: onnx.ModelProto, feed: Feed, device: Device, folder: Path) -> list[str]:
    """Return Memcpy nodes, and onnxfq nodes on another device than `device`, from the profile of a run."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.log_severity_level = 3
    onnxfq.register_custom_ops(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers(device))
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes = [e["args"] for e in events if e.get("cat") == "Node" and "op_name" in e.get("args", {})]
    own = [n for n in nodes if n["op_name"] in ("MergeStatistics", "FakeQuantize")]
    if not own:
        raise SystemExit("the profile shows no node of domain onnxfq: nothing was checked")
    wrong = [n["op_name"] for n in nodes if n["op_name"].startswith("Memcpy")]
    return wrong + [f"{n['op_name']} on {n['provider']}" for n in own if n["provider"] != _provider(device)]


def _provider(device: Device) -> str:
    first = providers(device)[0]
    return first if isinstance(first, str) else first[0]


def same_statistics(model: Model, plan: Plan, merging: onnx.ModelProto, feed: Feed, device: Device) -> bool:
    """Tell whether states merged on the device equal the CPU statistics of the fetched tensors."""
    tensors = [p.tensor for p in plan.activations]
    given = set(feed)
    fetching = onnx.ModelProto()
    fetching.CopyFrom(merging)
    fetching.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in tensors if name not in given
    )
    names = [StateNames.from_tensor(tensor) for tensor in tensors]
    session = Session(fetching, device=device)
    states = {name.given: empty_state() for name in names}
    inner = [tensor for tensor in tensors if tensor not in given]
    outputs = session.run(feed | states, [*(name.merged for name in names), *inner])
    values = dict(zip(inner, outputs[len(names) :], strict=True)) | feed
    merged = [TensorStatistics.from_state(state) for state in outputs[: len(names)]]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, found in enumerate((merged, [observed_on_cpu(values[tensor]) for tensor in tensors])):
            path = Path(folder) / f"{number}.npz"
            of_all = dict(zip(tensors, found, strict=True))
            values = HISTOGRAM.to_keys(of_all)
            Statistics(model.sha256, 1, values, data=digest_feed(feed, input_specs(model.proto))).save(path)
            files.append(path.read_bytes())
    return files[0] == files[1]


def observed_on_cpu(x: np.ndarray) -> TensorStatistics:
    """Return the state that the CPU kernel makes of an array."""
    return TensorStatistics.from_results(*kernels.observe(x))


def main() -> int:
    """Measure, check and print one page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--networks", default="resnet50,vit_b16")
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()
    device, batch = choose_device(arguments.device), arguments.batch
    where = str(gpus()[0]) if device == "cuda" else machine()
    pages = [
        f"{where}; onnxruntime {onnxruntime.__version__}. {arguments.rounds} rounds in which all take turns."
    ]
    faults = []
    for name in arguments.networks.split(","):
        model = onnxfq.load(NETWORKS[name](batch))
        plan = onnxfq.make_plan(
            model, onnxfq.load_recipe("tensorrt-int8").override(activations={"calibrator": "minmax"})
        )
        feed = {"x": np.random.default_rng(1).standard_normal((batch, 3, 224, 224)).astype(np.float32)}
        options = onnxfq.ObserveOptions(device=device)
        encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, [feed], options))
        models = {
            "plain": model.proto,
            "observed": with_merging(model, plan).proto,
            "fake-quantized": onnxfq.insert_fake_quantize(model, plan, encodings),
        }
        observed = [Observed(p.tensor) for p in plan.activations]
        rows = measured(models, feed, observed, device, arguments.rounds)
        empty = {StateNames.from_tensor(one.tensor).given: empty_state() for one in observed}
        with tempfile.TemporaryDirectory() as folder:
            wrong = misplaced(models["observed"], feed | empty, device, Path(folder))
            wrong += misplaced(models["fake-quantized"], feed, device, Path(folder))
        same = same_statistics(model, plan, models["observed"], feed, device)
        faults += [f"{name}: {one}" for one in sorted(set(wrong))]
        faults += [] if same else [f"{name}: statistics differ from the CPU's"]
        found = ", ".join(f"{one} {wrong.count(one)} times" for one in sorted(set(wrong))) or "none"
        pages += [
            f"\n## {name}, batch {batch}, {len(observed)} activations\n",
            markdown_table(["session", "median ms", "best ms", "times / plain", "mark"], rows),
            f"\nMemcpy nodes, and nodes of onnxfq elsewhere: {found}.",
            f"Statistics file equal to the CPU's: {'yes' if same else 'no'}.",
        ]
    report(f"Networks on {device}", "\n".join(pages), arguments.out)
    print("; ".join(faults) or "statistics equal, no Memcpy, nothing of ours elsewhere")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
