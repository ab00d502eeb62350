"""Forms of operators that DLA takes, by NVIDIA's documents; what they leave open is unknown.

Sources: NvInfer.h of TensorRT 11.1, the comments on DLA of each layer; NVIDIA's page "DLA supported layers
and restrictions" of TensorRT's documentation, for Div, Pow, LeakyRelu and comparisons; the matrix of ONNX
operators of TensorRT 8.6 in NVIDIA/Deep-Learning-Accelerator-SW, for operators that neither names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.graph.windows import automatic_pads
from onnxfq.targets.reading.node_sites import NodeSite
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS, QUANTIZE_OPS, quantizer

FEATURES = 3
"""Axes of a sample: channels, rows and columns. All axes in front of them are samples."""

PLANES = 2
"""Spatial dimensions of convolutions and pools."""

CONVOLVED = {"kernel_shape": (1, 32), "strides": (1, 8), "dilations": (1, 32), "pads": (0, 31)}
POOLED = {"kernel_shape": (1, 8), "strides": (1, 16), "pads": (0, 7)}
"""Least and largest values of the attributes of convolutions, and of pools."""

MOST_GROUPS = 8192
WIDE_STEPS = (64, 96, 128)
"""Windows and strides of a transposed convolution beyond 32, if the other one is 1."""


class Limit(NamedTuple):
    """Why DLA does not take an operator.

    Attributes:
        known: whether a document says it; otherwise the documents leave it open, or contradict each other.
    """

    why: str
    known: bool = True


_Limits = Iterator[Limit]


def _bounded(name: str, values: Sequence[int], low: int, high: int) -> _Limits:
    wrong = next((value for value in values if not low <= value <= high), None)
    if wrong is not None:
        yield Limit(f"{name} is {wrong}, and DLA takes {low} to {high}")


def _planes(kernel: Sequence[int | None]) -> _Limits:
    if kernel and len(kernel) != PLANES:
        yield Limit(f"it has {len(kernel)} spatial dimensions, and DLA takes {PLANES}")


def _window(site: NodeSite) -> list[int]:
    """Return the sizes of the window of a convolution or pool; empty if they are unknown."""
    sizes = site.attribute("kernel_shape") or (site.index.shape(site.input(1)) or ())[2:]
    return [int(size) for size in sizes if size is not None]


def _pads(site: NodeSite, kernel: Sequence[int]) -> list[int]:
    """Return the zeros in front along each dimension, then those behind; empty if they are unknown."""
    auto = site.attribute("auto_pad", b"NOTSET").decode()
    if auto == "NOTSET":
        return list(site.attribute("pads", ()))
    sizes = [size for size in (site.index.shape(site.input(0)) or ())[2:] if size is not None]
    if len(sizes) != len(kernel):
        return []
    ones = [1] * len(kernel)
    steps = (site.attribute("strides", ones), site.attribute("dilations", ones))
    front, behind = automatic_pads(auto, sizes, kernel, *steps)
    return [*front, *behind]


def _bounded_window(site: NodeSite, bounds: Mapping[str, tuple[int, int]]) -> _Limits:
    """Yield limits of a window of planes, attribute by attribute in the order of `bounds`."""
    kernel = _window(site)
    yield from _planes(kernel)
    known = {"kernel_shape": kernel, "pads": _pads(site, kernel)}
    for name, (low, high) in bounds.items():
        yield from _bounded(name, known[name] if name in known else site.attribute(name, ()), low, high)


def _convolution(site: NodeSite) -> _Limits:
    kernel = _window(site)
    pads = _pads(site, kernel)
    yield from _bounded_window(site, CONVOLVED)
    for pad, size in zip(pads, [*kernel, *kernel], strict=False):
        if pad >= size:
            yield Limit(f"pads has {pad} beside a window of {size}, and DLA takes fewer than the window has")
    yield from _bounded("group", [site.attribute("group", 1)], 1, MOST_GROUPS)


def _transposed(site: NodeSite) -> _Limits:
    kernel = _window(site)
    auto = site.attribute("auto_pad", b"NOTSET")
    yield from _planes(kernel)
    for name, values in (("kernel_shape", kernel), ("strides", site.attribute("strides", ()))):
        small = all(1 <= value <= 32 for value in values)
        if not small and not (min(values) == 1 and max(values) in WIDE_STEPS):
            shown = "x".join(map(str, values))
            yield Limit(f"{name} is {shown}, and DLA takes 1 to 32, or 1 and one of {list(WIDE_STEPS)}")
    yield from _bounded("pads", site.attribute("pads", ()), 0, 0)
    yield from _bounded("dilations", site.attribute("dilations", ()), 1, 1)
    yield from _bounded("group", [site.attribute("group", 1)], 1, 1)
    if auto not in (b"NOTSET", b"VALID") or any(site.attribute("output_padding", ())):
        yield Limit("no document says which zeros auto_pad and output_padding become", known=False)


def _pool(site: NodeSite) -> _Limits:
    yield from _bounded_window(site, POOLED)
    front, behind = _scale_in_front(site.input(0), site), _scale_behind(site)
    if front is not None and behind is not None and front != behind:
        yield Limit(f"its input has scale {front:g} and its output {behind:g}, and DLA's int8 pools have one")
    if (
        site.op == "AveragePool"
        and any(_pads(site, _window(site)))
        and not site.attribute("count_include_pad", 0)
    ):
        yield Limit("no document says whether DLA averages without the zeros around", known=False)
    if site.attribute("ceil_mode", 0):
        yield Limit("no document says whether DLA rounds the number of windows up", known=False)


def _scale_in_front(tensor: str, site: NodeSite) -> float | None:
    maker = site.index.maker(tensor)
    return _one_scale(maker) if maker is not None and maker.op in DEQUANTIZE_OPS else None


def _scale_behind(site: NodeSite) -> float | None:
    behind = next((reader for reader in site.outputs[0].outputs if reader.op in QUANTIZE_OPS), None)
    return None if behind is None else _one_scale(behind)


def _one_scale(site: NodeSite) -> float | None:
    found = quantizer(site)
    return None if found is None or found.scale is None or found.scale.size != 1 else float(found.scale)


def _elementwise(site: NodeSite) -> _Limits:
    computed = [name for name in site.node.input if not site.index.is_constant(name)]
    scales = {scale for name in computed if (scale := _scale_in_front(name, site)) is not None}
    if len(scales) > 1:
        shown = " and ".join(f"{scale:g}" for scale in sorted(scales))
        yield Limit(f"its inputs have scales {shown}, and DLA's int8 operators on two tensors take one")


def _comparison(site: NodeSite) -> _Limits:
    if {reader.op for reader in site.outputs[0].outputs} != {"Cast"}:
        yield Limit("DLA takes a comparison only if a Cast reads it")


def _concat(site: NodeSite) -> _Limits:
    axis, rank = _axis(site, 0)
    if rank is not None and axis != rank - FEATURES:
        yield Limit(f"axis is {axis} of {rank}, and DLA joins channels only, axis {rank - FEATURES}")
    if len(site.node.input) < 2:
        yield Limit("DLA joins two tensors and more")


def _axis(site: NodeSite, default: int) -> tuple[int, int | None]:
    """Return the attribute `axis`, counted from the front, and the rank of the input; None if unknown."""
    shape, axis = site.index.shape(site.input(0)), int(site.attribute("axis", default))
    return (axis, None) if shape is None else (axis % max(len(shape), 1), len(shape))


def _normalization(site: NodeSite) -> _Limits:
    if site.attribute("size") not in (3, 5, 7, 9):
        yield Limit(f"size is {site.attribute('size')}, and DLA takes 3, 5, 7 and 9")


def _slopes(site: NodeSite) -> _Limits:
    if not site.index.is_constant(site.input(1)):
        yield Limit(f"its slope {site.input(1)!r} is computed, and DLA takes a constant")


def _softmax(site: NodeSite) -> _Limits:
    (axis, rank), shape = _axis(site, -1), site.index.shape(site.input(0))
    if rank is None or shape is None:
        return
    if axis < rank - FEATURES:
        yield Limit(f"axis is {axis} of {rank}, and DLA takes channels, rows and columns")
        return
    others = prod(size or 1 for place, size in enumerate(shape) if rank - FEATURES <= place != axis)
    yield from _bounded(f"size along axis {axis}", [shape[axis] or 1], 1, 8192 if others == 1 else 1024)


_NEAREST = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
_LINEAR = ("half_pixel", "pytorch_half_pixel")
_RESIZED = {"nearest": 32, "linear": 4}
"""Mode -> largest scale."""


def _resize(site: NodeSite) -> _Limits:
    mode = site.attribute("mode", b"nearest").decode()
    places = site.attribute("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = site.attribute("nearest_mode", b"round_prefer_floor").decode()
    scales = site.index.value(site.input(2 if len(site.node.input) > 2 else 1))
    if mode not in _RESIZED:
        yield Limit(f"mode is {mode}, and DLA takes {' and '.join(_RESIZED)}")
        return
    if mode == "nearest" and (places, rounding) not in _NEAREST:
        yield Limit(f"it resizes by {places} and {rounding}, and DLA takes {_listed(_NEAREST)}")
    if mode == "linear" and places not in _LINEAR:
        yield Limit(f"it resizes by {places}, and DLA takes half_pixel")
    if scales is None or not scales.size:
        yield Limit("it resizes to given sizes, and DLA takes constant scales")
    elif not _scales_fit(scales, _RESIZED[mode]):
        shown = ", ".join(f"{scale:g}" for scale in scales)
        yield Limit(f"scales are {shown}, and DLA takes 1, 1 and whole numbers up to {_RESIZED[mode]}")


def _scales_fit(scales: NDArray[np.floating], most: int) -> bool:
    whole = all(scale == round(scale) and 1 <= scale <= most for scale in map(float, scales))
    return len(scales) == FEATURES + 1 and bool(np.all(scales[:2] == 1)) and whole


def _listed(pairs: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(" with ".join(pair) for pair in pairs))


def _split(site: NodeSite) -> _Limits:
    yield from _four_axes(site)
    if _axis(site, 0)[0] == 0:
        yield _WHOLE_SAMPLES


def _slice(site: NodeSite) -> _Limits:
    yield from _four_axes(site)
    if site.attribute("starts") is not None:  # below opset 10
        starts, ends, axes = (site.attribute(name) for name in ("starts", "ends", "axes"))
    else:
        starts, ends, axes = (_constant(site, slot) for slot in (1, 2, 3))
    steps = _constant(site, 4)
    computed = None in (starts, ends) or (site.input(3) and axes is None) or (site.input(4) and steps is None)
    if computed or starts is None or ends is None:
        yield Limit("its bounds are computed, and DLA takes constants")
        return
    rank, shape = FEATURES + 1, site.index.shape(site.input(0)) or (None,)
    for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=False):
        if axis in (0, -rank) and (start > 0 or shape[0] is None or end < shape[0]):
            yield _WHOLE_SAMPLES
    if any(step != 1 for step in steps or ()):
        yield Limit(f"steps are {steps}, and DLA takes 1")


_WHOLE_SAMPLES = Limit("it goes along axis 0, and DLA cuts no samples apart")


def _constant(site: NodeSite, slot: int) -> list[int] | None:
    value = site.index.value(site.input(slot)) if site.input(slot) else None
    return None if value is None else [int(number) for number in value.reshape(-1)]


def _four_axes(site: NodeSite) -> _Limits:
    shape = site.index.shape(site.input(0))
    if shape is not None and len(shape) != FEATURES + 1:
        yield Limit(f"its input has {len(shape)} axes, and DLA cuts tensors of {FEATURES + 1}")


def _shuffle(site: NodeSite) -> _Limits:
    ranks = {len(value.shape) for value in (site.inputs[0], site.outputs[0]) if value.shape is not None}
    other = ranks - {FEATURES + 1}
    if other:
        yield Limit(f"no document says it of tensors of {other.pop()} axes", known=False)


def _pad(site: NodeSite) -> _Limits:
    fill = site.index.value(site.input(2)) if site.input(2) else site.attribute("value", 0.0)
    if site.attribute("mode", b"constant") not in (b"constant", b"wrap") or fill is None or np.any(fill):
        yield Limit("DLA fills with zeros, or with the other end")
    else:
        yield Limit("NvInfer.h takes a Slice that fills with zeros, and the matrix has no Pad", known=False)


def _product(site: NodeSite) -> _Limits:
    if not site.index.is_constant(site.input(1)):
        yield Limit("its second operand is computed, and DLA multiplies by constants")
    else:
        yield Limit("TensorRT 8.6 made a 1x1 convolution of it, and none says it of TensorRT 11", known=False)


def _cast(site: NodeSite) -> _Limits:
    maker = site.index.maker(site.input(0))
    if maker is None or maker.op not in _COMPARISONS:
        yield Limit("no document has a Cast behind another operator than a comparison", known=False)


def _unsaid(why: str) -> Callable[[NodeSite], _Limits]:
    return lambda site: iter([Limit(why, known=False)])


def _none(site: NodeSite) -> _Limits:
    yield from ()


_COMPARISONS = ("Equal", "Greater", "Less")
_SHAPED = "the matrix lacks it, and NvInfer.h names no limit of its layer"
_LATER = "the matrix has it in TensorRT 8.6.12 of DRIVE, and NvInfer.h does not name it"

FORMS: dict[str, Callable[[NodeSite], _Limits]] = {
    **dict.fromkeys(("Abs", "BatchNormalization", "Clip", "Constant", "LeakyRelu", "Relu", "Sigmoid"), _none),
    **dict.fromkeys((*DEQUANTIZE_OPS, *QUANTIZE_OPS, "Tanh"), _none),
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Sum"), _elementwise),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("Reshape", "Transpose"), _shuffle),
    **dict.fromkeys(("Gemm", "MatMul"), _product),
    **dict.fromkeys(("Flatten", "Identity", "Squeeze", "Unsqueeze"), _unsaid(_SHAPED)),
    **dict.fromkeys(("Atanh", "Cos", "GlobalMaxPool", "ReduceMax", "Sin"), _unsaid(_LATER)),
    "Cast": _cast,
    "Concat": _concat,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "LRN": _normalization,
    "Pad": _pad,
    "PRelu": _slopes,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
}
"""Operators with a layer that DLA takes in some form, or of which that is unknown -> their limits."""


def find_limits(site: NodeSite) -> Iterator[Limit]:
    """Yield why DLA does not take `site`, or why that is unknown."""
    find = FORMS.get(site.op)
    if find is None:
        yield Limit(f"it has no {site.op}")
    else:
        yield from find(site)
