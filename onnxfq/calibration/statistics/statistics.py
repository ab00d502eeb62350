"""`Statistics` of all observed tensors of a model, and their file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.channel_ranges import CHANNEL_RANGES
from onnxfq.calibration.statistics.grouped_histogram import GROUPED_HISTOGRAM, GroupStatistics
from onnxfq.calibration.statistics.histogram import HISTOGRAM, TensorStatistics
from onnxfq.calibration.statistics.input_kinds import Ends
from onnxfq.calibration.statistics.kind import Columns, Form, InputKey, Key, Kind, Value, take_columns
from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.statistics.registry import KINDS
from onnxfq.calibration.statistics.second_moments import (
    MOMENTS,
    InputSums,
    is_read_later,
)
from onnxfq.data import DataDigest
from onnxfq.errors import StatisticsError, nearest
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.support.arrays import load_npz, npz_names, write_npz
from onnxfq.support.files import replace_file
from onnxfq.support.records import join_lines

log = logging.getLogger(__name__)

FORMAT = "onnxfq.stats/1"
_MOST = 1 << 53
"""Largest number in a file: sums of a thousand of them stay in int64."""
_COLUMNS = ("model_sha256", "feeds", "samples", "least", "complete", "data")
_FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("format", "model_sha256", "data", "whole"), ("U", ())),
    **dict.fromkeys(("feeds", "samples", "whole_samples"), ("iu", ())),
    "least": ("iu", (None,)),
    "complete": ("b", ()),
}


@dataclass(frozen=True)
class Statistics:
    """Statistics of the observed tensors of one model over a data set (`.stats.npz`).

    Attributes:
        model_sha256: hash of the observed model.
        feeds: number of observed feeds.
        values: values by tensor and kind, see `KINDS`.
        complete: whether the feeds are the whole data set; False if observing was interrupted.
        data: number of samples and the sum of their SHA-256, in any order and in any batches.
        whole: of moments, the data over which their rows are spread and whose ranges decide their grids.
        source: name in messages.
    """

    model_sha256: str
    feeds: int
    values: Mapping[Key, Any]
    complete: bool = True
    data: DataDigest = DataDigest()
    whole: DataDigest | None = None
    source: str = field(default="these statistics", compare=False, repr=False)

    def __repr__(self) -> str:
        """Return what they count in one line."""
        names = {name for name, _ in self.values}
        samples = "unknown" if self.data.samples is None else self.data.samples
        return f"Statistics({len(names)} tensors, {samples} samples in {self.feeds} feeds, {self.source})"

    @cached_property
    def tensors(self) -> dict[str, TensorStatistics]:
        """Histogram of every tensor."""
        return self.of_kind(HISTOGRAM)

    @cached_property
    def groups(self) -> dict[str, GroupStatistics]:
        """Grouped histograms of tensors that were also observed by channels or blocks."""
        return self.of_kind(GROUPED_HISTOGRAM)

    @cached_property
    def channels(self) -> dict[str, NDArray[np.float32]]:
        """Channel ranges of equalized tensors, float32 [C, 2].

        A channel without finite values has (+inf, -inf).
        """
        return self.of_kind(CHANNEL_RANGES)

    def of_kind(self, kind: Kind[Value]) -> dict[Any, Value]:
        """Return the values of `kind` by what was observed."""
        return {source: value for (source, name), value in self.values.items() if name == kind.name}

    def __getitem__(self, tensor: str) -> TensorStatistics:
        """Return the statistics of `tensor`. Raises StatisticsError with the nearest names."""
        try:
            return self.tensors[tensor]
        except KeyError:
            hint = nearest(tensor, self.tensors)
            raise StatisticsError(
                f"no statistics for tensor {tensor!r}: observe again with this plan{hint}"
            ) from None

    def __contains__(self, tensor: object) -> bool:
        """Tell whether `tensor` was observed."""
        return tensor in self.tensors

    def of_groups(self, tensor: str, granularity: Granularity) -> GroupStatistics:
        """Return the statistics of the groups of `tensor` under `granularity`.

        Raises StatisticsError if the tensor, or its groups, were not observed.
        """
        observed, found = self[tensor], self.groups.get(tensor)
        if found is not None and found.granularity == granularity:
            return found
        known = PER_TENSOR if found is None else found.granularity
        raise StatisticsError(
            f"the statistics of tensor {tensor!r}, over {observed.elements} elements, are {known}, and the "
            f"plan wants them {granularity}; observe again with this plan"
        )

    def of_channels(self, tensor: str) -> NDArray[np.float32]:
        """Return the range of each channel of `tensor`, [C, 2]. Raises StatisticsError if not recorded."""
        if tensor in self.channels:
            return self.channels[tensor]
        raise StatisticsError(
            f"the statistics of tensor {tensor!r}, over {self[tensor].elements} elements, lack the channel "
            "ranges that the plan wants; observe again with it, or use equalize: none where it equalizes"
        )

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both data sets, which share no samples.

        Raises StatisticsError for different models or tensors, for data that overlaps, and for statistics of
        an interrupted run.
        """
        self.check_complete()
        other.check_complete()
        joined = self.join(other)
        check_apart(self, other)
        if joined.whole is not None and joined.data.samples > joined.whole.samples:
            raise StatisticsError(
                f"the parts have {joined.data.samples} samples together, and the ranges are of "
                f"{joined.whole.samples}; merge each part once"
            )
        return replace(joined, source=f"{self.source} + {other.source}")

    def check_complete(self) -> None:
        """Raise StatisticsError for statistics of an interrupted run."""
        if not self.complete:
            moments = len(self.of_kind(MOMENTS))
            reached = f"{moments} inputs" if moments else f"{self.feeds} feeds"
            raise StatisticsError(
                f"{self.source}: an interrupted run, which reached {reached}; continue it with `onnxfq "
                "observe --resume`"
            )

    def join(self, other: Statistics) -> Statistics:
        """Return the statistics of both parts of one run, whose data may repeat; otherwise as `merge`."""
        if self.model_sha256 != other.model_sha256:
            raise StatisticsError(
                f"statistics of different models do not merge ({self.model_sha256[:12]} and "
                f"{other.model_sha256[:12]}); observe both data sets with one model"
            )
        one_sided = set(self.values) ^ set(other.values)
        for kind in KINDS.values():
            odd = sorted(_tensor_of(source) for source, name in one_sided if name == kind.name)
            if odd:
                raise StatisticsError(
                    f"only one side has {kind.noun}tensor {odd[0]!r}; observe both with one plan"
                )
        values: dict[Key, Any] = {}
        for key, value in self.values.items():
            try:
                values[key] = KINDS[key[1]].merge(value, other.values[key])
            except ValueError as fault:
                raise StatisticsError(f"tensor {_tensor_of(key[0])!r}: {fault}") from None
        if self.whole != other.whole:
            raise StatisticsError(
                "the parts have different grids: their ranges are of other data; gather the ranges of both "
                "with --ranges, merge these, and gather the moments with --ranges-from"
            )
        complete, data = self.complete and other.complete, self.data + other.data
        return Statistics(self.model_sha256, self.feeds + other.feeds, values, complete, data, self.whole)

    @property
    def sha256(self) -> str:
        """Fingerprint of the statistics, equal for the same data in any order, batching or split."""
        digest = hashlib.sha256(self.model_sha256.encode())
        for kind in KINDS.values():
            for source, value in sorted(self.of_kind(kind).items(), key=lambda item: str(item[0])):
                digest.update(str(source).encode("utf-8", "surrogatepass") + kind.fingerprint(value))
        return digest.hexdigest()

    def check_model(self, sha256: str) -> None:
        """Raise StatisticsError unless the observed model has the hash `sha256`."""
        if self.model_sha256 != sha256:
            raise StatisticsError(
                f"the statistics were gathered from a model with SHA-256 {self.model_sha256[:12]}, this "
                f"one has {sha256[:12]}; observe this model with `onnxfq observe`"
            )

    def check_data(self, data: DataDigest) -> None:
        """Raise StatisticsError unless the statistics cover the samples with the digest `data`."""
        if self.data != data:
            raise StatisticsError(
                f"the statistics were gathered from other data: {self.data.samples} samples with digest "
                f"{self.data.hex[:12]}, these are {data.samples} with {data.hex[:12]}; observe these with "
                "`onnxfq observe`"
            )

    def save(
        self, path: str | Path, more: Iterable[tuple[InputKey, InputSums]] = (), count: int = 0
    ) -> Statistics:
        """Write an .npz for `load` completely or not at all, and return what it holds.

        Args:
            path: the file.
            more: moments that are gathered while they are written, so that memory holds those of one input.
            count: number of inputs of `more`; with fewer the file says that the run was interrupted.
        """
        written: dict[InputKey, Ends] = {}

        def noted() -> Iterator[tuple[InputKey, InputSums]]:
            for key, sums in more:
                yield key, sums
                written[key] = sums.ends

        def columns() -> Iterator[tuple[str, NDArray[Any]]]:
            values = {name: list(self.of_kind(kind).items()) for name, kind in KINDS.items()}
            for name, kind in KINDS.items():
                items: Iterable[tuple[Any, Any]] = values[name]
                yield from kind.pack(chain(items, noted()) if kind is MOMENTS else items)
            yield "format", np.asarray(FORMAT)
            yield "model_sha256", np.asarray(self.model_sha256)
            yield "feeds", np.asarray(self.feeds, np.int64)
            yield "complete", np.asarray(self.complete and len(written) >= count)
            yield "data", np.asarray(self.data.hex)
            yield "samples", np.asarray(self.data.samples, np.int64)
            yield "least", np.asarray(self.data.least, np.uint64)
            if self.whole is not None:
                yield "whole", np.asarray(self.whole.hex)
                yield "whole_samples", np.asarray(self.whole.samples, np.int64)

        with replace_file(path) as temporary:
            write_npz(temporary, columns())
        stored = cache(lambda: Statistics.load(path))  # later: commands move their files at the end
        values = dict(self.values)
        for key, ends in written.items():
            values[key, MOMENTS.name] = InputSums(ends, partial(_read_stored, stored, key))
        complete = self.complete and len(written) >= count
        return replace(self, values=values, complete=complete, source=str(path))

    @staticmethod
    def load(path: str | Path) -> Statistics:
        """Read a file of `save`; sums of moments stay in it. Raises StatisticsError for any fault."""
        try:
            names = npz_names(path)
            later = [name for name in names if is_read_later(name)]
            arrays = _check_columns(load_npz(path, set(names).difference(later)))
            return replace(_unpack(_StoredColumns(Path(path), arrays, later)), source=str(path))
        except StatisticsError:
            raise
        except FileNotFoundError:
            raise StatisticsError(f"no such file: {path}; make it with `onnxfq observe`") from None
        except Exception as fault:  # whatever the content of a damaged file makes NumPy and Python raise
            text = join_lines(fault)
            raise StatisticsError(
                f"{path} is not a statistics file ({text}); make it with `onnxfq observe`"
            ) from None


