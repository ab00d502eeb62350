"""What observing and fake-quantizing cost in ResNet-50: time relative to plain inference.

    python benchmarks/resnet50.py [--threads N] [--batch N] [--rounds N] [--out FILE]

The network has ResNet-50's shapes and random weights. Every input of a Conv or Gemm is observed, or
fake-quantized (int8 per tensor, weights per channel beforehand). For comparison onnxruntime's own
QuantizeLinear and DequantizeLinear stand at the same places, at ORT_ENABLE_BASIC, above which onnxruntime
would turn them into integer kernels.

Marks: observing at most 1.25 times, fake-quantizing at most 1.15 times plain inference.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from timing import machine, markdown_table, median_ratio, paired_times, report

from onnxfq import numerics
from onnxfq.runtime.library import register_custom_ops
from onnxfq.runtime.ort import onnxruntime

STAGES = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]  # width, blocks, stride of the first block


class Builder:
    """Collects nodes and weights; a method returns the name of the tensor it made."""

    def __init__(self) -> None:
        """Start empty."""
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Append a node with one output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int, gain: float = 2.0) -> str:
        """Random weight; its spread keeps activations at the same size from layer to layer."""
        name = f"weight_{len(self.weights)}"
        spread = np.sqrt(gain / np.prod(shape[1:]))
        self.weights[name] = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, gain: float = 2.0) -> str:
        """Convolution with bias, as left by folding a batch normalization."""
        bias = f"bias_{len(self.weights)}"
        self.weights[bias] = (self.rng.standard_normal(outputs) * 0.1).astype(np.float32)
        operands = [x, self.weight(outputs, inputs, kernel, kernel, gain=gain), bias]
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.node("Conv", operands, **shape)

    def bottleneck(self, x: str, inputs: int, width: int, stride: int) -> str:
        """1x1, 3x3, 1x1 and the shortcut, which is a convolution where the shape changes."""
        y = self.node("Relu", [self.conv(x, inputs, width, 1)])
        y = self.node("Relu", [self.conv(y, width, width, 3, stride)])
        y = self.conv(y, width, 4 * width, 1, gain=0.2)
        if inputs != 4 * width:
            x = self.conv(x, inputs, 4 * width, 1, stride, gain=1.0)
        return self.node("Relu", [self.node("Add", [x, y])])


def resnet50(batch: int) -> onnx.ModelProto:
    """ResNet-50 with folded batch normalization: 53 Conv and 1 Gemm, 224 x 224."""
    b = Builder()
    x = b.node("Relu", [b.conv("x", 3, 64, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, stride in STAGES:
        for block in range(blocks):
            x = b.bottleneck(x, channels, width, stride if block == 0 else 1)
            channels = 4 * width
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.node("Gemm", [x, b.weight(1000, channels)], transB=1)
    graph = helper.make_graph(
        b.nodes,
        "resnet50",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 224, 224])],
        [helper.make_tensor_value_info(b.nodes[-1].output[0], TensorProto.FLOAT, [batch, 1000])],
        [numpy_helper.from_array(value, name) for name, value in b.weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfq", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def weighted_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes whose inputs are quantized."""
    return [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]


def observed(model: onnx.ModelProto, histogram: bool = True) -> onnx.ModelProto:
    """A copy with Observe on every activation that a weighted node reads; statistics are extra outputs."""
    model = copy_of(model)
    kinds = {"range": TensorProto.FLOAT, "counts": TensorProto.INT64, "bins": TensorProto.INT32}
    kinds["bin_counts"] = TensorProto.INT64
    for tensor in dict.fromkeys(node.input[0] for node in weighted_nodes(model)):
        outputs = [f"{tensor}/{part}" for part in kinds]
        observe = helper.make_node("Observe", [tensor], outputs, domain="onnxfq", histogram=int(histogram))
        model.graph.node.append(observe)
        for output, kind in zip(outputs, kinds.values(), strict=True):
            model.graph.output.append(helper.make_tensor_value_info(output, kind, None))
    return model


