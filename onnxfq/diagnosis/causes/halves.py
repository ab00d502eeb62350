"""Values that leave float16 between quantizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxfq.diagnosis.reading.candidate import FileCandidate
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.file_editor import FileEditor
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.session import Session

LARGEST = 65504.0
"""The largest number of float16."""


def find_overflow(candidate: FileCandidate) -> Iterator[Suspicion]:
    """Yield the first tensors of float16 that become infinite or no number."""
    if candidate.opened is None:
        return
    proto = onnx.ModelProto()
    proto.CopyFrom(candidate.proto)
    add_shapes(proto)
    index = GraphIndex.of_model(proto)
    halves = [n for node in index.nodes for n in node.output if index.types.get(n) == TensorProto.FLOAT16]
    if not halves:
        return
    session, counts = Session(with_outputs(proto, halves), 1, as_written=True), dict.fromkeys(halves, 0)
    for feed in candidate.split.choosing:
        for name, array in zip(halves, session.run(feed, halves), strict=True):
            counts[name] += int((~np.isfinite(array.astype(np.float32))).sum())
    for node in index.nodes:
        name = node.output[0] if node.output else ""
        if counts.get(name, 0) and not any(counts.get(read, 0) for read in node.input):
            text = f"{counts[name]} values leave float16, whose largest number is {LARGEST:g}"
            found = Suspicion(
                kind="float16_overflow", evidence=text, tensor=name, node=node.name, harm=1.0, is_certain=True
            )
            if region := _region(index, node):
                edit = partial(_widen, region=tuple(region))
                found = replace(found, repair="this part in float32", edits=(edit,))
            yield found


def _region(index: GraphIndex, start: onnx.NodeProto) -> list[str]:
    """Return the outputs of the nodes between the casts around a node; none if it is not between casts."""
    if start.op_type != "Cast":
        return []
    casts = [node.output[0] for node in index.nodes if node.op_type == "Cast" and node is not start]
    behind = {node.output[0]: node for node in index.nodes_behind(start.output, casts)}
    region = [start.output[0], *behind]
    given = {read for node in behind.values() for read in node.input if read}
    is_inside = given <= {*region, *index.constants} and index.outputs.isdisjoint(region)
    return region if is_inside else []


def _widen(editor: FileEditor, region: tuple[str, ...]) -> None:
    """Make a part of the graph float32: its cast, and its constants."""
    for node in [node for node in editor.graph.node if node.output and node.output[0] in region]:
        if node.op_type == "Cast" and attributes_of(node).get("to") == TensorProto.FLOAT16:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
        for slot, name in enumerate(node.input):
            values = editor.array(name)
            if values is not None and values.dtype == np.float16:
                node.input[slot] = editor.add(f"{name}/wide", values.astype(np.float32))
    kept = [value for value in editor.graph.value_info if value.name not in region]
    del editor.graph.value_info[:]
    editor.graph.value_info.extend(kept)
