"""`InputView`: the input of a layer as the rows that its weight multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
        return 1 if self.op_type in ("Conv", "ConvTranspose") else self.axis

    def spread(self, per_channel: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers of the channels as numbers of the inputs, [groups, inputs]."""
        window = prod(self.kernel) if self.op_type == "Conv" else 1
        return np.repeat(per_channel, window).reshape(self.group, -1)

    def rows(self, x: NDArray[np.float32], samples: int, most: int) -> NDArray[np.float32]:
        """Return the rows of `x`, [rows, groups, inputs].

        Args:
            x: the input of one run.
            samples: number of samples in the run, whose parts of `x` follow each other.
            most: rows to take from each sample, spread over it; the same ones for equal sizes.
        """
        if self.op_type == "Conv":
            return self._windows(x, _share(most, len(x), samples))
        if self.op_type == "ConvTranspose":
            pixels = x.reshape(*x.shape[:2], -1)
            pixels = pixels[:, :, spread_positions(pixels.shape[2], _share(most, len(x), samples))]
            return np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(
                -1, self.group, x.shape[1] // self.group
            )
        moved = np.moveaxis(x, self.axis, -1)
        count = prod(moved.shape[:-1])
        parts = samples if samples and count % samples == 0 else 1
        each = moved.reshape(parts, count // parts, moved.shape[-1])
        return each[:, spread_positions(each.shape[1], most)].reshape(-1, 1, moved.shape[-1])

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

    def _windows(self, x: NDArray[np.float32], most: int) -> NDArray[np.float32]:
        """Return the windows of a convolution at some output positions of each image."""
        sizes = x.shape[2:]
        pads, counts = self._positions(sizes)
        places = np.unravel_index(spread_positions(prod(counts), most), counts)
        rank = len(sizes)
        flat = np.zeros((1,) * (rank + 1), np.int64)
        inside = np.ones((1,) * (rank + 1), bool)
        for d, place in enumerate(places):
            at = place[:, None] * self.strides[d] + np.arange(self.kernel[d]) * self.dilations[d] - pads[d]
            shape = [len(place)] + [1] * rank
            shape[d + 1] = self.kernel[d]
            at = at.reshape(shape)
            flat = flat * sizes[d] + at
            inside = inside & (at >= 0) & (at < sizes[d])
        pixels = x.reshape(*x.shape[:2], -1)
        if not inside.all():
            flat = np.where(inside, flat, pixels.shape[2])
            pixels = np.concatenate([pixels, np.zeros((*pixels.shape[:2], 1), x.dtype)], axis=2)
        windows = flat.reshape(len(flat), -1)
        rows = np.empty((len(x), len(windows), x.shape[1], windows.shape[1]), x.dtype)
        for number, window in enumerate(windows):  # one at a time stays in the cache: up to five times faster
            pixels.take(window, axis=2, out=rows[:, number], mode="clip")
        return rows.reshape(len(x) * len(windows), self.group, -1)

    def _padding(self, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.auto_pad in ("NOTSET", ""):
            return self.pads, self.ends
        if self.auto_pad == "VALID":
            return (0,) * len(sizes), (0,) * len(sizes)
        total = [
            max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            for n, s, d, k in zip(sizes, self.strides, self.dilations, self.kernel, strict=True)
        ]
        small, large = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
        return (small, large) if self.auto_pad == "SAME_UPPER" else (large, small)


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


def _share(most: int, images: int, samples: int) -> int:
    """Return the rows to take from each of `images` images of `samples` samples."""
    return max(-(-most * samples // max(images, 1)), 1)
