"""Growth of `quantize` with the nodes of a model: calls of functions, sessions, processor time.

    python benchmarks/scale.py [--nodes 1000 2000 4000] [--shapes chain readers branches] [--out PAGE.md]

A chain of products, one tensor with as many readers, and a chain with an If. Calls are counted in the main
thread, without a clock: a stage that goes through all nodes for each node shows as a growth of two.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from timing import machine, markdown_table, report

import onnxfq
from onnxfq.runtime.ort import onnxruntime

SAMPLES, WIDTH = 8, 8


class Growth(NamedTuple):
    """Counts of one model: its nodes, calls of functions, sessions and processor seconds."""

    nodes: int
    calls: int
    sessions: int
    seconds: float


def build_chain(nodes: int) -> onnx.ModelProto:
    """Return a chain of products, each with an activation."""
    return _join(_chain_nodes(nodes), nodes // 2)


def build_branches(nodes: int) -> onnx.ModelProto:
    """Return such a chain with an If behind it that the data decides."""
    made = _chain_nodes(nodes)
    ends = [helper.make_tensor_value_info(op, TensorProto.FLOAT, None) for op in ("Relu", "Neg")]
    bodies = [
        helper.make_graph([helper.make_node(end.name, [made[-1].output[0]], [end.name])], end.name, [], [end])
        for end in ends
    ]
    made.append(helper.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0))
    made.append(helper.make_node("Cast", ["most"], ["is_some"], "is_some", to=TensorProto.BOOL))
    made.append(helper.make_node("If", ["is_some"], ["y"], "y", then_branch=bodies[0], else_branch=bodies[1]))
    return _join(made, nodes // 2)


def build_readers(nodes: int) -> onnx.ModelProto:
    """Return a model in which half of the nodes read one tensor, and a sum reads what they make."""
    count = nodes // 2
    made = [helper.make_node("Relu", ["x"], ["h"], "h")]
    for number in range(count):
        made.append(helper.make_node("MatMul", ["h", f"w{number}"], [f"m{number}"], f"m{number}"))
    made.append(helper.make_node("Concat", [f"m{number}" for number in range(count)], ["c"], "c", axis=1))
    made += [helper.make_node("Relu", ["c"], [f"r{number}"], f"r{number}") for number in range(count - 2)]
    return _join(made, count)


SHAPES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "chain": build_chain,
    "readers": build_readers,
    "branches": build_branches,
}


def _chain_nodes(nodes: int) -> list[onnx.NodeProto]:
    made, read = [], "x"
    for number in range(nodes // 2):
        made.append(helper.make_node("MatMul", [read, f"w{number}"], [f"m{number}"], f"m{number}"))
        made.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}"], f"r{number}"))
        read = f"r{number}"
    return made


def _join(nodes: list[onnx.NodeProto], weights: int) -> onnx.ModelProto:
    """Return the model of `nodes`; the last one makes its output."""
    rng = np.random.default_rng(0)
    spread = 2.0 / WIDTH**0.5
    constants = [
        numpy_helper.from_array((rng.normal(size=(WIDTH, WIDTH)) * spread).astype(np.float32), f"w{number}")
        for number in range(weights)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in (("x", WIDTH), (nodes[-1].output[0], None))
    ]
    graph = helper.make_graph(nodes, "scale", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(proto: onnx.ModelProto) -> Growth:
    """Return the counts of quantizing `proto` without repair, on one thread."""
    x = np.random.default_rng(1).normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    opened, opening = [], onnxruntime.InferenceSession.__init__

    def open_session(session: Any, *given: Any, **settings: Any) -> None:
        opened.append(session)
        opening(session, *given, **settings)

    options, off = onnxfq.QuantizeOptions(threads=1), onnxfq.AccuracyTarget(repair=None)
    profile, begun = cProfile.Profile(), time.process_time()
    onnxruntime.InferenceSession.__init__ = open_session
    try:
        profile.runcall(onnxfq.quantize, proto, {"x": x}, accuracy=off, options=options)
    finally:
        onnxruntime.InferenceSession.__init__ = opening
    calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return Growth(len(proto.graph.node), calls, len(opened), time.process_time() - begun)


def find_power(first: Growth, last: Growth, field: str) -> float:
    """Return the power of the nodes by which a field grew."""
    ratio = getattr(last, field) / getattr(first, field)
    return math.log(ratio) / math.log(last.nodes / first.nodes)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", nargs="+", type=int, default=[1000, 2000, 4000])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows = []
    for shape in asked.shapes:
        found = [measure(SHAPES[shape](nodes)) for nodes in (asked.nodes[0], *asked.nodes)][1:]
        for number, one in enumerate(found):
            before = found[max(number - 1, 0)]
            powers = [
                f"{find_power(before, one, field):.2f}" if number else "" for field in ("calls", "seconds")
            ]
            rows.append(
                [shape, f"{one.nodes:,}", f"{one.calls:,}", str(one.sessions), f"{one.seconds:.1f}", *powers]
            )
    heads = ["shape", "nodes", "calls", "sessions", "processor s", "power of calls", "power of seconds"]
    text = f"{SAMPLES} samples, tensorrt-int8 without repair, one thread, under a profiler. {machine()}.\n\n"
    report("Growth with the nodes", text + markdown_table(heads, rows), asked.out)


if __name__ == "__main__":
    main()