@dataclass(frozen=True)
class _StoredColumns(Mapping[str, NDArray[Any]]):
    """Columns of a file; those named in `later` are read when they are asked for."""

    path: Path
    arrays: Columns
    later: Sequence[str]

    def __iter__(self) -> Iterator[str]:
        return chain(self.arrays, self.later)

    def __len__(self) -> int:
        return len(self.arrays) + len(self.later)

    def __contains__(self, name: object) -> bool:
        return name in self.arrays or name in self.later  # without reading

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name] if name in self.arrays else load_npz(self.path, [name])[name]


def _read_stored(stored: Callable[[], Statistics], key: InputKey) -> MomentSums:
    return stored().of_kind(MOMENTS)[key].read()


def _tensor_of(source: str | InputKey) -> str:
    return source if isinstance(source, str) else source[0]


def check_apart(one: Statistics, other: Statistics) -> None:
    """Raise StatisticsError if both are of the same samples; a few equal ones are only noted."""
    if one.data.overlaps(other.data):
        raise StatisticsError(
            f"{one.source} ({one.data.samples} samples) and {other.source} ({other.data.samples}) hold the "
            "same samples, which would count twice; merge each part of the data once"
        )
    shared = one.data.count_shared(other.data)
    if shared:
        log.warning(
            "%s and %s both hold %d equal sample(s), which count twice", one.source, other.source, shared
        )


