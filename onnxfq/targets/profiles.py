"""Optimization profiles for open dimensions of inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import onnx

from onnxfq.data import Feed
from onnxfq.data.inputs import samples_open
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import DataError, nearest
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.normalize.decided_branches import take_branches
from onnxfq.graph.normalize.steps import name_tensors
from onnxfq.graph.walk import list_graphs

Shape = tuple[int, ...]
Profile = tuple[Shape, Shape, Shape]
"""Smallest, most frequent and largest shape of one input."""

Range = tuple[int, int]
"""Smallest and largest size of one dimension."""

ENDS = ("min", "opt", "max")
"""Names of the shapes of a profile, as TensorRT's tools have them."""

Ends = Mapping[str, Mapping[str, Sequence[int]]]
"""Shapes given for some ends: {"max": {input: shape}}."""

LARGEST_BATCH = 8
MOST_ELEMENTS = 2**31 - 1
"""Most elements of a tensor in TensorRT."""
_USUAL_BATCH = 4
_PIXELS = 224
_OTHER = 64


def profiles(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int | Range]]) -> dict[str, Profile]:
    """Return a profile for each input of `proto` with open dimensions.

    Args:
        proto: the model.
        shapes: shape by input name, each size a number or a range; an open first dimension goes from 1 to a
            given number.

    Open dimensions of other inputs get defaults: the first goes from 1 to 8, the last two of an image are
    224, all others 64. Dimensions of equal names get equal sizes. Raises DataError for an unknown input or a
    shape that does not fit.
    """
    constants = GraphIndex(proto.graph).constants
    inputs = {v.name: v.type.tensor_type for v in proto.graph.input if v.name not in constants}
    for name in shapes:
        if name not in inputs:
            raise DataError(
                f"a shape is given for {name!r}, which the model does not take{nearest(name, inputs)}"
            )
    named: dict[str, Range] = {}
    found = {}
    for name, tensor in inputs.items():
        dims = list(tensor.shape.dim)
        given = shapes.get(name)
        if given is not None:
            ranges_given = [(size, size) if isinstance(size, int) else size for size in given]
            for end in zip(*ranges_given, strict=True):
                _check_dims(name, dims, end)
        ranges = [
            _range(axis, len(dims), dim, None if given is None else given[axis], named)
            for axis, dim in enumerate(dims)
        ]
        if any(dim.dim_value <= 0 for dim in dims):
            low, high = (tuple(pair[end] for pair in ranges) for end in (0, 1))
            found[name] = (
                low,
                high
                if given is not None
                else tuple(min(_USUAL_BATCH, most) if least != most else most for least, most in ranges),
                high,
            )
    return found


