"""Inputs that are drawn from a fixed seed in place of data: pictures, sound, numbers and tokens.

Pictures are dead leaves: discs of one color each that hide one another, with radii of density r^-3. They have
the edges and the spectrum of photographs (source: A. B. Lee, D. Mumford and J. Huang, Occlusion models for
natural images, 2001). Sound has the spectrum 1/f and swells as speech does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.choices import DRAWN_SAMPLES
from onnxfq.data import DataOptions, Feed, InputSpec
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.options import image_layout
from onnxfq.errors import DataError, OnnxfqError, join_lines
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.ops import MOVES, REPEATS
from onnxfq.graph.patterns.fed_back import find_states
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.session import Session
from onnxfq.targets.profiles import Profile, profiles

LEAST_PICTURE, LEAST_SOUND = 8, 256
"""Least sides of a picture, and the least length of an axis that is time."""

LEAVES = 100
"""Usual discs of a picture."""

_SMALLEST, _LARGEST = 1 / 64, 1 / 2
"""Ends of their radii as shares of its longer side."""

_MIDDLE, _SPREAD = 127.5, 64.0
"""Usual mean and standard deviation of pixels; without preprocessing both are taken out."""

_LOUDNESS = 0.1
"""Usual standard deviation of recordings between -1 and 1."""

_COMPARED = 8
"""Samples by which the model's statistics choose."""

_MOST_RANDOM = 1 << 27

_PLAIN = DataOptions()


def draw_inputs(model: onnx.ModelProto, options: DataOptions) -> list[Feed]:
    """Return DRAWN_SAMPLES feeds of one sample, or `options.limit`.

    Pictures are pixels if `options` prepare them. Else scale and offset of the one float input are those by
    which the inputs of BatchNormalization come nearest to its statistics; of models without any they are 1
    and 0. State that the model feeds back is zero at first. Raises DataError for inputs that are too large.
    """
    shapes = {name: (least,) * 3 for name, (least, *_) in profiles(model, {}).items()}
    states = find_states(model.graph, GraphIndex(model.graph))

    def draw(count: int, leaves: int = LEAVES) -> list[Feed]:
        return [draw_feed(model, shapes, seed, options, leaves) for seed in range(count)]

    count = options.limit or DRAWN_SAMPLES
    names = [
        one.name for one in input_specs(model) if one.dtype.kind == "f" and one.name not in states.values()
    ]
    known = None if len(names) != 1 or options.prepares else _find_change(model, names[0], draw)
    feeds = draw(count) if known is None else draw(count, known.leaves)
    if known is not None:
        feeds = [feed | {names[0]: known.apply(feed[names[0]])} for feed in feeds]
    return list(_feed_back(model, feeds, states))


def draw_feed(
    proto: onnx.ModelProto,
    wanted: Mapping[str, Profile],
    seed: int = 0,
    options: DataOptions = _PLAIN,
    leaves: int = LEAVES,
) -> Feed:
    """Return one feed of the most frequent shapes, from a seed.

    Floats and uint8 of four axes are pictures, floats with a long axis are sound, others are normal numbers.
    Integers lie in the table that they index, masks are ones, and all others are zeros and ones.

    Args:
        proto: the model.
        wanted: shapes of its open inputs.
        seed: of the numbers.
        options: pictures that these prepare are pixels from 0 to 255, as those of uint8 are; others have mean
            and variance of about 0 and 1.
        leaves: discs of a picture.

    Raises DataError for inputs that are too large.
    """
    rng, index = np.random.default_rng(seed), GraphIndex(proto.graph)
    feed: dict[str, NDArray[Any]] = {}
    for spec in input_specs(proto):
        shape = wanted[spec.name][1] if spec.name in wanted else tuple(size or 1 for size in spec.shape or ())
        if prod(shape) > _MOST_RANDOM:
            raise DataError(
                f"input {spec.name!r} of shape {list(shape)} has over {_MOST_RANDOM:,} elements, too many "
                "for a random sample; give data, or a smaller --shape"
            )
        values: NDArray[Any] | None = None
        if spec.dtype.kind == "f" or spec.dtype == np.uint8:
            values = _draw_picture_or_sound(rng, spec, shape, options, leaves)
        if values is None and spec.dtype.kind in "iub":
            least = int("mask" in spec.name.lower())
            values = rng.integers(least, _rows_read(index, spec.name) or 2, shape)
        feed[spec.name] = np.asarray(rng.normal(size=shape) if values is None else values).astype(spec.dtype)
    return feed