def _check_columns(columns: Columns) -> Columns:
    """Return the arrays with numbers in int64.

    Raises ValueError for an array of another type or shape than `save` writes, and for impossible numbers.
    """
    made = dict(columns)
    for forms in (_FORMS, *(kind.forms for kind in KINDS.values())):
        for name in columns.keys() & forms.keys():
            array, (kind, shape) = columns[name], forms[name]
            fits = len(shape) == array.ndim and all(
                w in (None, n) for w, n in zip(shape, array.shape, strict=True)
            )
            if array.dtype.kind not in kind or not fits:
                wanted = ["?" if size is None else size for size in shape]
                raise ValueError(f"{name!r} is {array.dtype} {list(array.shape)}, wanted is {kind} {wanted}")
            if kind == "iu" and array.size and array.min() < 0:
                raise ValueError(f"{name!r} has a negative number")
            if kind == "iu" and name != "least":
                if array.max(initial=0) > _MOST:
                    raise ValueError(f"{name!r} has a number beyond {_MOST}")
                made[name] = array.astype(np.int64)
            if kind == "f" and np.isnan(array).any():
                raise ValueError(f"{name!r} has NaN")
    return made


def _unpack(columns: Columns) -> Statistics:
    take_columns(columns, ("format", *_COLUMNS))
    if str(columns["format"]) != FORMAT:
        raise ValueError(f"its format is {columns['format']}, not {FORMAT}")
    values: dict[Key, Any] = {}
    for kind in KINDS.values():
        values |= kind.to_keys(kind.unpack(columns))
    samples, least = int(columns["samples"]), tuple(sorted(map(int, columns["least"])))
    whole = None
    if "whole" in columns:
        whole = DataDigest(int(str(columns["whole"]), 16), int(columns["whole_samples"]))
    return Statistics(
        str(columns["model_sha256"]),
        int(columns["feeds"]),
        values,
        complete=bool(columns["complete"]),
        data=DataDigest(int(str(columns["data"]), 16), samples, least),
        whole=whole,
    )