def quantized(model: onnx.ModelProto, standard: bool) -> onnx.ModelProto:
    """A copy with int8 activations, by FakeQuantize or by Q and DQ (`standard`), and rounded weights."""
    model = copy_of(model)
    graph = model.graph
    weights = {w.name: w for w in graph.initializer}
    graph.initializer.append(numpy_helper.from_array(np.array(0.05, np.float32), "scale"))
    if standard:
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "zero_point"))
    shapes = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    shapes |= {v.name: v for v in graph.input}
    made: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm"):
            round_weight(weights[node.input[1]])
            tensor = node.input[0]
            if tensor not in made:
                made[tensor] = f"{tensor}/fq"
                nodes += activation_nodes(tensor, standard)
                graph.value_info.append(stated_shape(shapes[tensor], made[tensor]))
            node.input[0] = made[tensor]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def activation_nodes(tensor: str, standard: bool) -> list[onnx.NodeProto]:
    """The node, or the pair, that puts a tensor on the grid."""
    if not standard:
        attributes = {"domain": "onnxfq", "qtype": "int8"}
        return [helper.make_node("FakeQuantize", [tensor, "scale"], [f"{tensor}/fq"], **attributes)]
    return [
        helper.make_node("QuantizeLinear", [tensor, "scale", "zero_point"], [f"{tensor}/q"]),
        helper.make_node("DequantizeLinear", [f"{tensor}/q", "scale", "zero_point"], [f"{tensor}/fq"]),
    ]


def stated_shape(like: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """The shape of another tensor under this name.

    A custom operator's output has no known shape. Without one onnxruntime does not write in place, and it
    cannot see that both inputs of an Add have the same shape, so Add and Relu stay outside its convolutions.
    """
    stated = onnx.ValueInfoProto()
    stated.CopyFrom(like)
    stated.name = name
    return stated


def round_weight(weight: onnx.TensorProto) -> None:
    """Replace a weight by its int8 values per output channel, as floats."""
    w = numpy_helper.to_array(weight)
    amax = np.abs(w).reshape(len(w), -1).max(1)
    rounded = numerics.fake_quantize(w, amax / 127, qtype="int8", axis=0)
    weight.CopyFrom(numpy_helper.from_array(rounded, weight.name))


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that may be changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def session(model: onnx.ModelProto, threads: int, basic: bool = False) -> onnxruntime.InferenceSession:
    """A session with the custom operators. Its threads sleep between runs: sessions take turns."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if basic:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    register_custom_ops(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", help="write the result to this Markdown file")
    arguments = parser.parse_args()

    model = resnet50(arguments.batch)
    sessions = {
        "plain": session(model, arguments.threads),
        "observed": session(observed(model), arguments.threads),
        "observed, no histogram": session(observed(model, histogram=False), arguments.threads),
        "fake-quantized": session(quantized(model, standard=False), arguments.threads),
        "plain, basic": session(model, arguments.threads, basic=True),
        "onnxruntime Q/DQ, basic": session(quantized(model, standard=True), arguments.threads, basic=True),
    }
    feeds = {"x": np.random.default_rng(1).standard_normal((arguments.batch, 3, 224, 224)).astype(np.float32)}
    calls = {name: (lambda s=s: s.run(None, feeds)) for name, s in sessions.items()}
    times = paired_times(calls, arguments.rounds)
    rows = []
    for name, seconds in times.items():
        figures = (f"{statistics.median(seconds) * 1e3:.1f}", f"{min(seconds) * 1e3:.1f}")
        rows.append([name, *figures, f"{median_ratio(times, name, 'plain'):.3f}"])
    places = len({node.input[0] for node in weighted_nodes(model)})
    title = f"ResNet-50, batch {arguments.batch}, {arguments.threads} thread{'s' * (arguments.threads > 1)}"
    head = (
        f"{machine()}; onnxruntime {onnxruntime.__version__}, numpy {np.__version__}. "
        f"{places} tensors observed or quantized. {arguments.rounds} rounds in which all take turns; "
        "times / plain is the median of the rounds' ratios.\n\n"
    )
    header = ["session", "median ms", "best ms", "times / plain"]
    report(title, head + markdown_table(header, rows), arguments.out)


if __name__ == "__main__":
    main()