def fix_sizes(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs of `shapes` these sizes, in place; inner shapes and the branches of an If follow."""
    for value in proto.graph.input:
        sizes = shapes.get(value.name, ())
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            dim.dim_value = size
    for graph in list_graphs(proto.graph):
        del graph.value_info[:]
    name_tensors(proto)
    take_branches(proto)


class ShapeCount:
    """Shapes of the inputs of all feeds that pass by."""

    def __init__(self) -> None:
        """Start without feeds."""
        self.shapes: dict[str, Counter[Shape]] = {}

    def over(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield `feeds`, and count their shapes."""
        for feed in feeds:
            for name, array in feed.items():
                self.shapes.setdefault(name, Counter())[array.shape] += 1
            yield feed


def cover_shapes(
    proto: onnx.ModelProto, count: ShapeCount, shapes: Mapping[str, Sequence[int | Range]]
) -> dict[str, Profile]:
    """Return a profile for each input with open dimensions, from the shapes in `count`.

    Smallest and largest sizes come from the data, and the most frequent shape is optimal. The number of
    samples, which the data does not tell, also covers its default range; so does an input in `shapes`.

    Raises DataError as `profiles` does.
    """
    batched, made = samples_open(input_specs(proto)), {}
    for name, (low, _, high) in profiles(proto, shapes).items():
        found = count.shapes[name]
        known = low if name in shapes else low[: int(batched)]
        least = [min(sizes) for sizes in zip(*found, strict=True)]
        most = [max(sizes) for sizes in zip(*found, strict=True)]
        least[: len(known)] = map(min, low, least[: len(known)])
        most[: len(known)] = map(max, high, most[: len(known)])
        ((usual, _),) = found.most_common(1)
        made[name] = (tuple(least), usual, tuple(most))
    return made


def set_ends(proto: onnx.ModelProto, found: Mapping[str, Profile], ends: Ends) -> dict[str, Profile]:
    """Return the profiles `found` with the shapes of `ends` in them.

    Raises DataError for an unknown input, a shape that does not fit, or ends out of order.
    """
    made = dict(found)
    for place, end in enumerate(ENDS):
        for name, shape in ends.get(end, {}).items():
            profiles(proto, {name: shape})  # checks name and shape
            if name not in made:
                raise DataError(
                    f"input {name!r} has a fixed shape; omit its {end} shape, which changes nothing"
                )
            low, usual, high = (tuple(shape) if at == place else old for at, old in enumerate(made[name]))
            made[name] = (low, usual, high)
    for name, profile in made.items():
        for one, other in ((0, 1), (1, 2)):
            if any(a > b for a, b in zip(profile[one], profile[other], strict=True)):
                texts = [f"{end} {name_sizes(shape)}" for end, shape in zip(ENDS, profile, strict=True)]
                raise DataError(
                    f"the shapes of input {name!r} are out of order: {', '.join(texts)}; give all that "
                    "differ from the data"
                )
    return made


def check_covered(found: Mapping[str, Profile], feeds: Sequence[Feed]) -> None:
    """Raise DataError if a sample lies outside of its input's profile, so that no engine could run it."""
    for number, feed in enumerate(feeds):
        for name, (low, _, high) in found.items():
            shape = feed[name].shape
            if any(not a <= size <= b for a, size, b in zip(low, shape, high, strict=True)):
                raise DataError(
                    f"sample {number} has {name!r} {name_sizes(shape)}, outside of {name_sizes(low)} to "
                    f"{name_sizes(high)}; widen the shapes, or give other data"
                )


def name_sizes(shape: Sequence[int]) -> str:
    """Return a shape as `1x3x224x224`."""
    return "x".join(map(str, shape))


def _check_dims(name: str, dims: list[onnx.TensorShapeProto.Dimension], given: Sequence[int]) -> None:
    fixed = [dim.dim_value if dim.dim_value > 0 else None for dim in dims]
    fits = len(given) == len(fixed) and all(
        f in (None, g) and g > 0 for f, g in zip(fixed, given, strict=True)
    )
    if not fits:
        wanted = "x".join("?" if size is None else str(size) for size in fixed)
        raise DataError(f"input {name!r} is {wanted}, but the given shape is {name_sizes(given)}; correct it")
    if prod(given) > MOST_ELEMENTS:
        raise DataError(
            f"input {name!r} would have {prod(given):,} elements in the given shape {name_sizes(given)}; "
            f"TensorRT takes up to {MOST_ELEMENTS:,}, give less"
        )


def _range(
    axis: int,
    rank: int,
    dim: onnx.TensorShapeProto.Dimension,
    given: int | Range | None,
    named: dict[str, Range],
) -> Range:
    """Return (smallest, largest) size of one dimension; store it for dimensions of the same name."""
    if dim.dim_value > 0:
        return dim.dim_value, dim.dim_value
    if dim.dim_param and dim.dim_param in named:
        return named[dim.dim_param]
    if isinstance(given, tuple):
        size = given
    elif given is not None:
        size = (1 if axis == 0 else given, given)
    elif axis == 0:
        size = (1, LARGEST_BATCH)
    else:
        size = (_PIXELS, _PIXELS) if rank >= 4 and axis >= rank - 2 else (_OTHER, _OTHER)
    if dim.dim_param:
        named[dim.dim_param] = size
    return size
