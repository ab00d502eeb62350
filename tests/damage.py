"""Damage to bytes and to fields of a model, drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

Rng = np.random.Generator


def _span(content: bytearray, rng: Rng) -> slice:
    start = int(rng.integers(len(content)))
    return slice(start, start + int(rng.integers(1, 40)))


def _flip(content: bytearray, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 4))):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))


def _cut(content: bytearray, rng: Rng) -> None:
    del content[int(rng.integers(len(content))) :]


def _delete(content: bytearray, rng: Rng) -> None:
    del content[_span(content, rng)]


def _insert(content: bytearray, rng: Rng) -> None:
    at = int(rng.integers(len(content)))
    content[at:at] = rng.bytes(int(rng.integers(1, 40)))


def _repeat(content: bytearray, rng: Rng) -> None:
    span = _span(content, rng)
    content[span.start : span.start] = content[span]


def _blank(content: bytearray, rng: Rng) -> None:
    span = _span(content, rng)
    content[span] = bytes(len(content[span]))


BYTES: dict[str, Callable[[bytearray, Rng], None]] = {
    f.__name__.strip("_"): f for f in (_flip, _cut, _delete, _insert, _repeat, _blank)
}


def _some(items: list, rng: Rng) -> object:
    return items[int(rng.integers(len(items)))] if items else None


def _mangled_field(proto: onnx.ModelProto, rng: Rng) -> None:
    """Change one field of the structure to another value of its kind: what flipped bytes rarely reach."""
    graph = proto.graph
    node, tensor = _some(list(graph.node), rng), _some(list(graph.initializer), rng)
    value = _some([*graph.input, *graph.output, *graph.value_info], rng)
    names = [name for n in graph.node for name in (*n.input, *n.output)] + ["", "nowhere", "\x00", "x" * 5000]
    number = int(rng.choice([-(2**63), -1, 0, 1, 2, 3, 7, 16, 99, 2**31, 2**62]))
    small = int(np.clip(number, -(2**31), 2**31 - 1))
    changes = [
        lambda: node.input.append(_some(names, rng)),
        lambda: node.input.__setitem__(0, _some(names, rng)),
        lambda: node.output.__setitem__(0, _some(names, rng)),
        lambda: setattr(node, "op_type", _some(["Conv", "If", "Loop", "Gemm", "Nothing", "", "Cast"], rng)),
        lambda: setattr(node, "domain", _some(["com.microsoft", "own", "onnxfq", "trt"], rng)),
        lambda: node.attribute.append(onnx.helper.make_attribute("axis", number)),
        lambda: node.attribute.append(onnx.helper.make_attribute("pads", [number] * 4)),
        lambda: node.attribute.append(onnx.helper.make_attribute("group", number)),
        lambda: node.attribute.append(onnx.helper.make_attribute("perm", [number, 0])),
        lambda: node.ClearField("attribute"),
        lambda: graph.node.append(graph.node[0]),
        lambda: graph.node.insert(0, graph.node.pop()),
        lambda: setattr(tensor, "data_type", small),
        lambda: tensor.dims.append(number),
        lambda: tensor.dims.__setitem__(0, number),
        lambda: tensor.ClearField("raw_data"),
        lambda: tensor.ClearField("dims"),
        lambda: setattr(tensor, "raw_data", rng.bytes(len(tensor.raw_data))),
        lambda: setattr(tensor, "name", _some(names, rng)),
        lambda: setattr(value.type.tensor_type, "elem_type", small),
        lambda: value.type.tensor_type.shape.dim.add(dim_value=number),
        lambda: value.type.tensor_type.ClearField("shape"),
        lambda: value.ClearField("type"),
        lambda: setattr(value, "name", _some(names, rng)),
        lambda: setattr(proto.opset_import[0], "version", number),
        lambda: setattr(proto.opset_import[0], "domain", _some(["own", "ai.onnx", "com.microsoft"], rng)),
        lambda: proto.ClearField("opset_import"),
        lambda: setattr(proto, "ir_version", number),
        lambda: graph.ClearField("output"),
        lambda: graph.ClearField("input"),
        lambda: graph.initializer.append(graph.initializer[0]),
    ]
    _some(changes, rng)()
