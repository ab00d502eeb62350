"""Caches as integers: the quantized numbers leave and enter the model, instead of their floats."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfq.documents.plan import Placement
from onnxfq.graph.edit import Editor


def store_cache(editor: Editor, placement: Placement, tensor: gs.Tensor) -> None:
    """Let the model take and return the numbers of a cache whose pair stands behind its Concat, in place.

    A DequantizeLinear with the scale of the pair reads the numbers of earlier runs: they stay what they are.

    Args:
        editor: of the graph with the pair.
        placement: of the cache, the output of a Concat of an input of the model with new numbers.
        tensor: the output of the Concat.
    """
    quantize = next(node for node in tensor.outputs if node.op == "QuantizeLinear")
    (dequantize,) = (node for node in quantize.outputs[0].outputs if node.op == "DequantizeLinear")
    numbers, real = quantize.outputs[0], dequantize.outputs[0]
    place = next(at for at, output in enumerate(editor.graph.outputs) if output is real)
    name, real.name = real.name, editor.pick_name(f"{real.name}/dq")
    numbers.name = name
    editor.graph.outputs[place] = numbers
    join = tensor.inputs[0]
    past = join.inputs[0]
    read = editor.variable(f"{past.name}/dq", past)
    for reader in list(past.outputs):
        reader.inputs = [read if one is past else one for one in reader.inputs]
    past.dtype = numbers.dtype
    attrs = dict(dequantize.attrs)
    node = gs.Node("DequantizeLinear", f"{past.name}/dq", attrs, [past, *dequantize.inputs[1:]], [read])
    editor.insert_after(past, [node])