def _draw_picture_or_sound(
    rng: np.random.Generator, spec: InputSpec, shape: tuple[int, ...], options: DataOptions, leaves: int
) -> NDArray[Any] | None:
    """Return pictures for four axes, sound for a long axis of floats, and None for other shapes."""
    if len(shape) == 4:
        last = image_layout(spec, options) == "nhwc"
        sides, channels = (shape[1:3], shape[3]) if last else (shape[2:], shape[1])
        if min(sides) >= LEAST_PICTURE:
            drawn = np.stack([_draw_picture(rng, sides, channels, leaves) for _ in range(shape[0])])
            drawn = drawn if last else np.moveaxis(drawn, -1, 1)
            return drawn if options.prepares or spec.dtype == np.uint8 else (drawn - _MIDDLE) / _SPREAD
    elif shape and max(shape) >= LEAST_SOUND and spec.dtype.kind == "f":
        axis = int(np.argmax(shape))
        drawn = _draw_sound(rng, (*shape[:axis], *shape[axis + 1 :], shape[axis]))
        return np.moveaxis(drawn, -1, axis)
    return None


def _draw_picture(
    rng: np.random.Generator, sides: Sequence[int], channels: int, leaves: int
) -> NDArray[np.float64]:
    """Return pixels [height, width, channels] of dead leaves with random light, contrast and grain."""
    height, width = sides
    low, high = (max(sides) * share for share in (_SMALLEST, _LARGEST))
    radii = (low**-2 - rng.random(leaves) * (low**-2 - high**-2)) ** -0.5
    middles = rng.random((leaves, 2)) * sides
    colors = rng.uniform(0, 255, (leaves + 1, 1)) + rng.normal(0, 25, (leaves + 1, channels))
    picture = np.tile(colors[0], (height, width, 1))
    for radius, (y, x), color in zip(radii, middles, colors[1:], strict=True):
        top, left = max(int(y - radius), 0), max(int(x - radius), 0)
        part = picture[top : int(y + radius) + 1, left : int(x + radius) + 1]
        rows, columns = np.ogrid[: part.shape[0], : part.shape[1]]
        part[(rows + top - y) ** 2 + (columns + left - x) ** 2 <= radius**2] = color
    contrast, light = np.exp(rng.normal(0, 0.3)), rng.normal(0, 30)
    picture = _MIDDLE + light + contrast * (picture - _MIDDLE) + rng.normal(0, 5, picture.shape)
    return np.asarray(np.clip(picture.round(), 0, 255), np.float64)


