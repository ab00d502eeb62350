"""`InputView`: the input of a layer as the rows that its weight multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.moments import ByteGrid
from onnxfq.graph.windows import automatic_pads


@dataclass(frozen=True)
class InputView:
    """How a layer reads its input.

    Attributes:
        op_type: Conv, ConvTranspose, Gemm or MatMul.
        axis: the summed axis of a matrix.
        group: groups of a convolution.
        kernel: size of the window along each dimension of an image, like the next three.
        strides: steps of the window.
        dilations: distances of the elements in the window.
        pads: zeros in front of the image.
        ends: zeros behind it.
        auto_pad: of ONNX, which computes `pads` and `ends` from the size.
    """

    op_type: str
    axis: int = -1
    group: int = 1
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"

    @property
    def channel_axis(self) -> int:
        """Axis of the input with a step for each index."""
        return 1 if self.of_images else self.axis

    @property
    def of_images(self) -> bool:
        """Tell whether the input is a batch of images, [images, channels, ...]."""
        return self.op_type in ("Conv", "ConvTranspose")

    def spread(self, per_channel: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers of the channels as numbers of the inputs, [groups, inputs]."""
        window = prod(self.kernel) if self.op_type == "Conv" else 1
        return np.repeat(per_channel, window).reshape(self.group, -1)

    def count_inputs(self, shape: tuple[int, ...]) -> int:
        """Return the number of inputs of one group, for an input of `shape`."""
        window = prod(self.kernel) if self.op_type == "Conv" else 1
        return shape[self.channel_axis] * window // self.group

    def along(self, per_channel: NDArray[Any], rank: int) -> NDArray[Any]:
        """Return numbers of the channels in a shape that broadcasts to an input of `rank`."""
        shape = [1] * rank
        shape[self.channel_axis] = -1
        return per_channel.reshape(shape)

    def sample(self, shape: tuple[int, ...], samples: int, most: int) -> InputSample:
        """Return which rows to take from an input.

        Args:
            shape: of the input of one run.
            samples: number of samples in the run, whose parts of the input follow each other.
            most: rows to take from each sample, spread over it.
        """
        return (_sample_images if self.of_images else _sample_matrix)(self, shape, samples, most)

    def sums(self, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
        """Return the sum over all rows of `x`, [groups, inputs], and their number; exact for integers.

        Args:
            x: the input of one run of a Conv, Gemm or MatMul.
        """
        if self.op_type != "Conv":
            moved = np.moveaxis(x, self.axis, -1)
            return moved.sum(axis=tuple(range(x.ndim - 1)))[None], prod(moved.shape[:-1])
        pads, counts = self._positions(x.shape[2:])
        image = x.sum(axis=0)
        made = np.zeros((*self.kernel, len(image)), image.dtype)
        dimensions = list(zip(x.shape[2:], pads, counts, self.strides, self.dilations, strict=True))
        for place in product(*map(range, self.kernel)):
            inside: list[slice] = []
            for at, (size, pad, count, stride, dilation) in zip(place, dimensions, strict=True):
                start = at * dilation - pad  # where the first window reads
                first = max(-(start // stride), 0)
                stop = min(count, -((start - size) // stride))  # the windows that read the image, not zeros
                inside.append(slice(start + first * stride, start + max(stop, first) * stride, stride))
            made[place] = image[(slice(None), *inside)].sum(axis=tuple(range(1, image.ndim)))
        return np.moveaxis(made, -1, 0).reshape(self.group, -1), len(x) * prod(counts)

    def _positions(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], list[int]]:
        """Return the zeros in front of an image and the number of windows along each dimension."""
        pads, ends = self._padding(sizes)
        reach = [d * (k - 1) for d, k in zip(self.dilations, self.kernel, strict=True)]
        return pads, [
            max((n + p + e - r - 1) // s + 1, 0)
            for n, p, e, r, s in zip(sizes, pads, ends, reach, self.strides, strict=True)
        ]

    def windows(self, sizes: tuple[int, ...], most: int) -> NDArray[np.int64]:
        """Return the pixels under the window of a convolution at some output positions of an image.

        Args:
            sizes: of the image.
            most: positions.

        Returns the numbers of pixels, [places in the window, positions]; -1 is a zero around the image.
        """
        pads, counts = self._positions(sizes)
        positions = np.unravel_index(spread_positions(prod(counts), most), counts)
        rank = len(sizes)
        flat = np.zeros((1,) * (rank + 1), np.int64)
        inside = np.ones((1,) * (rank + 1), bool)
        for d, position in enumerate(positions):
            place = np.arange(self.kernel[d]) * self.dilations[d] - pads[d]
            shape = [1] * rank + [len(position)]
            shape[d] = self.kernel[d]
            at = (place[:, None] + position * self.strides[d]).reshape(shape)
            flat = flat * sizes[d] + at
            inside = inside & (at >= 0) & (at < sizes[d])
        return np.where(inside, flat, -1).reshape(prod(self.kernel), len(positions[0]))

    def _padding(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.auto_pad in ("NOTSET", ""):
            return self.pads, self.ends
        return automatic_pads(self.auto_pad, sizes, self.kernel, self.strides, self.dilations)


@dataclass(frozen=True)
class InputSample:
    """Some rows of an input.

    Attributes:
        view: how the layer reads the input.
        parts: an image is a part of the input; so are the positions of a sample in a matrix.
        pixels: positions to take from each part; all if None.
        windows: for a Conv, numbers of the taken pixels, [places in the window, windows]; the number behind
            the last pixel is a zero. None if each window is the pixel of its number.
    """

    view: InputView
    parts: int
    pixels: NDArray[np.int64] | None
    windows: NDArray[np.int64] | None = None

    def take(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the rows, [images, channels, pixels] or [parts, positions, channels]."""
        if self.view.of_images:
            image = x.reshape(*x.shape[:2], prod(x.shape[2:]))
            return image if self.pixels is None else image.take(self.pixels, axis=2)
        moved = np.moveaxis(x, self.view.axis, -1)
        count = prod(moved.shape[:-1])
        matrix = moved.reshape(self.parts, count // self.parts, moved.shape[-1])
        return matrix if self.pixels is None else matrix.take(self.pixels, axis=1)

    def round(self, taken: NDArray[np.float32], grid: ByteGrid) -> NDArray[np.int8]:
        """Return the rows of the values of `take` on the grid of the channels, [groups, inputs, rows]."""
        steps = grid.steps[:, None] if self.view.of_images else grid.steps
        return self.rows(grid.round(taken, steps), -grid.offset)

    def rows(self, taken: NDArray[Any], zero: int = 0) -> NDArray[Any]:
        """Return the rows of the values of `take`, [groups, inputs, rows], with `zero` around images."""
        if not self.view.of_images:
            return taken.reshape(1, prod(taken.shape[:2]), taken.shape[2]).swapaxes(1, 2)
        if self.windows is not None:
            if taken.shape[2] in self.windows:
                around = np.full((*taken.shape[:2], 1), zero, taken.dtype)
                taken = np.concatenate([taken, around], axis=2)
            taken = taken.take(self.windows, axis=2)
        images, rows, group = len(taken), taken.shape[-1], self.view.group
        inputs = prod(taken.shape[1:-1]) // group
        return np.moveaxis(taken.reshape(images, group, inputs, rows), 0, 2).reshape(
            group, inputs, images * rows
        )


def _sample_matrix(view: InputView, shape: tuple[int, ...], samples: int, most: int) -> InputSample:
    count = prod(shape) // max(shape[view.axis], 1)
    parts = samples if samples and count % samples == 0 else 1
    each = count // parts
    return InputSample(view, parts, spread_positions(each, most) if each > most else None)


def _sample_images(view: InputView, shape: tuple[int, ...], samples: int, most: int) -> InputSample:
    images, total = shape[0], prod(shape[2:])
    share = max(-(-most * samples // max(images, 1)), 1)
    if view.op_type == "ConvTranspose":
        windows = spread_positions(total, share)[None]
    else:
        windows = view.windows(shape[2:], share)
    pixels = np.unique(windows[windows >= 0])
    windows = np.where(windows < 0, len(pixels), np.searchsorted(pixels, windows))
    each = np.array_equal(windows, np.arange(len(pixels))[None])
    return InputSample(view, images, None if len(pixels) == total else pixels, None if each else windows)


def spread_positions(total: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the numbers below `total`, evenly spread, also over the columns of an image.

    Steps of about the golden section of `total` avoid a common divisor with the width of the image.
    """
    if total <= most:
        return np.arange(total)
    step = max(round(total * 0.618), 1)
    while gcd(step, total) > 1:
        step += 1
    return np.sort(np.arange(most) * step % total)
