"""Measure the times of products and convolutions, in float and in few bits, into a table for `--pays`.

    python scripts/gpu_times.py OUT.json MODEL.onnx ...                  on a GPU, as SM90.json of an H200
    python scripts/gpu_times.py OUT.json MODEL.onnx ... --device cpu     ONNX Runtime, with its recipe

The models give the sizes. On a GPU torch runs them by `_int_mm` in int8, by `_scaled_mm` in float8, and in
float16 and bfloat16. A convolution is a product of equal rows, columns and summed elements; the table has
none with groups. On a CPU a recipe of ONNX Runtime quantizes each product alone. Sessions run both forms in
turn. Their profiles separate the kernel from nodes that change form or layout. `--clock processor` counts
processor time, for a machine that does other work. A hundred sizes take about two minutes.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

import onnxfq
from onnxfq.documents.product_times import FLOAT_FORM, ProductSize, ProductTimes, TimedProduct
from onnxfq.execution.timing import time_in_turn
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.paying import size_product
from onnxfq.placement.prices import sizes_of
from onnxfq.quantized.existing import load_existing
from onnxfq.runtime.plain_session import open_plain_session, profile_plain_session
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import prepare_model, target_by_name

SECONDS = 0.5
"""Most seconds of a size, once the least number of rounds is over."""

BETWEEN_FORMS = {"QuantizeLinear", "DequantizeLinear", "Transpose", "ReorderInput", "ReorderOutput"}
"""Nodes of ONNX Runtime that change the form or the layout of a tensor."""

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def find_products(models: list[Path], target: str) -> Iterator[tuple[ProductSize, gs.Node]]:
    """Yield each size of a product in the models once, with a node that has it."""
    seen = set()
    for path in models:
        model = prepare_model(load_existing(path, "refuse"), target)
        for node in nodes_by_graph(model.graph()):
            size = size_product(node)
            if size is not None and size not in seen:
                seen.add(size)
                yield size, node


def _cut_out(node: gs.Node) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model of this node alone with drawn weights, and a feed."""
    drawn, inputs, feed = np.random.default_rng(0), list[gs.Tensor](), dict[str, Any]()
    for place, tensor in enumerate(node.inputs[:2]):
        values = drawn.standard_normal(sizes_of(tensor.shape)).astype(np.float32)
        if isinstance(tensor, gs.Constant):
            inputs.append(gs.Constant(f"w{place}", values / np.float32(np.sqrt(values[0].size))))
        else:
            inputs.append(gs.Variable(f"x{place}", np.float32, values.shape))
            feed[f"x{place}"] = values
    output = gs.Variable("y", np.float32, None)
    alone = gs.Node(node.op, "product", node.attrs, inputs, [output])
    graph = gs.Graph([alone], [one for one in inputs if isinstance(one, gs.Variable)], [output], opset=17)
    proto = gs.export_onnx(graph, ir_version=9)
    add_shapes(proto)
    return proto, feed


