"""`explain_open_sums`: sums over axes whose length the model leaves open: other lengths give other errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import attributes_of

_REDUCING = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}
)
_POOLED = frozenset({"GlobalAveragePool", "GlobalLpPool", "InstanceNormalization"})


def explain_open_sums(proto: onnx.ModelProto, sizes: Mapping[str, Sequence[Collection[int]]]) -> list[str]:
    """Return a note on the first sum over an open length, and one on the first over the samples of a batch.

    Args:
        proto: the model, with inferred shapes.
        sizes: the sizes of each axis of its inputs in the data that was measured.
    """
    index = GraphIndex.of_model(proto)
    measured: dict[str, set[int]] = {}
    batches = set()
    for name, axes in sizes.items():
        for axis, (dim, found) in enumerate(zip(_read_dims(index, name), axes, strict=False)):
            if isinstance(dim, str):
                measured.setdefault(dim, set()).update(found)
                batches |= {dim} if not axis else set()
    kinds = (
        (measured.keys() - batches, "an axis of open length, of which the data has {}: other lengths were"),
        (batches, "the samples of a batch, of which {} ran together: other batches were"),
    )
    notes = (_explain_first(index, {dim: measured[dim] for dim in dims}, text) for dims, text in kinds)
    return [note for note in notes if note]


def _explain_first(index: GraphIndex, open_dims: Mapping[str, Collection[int]], text: str) -> str:
    """Return a note on the first sum over one of the dimensions of which the data has one size; or ""."""
    for node in index.nodes:
        for tensor, axis in _list_sums(node, index):
            dims = _read_dims(index, tensor)
            dim = dims[axis] if -len(dims) <= axis < len(dims) else None
            if isinstance(dim, str) and len(open_dims.get(dim, ())) == 1:
                (size,) = open_dims[dim]
                return f"{node.op_type} {node.name!r} sums {tensor!r} over {text.format(size)} not measured"
    return ""


def _list_sums(node: onnx.NodeProto, index: GraphIndex) -> Iterator[tuple[str, int]]:
    """Yield the tensors that a node sums, each with an axis."""
    first = node.input[0] if node.input else ""
    rank = len(_read_dims(index, first))
    fields = attributes_of(node)
    if node.op_type in _REDUCING:
        yield from ((first, axis) for axis in index.axes(node) or range(rank))
    elif node.op_type in ("Softmax", "LogSoftmax"):
        yield first, fields.get("axis", -1)
    elif node.op_type in _POOLED:
        yield from ((first, axis) for axis in range(2, rank))
    elif node.op_type == "MatMul":
        yield first, -1
    elif node.op_type in ("Attention", "MultiHeadAttention"):
        yield next((name for name in node.input[1:2] if name), first), -2


def _read_dims(index: GraphIndex, tensor: str) -> list[int | str | None]:
    """Return the sizes of a tensor, names of open ones, None for unknown ones; [] without a shape."""
    value = index.values.get(tensor)
    dims = value.type.tensor_type.shape.dim if value is not None else ()
    return [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None) for dim in dims]
