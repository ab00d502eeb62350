"""Channel ranges merged between runs by ONNX operators, which have kernels on every device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfq.calibration.statistics.channel_ranges import ChannelNames
from onnxfq.documents.plan import Placement
from onnxfq.graph.constants import make_constant
from onnxfq.graph.edit import Editor
from onnxfq.passes.observe.insert_observers import clear_names
from onnxfq.placement.equalization import find_channels

_AXES_AS_INPUT = 18
"""First opset in which ReduceMin and ReduceMax take their axes as an input."""

_ENDS = (("ReduceMin", "Min", np.inf), ("ReduceMax", "Max", -np.inf))
"""For each end of a range: operators that find it in a run and merge it, neutral value."""


def merge_channels(editor: Editor, placement: Placement, opset: int, all_finite: bool) -> list[gs.Variable]:
    """Merge the channel ranges of an equalized activation into graph inputs; return the outputs.

    Args:
        editor: of the graph.
        placement: the equalized activation.
        opset: of the model.
        all_finite: whether there is no NaN and no infinity to exclude.
    """
    tensor, names = find_channels(editor, placement), ChannelNames.from_tensor(placement.tensor)
    clear_names(editor, placement.tensor, [*names.given, *names.merged])
    axes = [axis for axis in range(len(tensor.shape)) if axis != placement.spec.granularity.axis]
    nodes: list[gs.Node] = []

    def add(op: str, name: str, inputs: Sequence[gs.Tensor], **attrs: object) -> gs.Variable:
        made = editor.variable(name)
        nodes.append(gs.Node(op, made.name, attrs, list(inputs), [made]))
        return made

    def constant(name: str, value: object, dtype: type = np.float32) -> gs.Constant:
        return editor.constant(
            f"onnxfq/channels/{name}", lambda n: make_constant(n, np.asarray(value, dtype))
        )

    is_finite = None
    if not all_finite:
        # A finite number minus itself is 0, an infinity or a NaN gives NaN.
        difference = add("Sub", f"{placement.tensor}/channels/difference", [tensor, tensor])
        zero = constant("zero", 0)
        is_finite = add("Equal", f"{placement.tensor}/channels/is_finite", [difference, zero])
    outputs = []
    for (reduce, merge, neutral), given, merged in zip(_ENDS, names.given, names.merged, strict=True):
        state = gs.Variable(given, np.float32, [tensor.shape[placement.spec.granularity.axis]])
        editor.graph.inputs.append(state)
        values = tensor
        if is_finite is not None:
            values = add("Where", f"{given}/finite", [is_finite, tensor, constant(merge, neutral)])
        if opset < _AXES_AS_INPUT:
            of_run = add(reduce, f"{given}/of_run", [values], keepdims=0, axes=axes)
        else:
            every = constant(f"axes of {len(tensor.shape)}", axes, np.int64)
            of_run = add(reduce, f"{given}/of_run", [values, every], keepdims=0)
        outputs.append(add(merge, merged, [state, of_run]))
        outputs[-1].dtype, outputs[-1].shape = np.float32, state.shape
    editor.insert_after(tensor, nodes)
    return outputs