def measure_on_cpu(models: list[Path], recipe: str, clock: Callable[[], float]) -> ProductTimes:
    """Return the table of ONNX Runtime on this machine, one thread."""
    chosen = load_recipe(recipe)
    assert chosen.activations is not None
    form = chosen.activations.qtype.name + " dynamic" * chosen.activations.dynamic
    rows = list[TimedProduct]()
    with tempfile.TemporaryDirectory() as folder:
        for size, node in find_products(models, chosen.target):
            proto, feed = _cut_out(node)
            onnx.save(proto, f"{folder}/float.onnx")
            how = onnxfq.QuantizeOptions(threads=1)
            off = onnxfq.AccuracyTarget(repair=None)
            both = [Path(folder, name) for name in ("float.onnx", "low.onnx")]
            try:
                onnxfq.quantize(both[0], [feed], both[1], recipe=chosen, accuracy=off, options=how)
            except onnxfq.OnnxfqError as error:
                print(f"{size}: left out, {error}", flush=True)
                continue
            runs = [open_plain_session(path, 1) for path in both]
            runs.append(open_plain_session(_cut_empty(feed), 1))
            calls = [partial(run, feed) for run in runs]
            *whole, empty = (median(one) for one in time_in_turn(calls, clock, SECONDS))
            seconds, between, changes = dict[str, float](), 0.0, set[str]()
            for name, path, total in zip((FLOAT_FORM, form), both, whole, strict=True):
                total = max(total - empty, 1e-7)
                told = profile_plain_session(path, 1, feed)
                apart = sum(one for (op, _), one in told.items() if op in BETWEEN_FORMS) / sum(told.values())
                seconds[name], between = total * (1 - apart), between + total * apart
                changes |= {node for op, node in told if op in ("QuantizeLinear", "DequantizeLinear")}
            tensors = [one.size for one in feed.values()] + [size.groups * size.rows * size.columns]
            count = max(len(changes), 1)
            crossing = max(sum(tensors[:count]) // count, 1), between / count + 1e-9
            rows.append(TimedProduct(**size.model_dump(), seconds=seconds, crossing=crossing))
            print(f"{size}: {seconds}", flush=True)
    return _make_table(
        rows,
        device=f"{platform.processor() or platform.machine()}, {_name_processor()}",
        how="ONNX Runtime, one thread, a session for each product",
        versions={"onnxruntime": target_by_name("onnxruntime").release(), "onnxfq": onnxfq.__version__},
        float_type="float32",
    )


def _name_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((one.partition(":")[2].strip() for one in lines if one.startswith("model name")), "unknown")


def _cut_empty(feed: dict[str, Any]) -> onnx.ModelProto:
    """Return a model that takes `feed` and computes next to nothing: what a call of a session costs."""
    inputs = [gs.Variable(name, np.float32, value.shape) for name, value in feed.items()]
    shape = gs.Variable("y", np.int64, None)
    graph = gs.Graph([gs.Node("Shape", inputs=inputs[:1], outputs=[shape])], inputs, [shape], opset=17)
    return gs.export_onnx(graph, ir_version=9)


def list_calls(size: ProductSize, device: str) -> dict[str, Callable[[], object]]:
    """Return torch's products of a size by form, and what turns its left side into int8 as "crossing".

    Rows, columns and summed elements are filled up to multiples of 16, as engines do.
    """
    import torch

    rows, summed, columns = (16 * -(-n // 16) for n in (max(size.rows, 17), size.summed, size.columns))
    batch = (size.groups,) if size.groups > 1 else ()
    left = torch.randn(*batch, rows, summed, device=device).half()
    right = torch.randn(*batch, columns, summed, device=device).half().mT
    wide, small, tiny = (
        [one.to(kind) for one in (left, right)] for kind in (torch.bfloat16, torch.int8, torch.float8_e4m3fn)
    )
    scale = torch.ones((), device=device)
    calls: dict[str, Callable[[], object]] = {
        FLOAT_FORM: lambda: left @ right,
        "bfloat16": lambda: wide[0] @ wide[1],
        "crossing": lambda: left.to(torch.int8),
    }
    if not batch:
        calls["int8"] = lambda: torch._int_mm(*small)
        calls["float8e4m3fn"] = lambda: torch._scaled_mm(
            tiny[0], tiny[1], scale_a=scale, scale_b=scale, out_dtype=torch.float16
        )
    return calls


def measure_on_gpu(models: list[Path]) -> ProductTimes:
    """Return the table of cuBLASLt on the first GPU, by torch."""
    import torch

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    rows = list[TimedProduct]()
    for size, _ in find_products(models, "tensorrt"):
        if size.kind != "product" and size.groups > 1:
            continue
        calls = list_calls(size, "cuda")
        for name in ("int8", "float8e4m3fn"):
            try:
                calls.get(name, lambda: None)()
            except RuntimeError as error:
                print(f"{size} {name}: left out, {str(error).splitlines()[0]}", flush=True)
                del calls[name]
        timed = dict(zip(calls, map(median, time_in_turn([*calls.values()], clock, SECONDS)), strict=True))
        crossing = max(size.groups, 1) * size.rows * size.summed, timed.pop("crossing")
        rows.append(TimedProduct(**size.model_dump(), seconds=timed, crossing=crossing))
        print(f"{size}: {timed}", flush=True)
    major, minor = torch.cuda.get_device_capability()
    return _make_table(
        rows,
        device=f"{torch.cuda.get_device_name()} (SM{major}{minor})",
        how="cuBLASLt by torch's _int_mm and _scaled_mm; convolutions as products of equal size",
        versions={"torch": torch.__version__, "cuda": str(torch.version.cuda), "onnxfq": onnxfq.__version__},
        float_type="float16",
    )


def _make_table(rows: list[TimedProduct], **fields: Any) -> ProductTimes:
    date = datetime.date.today().isoformat()
    return ProductTimes(rows=tuple(rows), errors={}, date=date, **fields).with_errors()


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--recipe", default="onnxruntime-int8", help="of ONNX Runtime, for --device cpu")
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall", help="for --device cpu")
    asked = parser.parse_args()
    if asked.device == "cpu":
        table = measure_on_cpu(asked.models, asked.recipe, CLOCKS[asked.clock])
    else:
        table = measure_on_gpu(asked.models)
    table.save(asked.output)
    for form, (middle, most) in table.errors.items():
        print(
            f"{form}: ratio to {table.float_type} of sizes left out within {middle:.0%}, 9 of 10 {most:.0%}"
        )


if __name__ == "__main__":
    main()