def _draw_sound(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return a signal along the last axis, between -1 and 1."""
    swell = np.exp(1.5 * _draw_slow(rng, shape))
    sound = _draw_slow(rng, shape) * swell
    return np.asarray(np.clip(sound * (_LOUDNESS / sound.std()), -1, 1), np.float64)


def _draw_slow(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return noise of variance 1 along the last axis, whose amplitude falls as 1/f."""
    spectrum = np.fft.rfft(rng.normal(size=shape))
    noise = np.fft.irfft(spectrum / np.arange(1, spectrum.shape[-1] + 1), shape[-1])
    return np.asarray(noise / noise.std(axis=-1, keepdims=True), np.float64)


def _rows_read(index: GraphIndex, name: str) -> int:
    """Return the rows of the smallest table that a tensor of integers indexes; 0 for none."""
    waiting, seen, rows = [name], {name}, list[int]()
    while waiting:
        name = waiting.pop()
        for node in index.readers.get(name, ()):
            table = index.constants.get(node.input[0]) if node.op_type == "Gather" else None
            if table is not None and node.input[1] == name:
                axis = attributes_of(node).get("axis", 0)
                rows.append(table.dims[axis])
            elif node.op_type in MOVES | REPEATS | {"Cast"} and node.input[0] == name:
                waiting += {*node.output} - seen
                seen |= {*node.output}
    return min(rows, default=0)


def _feed_back(model: onnx.ModelProto, feeds: Sequence[Feed], states: Mapping[str, str]) -> Iterator[Feed]:
    """Yield `feeds` with the state that the model has left on the one before, where it has the same size.

    The first run shows whether the model takes them. Raises DataError if it does not.
    """
    try:
        session = Session(model, 1)
        session.run(feeds[0])
    except OnnxfqError as fault:
        raise DataError(f"inputs drawn at random do not run ({join_lines(fault)}); give data") from None
    left = {name: np.zeros_like(feeds[0][name]) for name in states.values()}
    for feed in feeds:
        given = {**feed, **left}
        yield given
        if not left:
            continue
        new = dict(zip(states.values(), session.run(given, [*states]), strict=True))
        left |= {name: array for name, array in new.items() if array.shape == left[name].shape}


class _Change(NamedTuple):
    """How drawn pictures or sound become inputs: (values + offset) * 2^power, of so many discs each."""

    power: float
    offset: float
    leaves: int = LEAVES

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        kind = values.dtype.type
        return np.asarray((values + kind(self.offset)) * kind(2.0**self.power), values.dtype)

    def around(self, step: float) -> list[_Change]:
        """Return the changes that differ from this by `step` in one number."""
        power, offset, leaves = self
        more = max(int(leaves * 4.0**step), leaves + 1)
        return [
            *(_Change(power + by, offset, leaves) for by in (step, -step)),
            *(_Change(power, offset + by, leaves) for by in (step, -step)),
            *(_Change(power, offset, max(one, 1)) for one in (more, int(leaves / 4.0**step))),
        ]


def _find_change(model: onnx.ModelProto, name: str, draw: Callable[[int, int], list[Feed]]) -> _Change | None:
    """Return the change of one input by which BatchNormalization has its statistics; None without any.

    The nearest of a coarse grid, then steps of half the size while none comes nearer.
    """
    measure = _measure_distance(model, name, draw)
    if measure is None:
        return None
    best = min((_Change(power, offset) for power in range(-6, 9, 2) for offset in (0.0, 2.0)), key=measure)
    step = 1.0
    while step > 0.1:
        found = min(best.around(step), key=measure)
        if measure(found) < measure(best):
            best = found
        else:
            step /= 2
    return best


def _measure_distance(
    model: onnx.ModelProto, name: str, draw: Callable[[int, int], list[Feed]]
) -> Callable[[_Change], float] | None:
    """Return the distance of inputs of BatchNormalization from its statistics; None without any of it.

    The distance of a channel is the divergence d of Kullback and Leibler between normal numbers, as
    log(1 + d): no channel decides alone.
    """
    constants = GraphIndex(model.graph).constants
    norms = [
        node
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        and {*node.input[3:]} <= constants.keys()
        and not attributes_of(node).get("training_mode")
    ]
    if not norms:
        return None
    inputs = [node.input[0] for node in norms]
    session = Session(with_outputs(model, inputs), 1)
    kept = [[tensor_array(constants[one]).astype(np.float64) for one in node.input[3:]] for node in norms]

    drawn = cache(partial(draw, _COMPARED))

    @cache
    def measure(change: _Change) -> float:
        sums = [np.zeros((3, len(mean))) for mean, _ in kept]
        for feed in drawn(change.leaves):
            arrays = session.run(feed | {name: change.apply(feed[name])}, inputs)
            for total, array in zip(sums, arrays, strict=True):
                rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1).astype(np.float64)
                total += np.stack([rows.sum(1), np.square(rows).sum(1), np.full(len(rows), rows.shape[1])])
        return float(np.mean([_diverge(total, *stored) for total, stored in zip(sums, kept, strict=True)]))

    return measure


def _diverge(sums: NDArray[np.float64], mean: NDArray[np.float64], variance: NDArray[np.float64]) -> float:
    got = sums[0] / sums[2]
    spread = np.maximum(sums[1] / sums[2] - np.square(got), 1e-12)
    variance = np.maximum(variance, 1e-12)
    distance = 0.5 * (np.log(variance / spread) + (spread + np.square(got - mean)) / variance - 1)
    return float(np.log1p(np.maximum(distance, 0)).mean())
