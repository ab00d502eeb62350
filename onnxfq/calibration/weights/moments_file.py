"""`Moments`: second moments of the inputs of layers over a data set, and their file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from onnxfq.calibration.statistics.moments import ByteGrid, MomentSums
from onnxfq.calibration.statistics.statistics import check_apart
from onnxfq.calibration.weights.inputs import InputView
from onnxfq.calibration.weights.moments import InputMoments
from onnxfq.data import DataDigest
from onnxfq.errors import StatisticsError, nearest
from onnxfq.support.arrays import UNREADABLE, load_npz, npz_names, write_npz
from onnxfq.support.files import replace_file
from onnxfq.support.records import Record, join_lines

FORMAT = "onnxfq.moments/2"

Key = tuple[str, InputView]
"""Tensor and how a layer reads it: layers that share both share the moments."""

Ranges = Mapping[Key, NDArray[np.float64]]
"""Magnitudes of the largest and of the least value of each channel of an input, [2, channels]; at least 0."""

_HEAD = "head"


class _Input(Record):
    tensor: str
    view: InputView
    rows: int | None = pydantic.Field(ge=0)
    blocks: int = pydantic.Field(ge=0)


class _Head(Record):
    format: Literal["onnxfq.moments/2"]
    model_sha256: str
    samples: int = pydantic.Field(ge=0)
    data: str = pydantic.Field(pattern="^[0-9a-f]{64}$")
    data_samples: int = pydantic.Field(ge=0)
    least: tuple[Annotated[int, pydantic.Field(ge=0, lt=1 << 64)], ...] = ()
    whole: str = pydantic.Field("", pattern="^([0-9a-f]{64})?$")
    complete: bool = True
    inputs: tuple[_Input, ...]

    @pydantic.model_validator(mode="after")
    def _check_inputs(self) -> _Head:
        keys = [(one.tensor, one.view) for one in self.inputs]
        if len(set(keys)) < len(keys):
            raise ValueError("an input appears twice")
        return self


@dataclass(frozen=True)
class Moments:
    """Second moments of the inputs of layers over a data set (`.moments.npz`).

    The sums are integers on grids that the ranges decide, so that parts of the data with the same ranges
    merge to the sums of the whole, in any order.

    Attributes:
        model_sha256: hash of the model.
        samples: number of samples of the whole data, over which the rows are spread.
        data: the samples that were read, all of them or a part.
        ranges: magnitudes of the largest and of the least value of each channel, by input.
        sums: by input, read when they are asked for; empty if only ranges were gathered.
        complete: False after an interruption, which leaves inputs out.
        whole: digest of the whole data; empty if unknown, in older files.
        source: name in messages.
    """

    model_sha256: str
    samples: int
    data: DataDigest
    ranges: Ranges
    sums: Mapping[Key, MomentSums] = field(default_factory=dict, repr=False)
    complete: bool = True
    whole: str = ""
    source: str = field(default="these moments", compare=False, repr=False)

    @property
    def origin(self) -> str:
        """The data in words, behind the name of a method."""
        return f" by moments of {self.data.samples} samples with digest {self.data.hex[:12]}"

    def of(self, key: Key) -> MomentSums:
        """Return the sums of an input. Raises StatisticsError if they were not gathered."""
        if key in self.sums:
            return self.sums[key]
        if not self.sums:
            raise StatisticsError(
                "the file has ranges and no moments; give it to `onnxfq moments --ranges-from` to gather them"
            )
        tensor = key[0]
        hint = nearest(tensor, {name for name, _ in self.sums} - {tensor})
        raise StatisticsError(
            f"there are no moments for tensor {tensor!r} as {key[1].op_type} reads it: gather them for this "
            f"recipe with `onnxfq moments`{hint}"
        )

    def of_layer(self, keys: Iterable[Key]) -> InputMoments:
        """Return the moments over all inputs of a layer."""
        found = {key: self.of(key) for key in keys}
        return join_sums(found.values(), f"{next(iter(found))[0]!r} in {self.source}")

    def check_model(self, sha256: str) -> None:
        """Raise StatisticsError unless the moments are of the model with this hash."""
        if self.model_sha256 != sha256:
            raise StatisticsError(
                f"the moments were gathered from a model with SHA-256 {self.model_sha256[:12]}, this one has "
                f"{sha256[:12]}; gather them from this model with `onnxfq moments`, and let the recipe "
                "change no channels (smooth: none, equalize: none or depthwise)"
            )

    def check_whole(self) -> None:
        """Raise StatisticsError for moments of an interrupted run, or of a part of the data."""
        self._check_complete()
        if self.data.samples != self.samples:
            raise StatisticsError(
                f"the moments are of {self.data.samples} of {self.samples} samples; merge them with the "
                "other parts: `onnxfq merge-statistics`"
            )
        if self.whole not in ("", self.data.hex):
            raise StatisticsError(
                f"{self.source}: the moments are of {self.samples} samples with digest {self.data.hex[:12]}, "
                f"and their ranges of others, with {self.whole[:12]}; gather both from the same data"
            )

    def _check_complete(self) -> None:
        if not self.complete:
            raise StatisticsError(
                f"{self.source}: an interrupted run, which reached {len(self.sums)} inputs; continue it with "
                "`onnxfq moments --resume`"
            )

    def merge(self, other: Moments) -> Moments:
        """Return ranges or moments of both parts of the data.

        Raises StatisticsError for different models, inputs or grids, for ranges with moments, for parts that
        overlap, and for an interrupted run.
        """
        self._check_complete()
        other._check_complete()
        if self.model_sha256 != other.model_sha256:
            raise StatisticsError(
                f"moments of different models do not merge ({self.model_sha256[:12]} and "
                f"{other.model_sha256[:12]}); gather both from one model"
            )
        odd = sorted({name for name, _ in set(self.ranges) ^ set(other.ranges)})
        if odd:
            raise StatisticsError(f"only one part has tensor {odd[0]!r}; gather both with one recipe")
        odd = [key[0] for key, one in self.ranges.items() if one.shape != other.ranges[key].shape]
        if odd:
            raise StatisticsError(f"the parts differ in the channels of tensor {odd[0]!r}; gather both again")
        if bool(self.sums) != bool(other.sums):
            raise StatisticsError("one part has ranges alone, the other moments; merge files of one kind")
        ranges = {key: np.maximum(one, other.ranges[key]) for key, one in self.ranges.items()}
        check_apart(self, other)
        data = self.data + other.data
        made = replace(self, data=data, source=f"{self.source} + {other.source}")
        if not self.sums:
            return replace(made, samples=self.samples + other.samples, ranges=ranges, whole=data.hex)
        coarser = [
            key[0]
            for key, one in ranges.items()
            if not (one == self.ranges[key]).all() or not (one == other.ranges[key]).all()
        ]
        of_whole = ((one.samples, one.whole) for one in (self, other))
        if coarser or len(set(of_whole)) > 1:
            what = f"tensor {coarser[0]!r}" if coarser else f"of {self.samples} and {other.samples} samples"
            raise StatisticsError(
                f"the parts have different grids ({what}); gather the ranges of both with --ranges, merge "
                "these, and gather the moments with --ranges-from"
            )
        if data.samples > self.samples:
            raise StatisticsError(
                f"the parts have {data.samples} samples together, and the ranges are of {self.samples}; "
                "merge each part once"
            )
        return replace(made, sums=_Both(self.sums, other.sums))

    def check_inputs(self, keys: Iterable[Key]) -> None:
        """Raise StatisticsError for an input without ranges."""
        for tensor, view in keys:
            if (tensor, view) not in self.ranges:
                raise StatisticsError(
                    f"the file has no ranges for tensor {tensor!r} as {view.op_type} reads it; gather them "
                    "for this recipe with `onnxfq moments --ranges`"
                )

    def save(self, path: str | Path) -> None:
        """Write an .npz for `load` completely or not at all; memory holds one input at a time."""
        found = ((key, ends, self.sums.get(key)) for key, ends in self.ranges.items())
        self.write(path, self.model_sha256, self.samples, self.data, found, whole=self.whole)

    @staticmethod
    def write(
        path: str | Path,
        model_sha256: str,
        samples: int,
        data: DataDigest,
        found: Iterable[tuple[Key, NDArray[np.float64], MomentSums | None]],
        count: int | None = None,
        whole: str = "",
    ) -> Moments:
        """Write the file of `save` from ranges and sums one after the other, and return what it holds.

        A file with fewer inputs than `count` says that the run was interrupted.
        """
        inputs: list[_Input] = []
        ranges: dict[Key, NDArray[np.float64]] = {}

        def arrays() -> Iterator[tuple[str, NDArray[Any]]]:
            for number, (key, ends, sums) in enumerate(found):
                yield f"ends/{number}", ends
                blocks = () if sums is None else sums.blocks
                for block, array in enumerate(blocks):
                    yield f"sums/{number}/{block}", array
                rows = None if sums is None else sums.rows
                inputs.append(_Input(tensor=key[0], view=key[1], rows=rows, blocks=len(blocks)))
                ranges[key] = ends
            head = _Head(
                format=FORMAT,
                model_sha256=model_sha256,
                samples=samples,
                inputs=tuple(inputs),
                complete=count in (None, len(inputs)),
                data=data.hex,
                data_samples=data.samples,
                least=data.least,
                whole=whole,
            )
            yield _HEAD, np.asarray(head.model_dump_json())

        with replace_file(path) as temporary:
            write_npz(temporary, arrays())
        sums = _stored_sums(path, inputs, ranges)
        complete = count in (None, len(inputs))
        return Moments(model_sha256, samples, data, ranges, sums, complete, whole, str(path))

    @staticmethod
    def load(path: str | Path) -> Moments:
        """Read a file of `save`; the sums stay in it. Raises StatisticsError in one line for any fault."""
        try:
            head = _Head.model_validate_json(str(load_npz(path, [_HEAD])[_HEAD]))
            held = npz_names(path)
            for number, one in enumerate(head.inputs):
                found = sum(name.startswith(f"sums/{number}/") for name in held)
                if one.blocks != found or one.blocks > 0 and one.rows is None:
                    raise ValueError(
                        f"its head counts {one.blocks} blocks of {one.tensor!r}, and it has {found}"
                    )
            names = [f"ends/{number}" for number in range(len(head.inputs))]
            arrays = load_npz(path, names)
            ranges = {
                (one.tensor, one.view): _check_ends(np.asarray(arrays[name], np.float64))
                for name, one in zip(names, head.inputs, strict=True)
            }
            sums = _stored_sums(path, head.inputs, ranges)
            data = DataDigest(int(head.data, 16), head.data_samples, head.least)
            return Moments(
                head.model_sha256, head.samples, data, ranges, sums, head.complete, head.whole, str(path)
            )
        except FileNotFoundError:
            raise StatisticsError(f"no such file: {path}; make it with `onnxfq moments`") from None
        except Exception as fault:  # whatever the content of a damaged file makes NumPy and pydantic raise
            raise _unreadable(path, fault) from None


def is_moments(path: str | Path) -> bool:
    """Tell whether a file is one of `Moments.save`."""
    try:
        return _HEAD in load_npz(path, [_HEAD])
    except UNREADABLE:
        return False


def join_sums(sums: Iterable[MomentSums], name: str) -> InputMoments:
    """Return the moments of a layer over the sums of all its inputs; `name` of a tensor is for messages.

    Raises StatisticsError for inputs of different sizes.
    """
    found = list(sums)
    sizes = {one.left.shape for one in found}
    if len(sizes) > 1:
        raise StatisticsError(f"the moments of tensor {name} and others of its layer differ in size: {sizes}")
    return InputMoments(
        reduce(np.add, (one.matrix() for one in found)), sum(one.rows for one in found), name=name
    )


def _unreadable(path: str | Path, fault: object) -> StatisticsError:
    text = join_lines(fault)
    return StatisticsError(f"{path} is not a file of moments ({text}); make it with `onnxfq moments`")


def _check_ends(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `ends`. Raises ValueError unless they are two finite magnitudes of each channel."""
    if ends.ndim != 2 or len(ends) != 2 or not (np.isfinite(ends) & (ends >= 0)).all():
        raise ValueError(f"ranges of shape {ends.shape} are not two finite magnitudes for each channel")
    return ends


def _stored_sums(path: str | Path, inputs: Sequence[_Input], ranges: Ranges) -> Mapping[Key, MomentSums]:
    has_sums = all(one.rows is not None for one in inputs)
    return _Stored(Path(path), tuple(inputs), ranges) if has_sums else {}


@dataclass(frozen=True)
class _Stored(Mapping[Key, MomentSums]):
    """Sums in a file."""

    path: Path
    inputs: tuple[_Input, ...]
    ranges: Ranges

    def __iter__(self) -> Iterator[Key]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def __contains__(self, key: object) -> bool:
        return key in self.ranges  # without reading

    def __getitem__(self, key: Key) -> MomentSums:
        if key not in self.ranges:
            raise KeyError(key)
        number = next(n for n, one in enumerate(self.inputs) if (one.tensor, one.view) == key)
        one = self.inputs[number]
        names = [f"sums/{number}/{block}" for block in range(one.blocks)]
        try:
            arrays = load_npz(self.path, names)
            steps = self._steps(key, *(arrays[name].shape for name in names[:1]))
            found = MomentSums(tuple(arrays[name] for name in names), steps, steps, one.rows or 0)
            found.check()
            return found
        except (*UNREADABLE, KeyError) as fault:
            raise _unreadable(self.path, f"tensor {key[0]!r}: {join_lines(fault)}") from None

    def _steps(self, key: Key, shape: tuple[int, ...] = (0, 0)) -> NDArray[np.float64]:
        """Return the steps of all inputs. Raises ValueError if a block of `shape` is not theirs."""
        view, channels = key[1], self.ranges[key].shape[1]
        window = prod(view.kernel) if view.op_type == "Conv" else 1
        if len(shape) < 2 or view.group < 1 or prod(shape[:2]) != channels * window:
            raise ValueError(f"sums of shape {list(shape)} do not fit {channels} channels")
        return view.spread(ByteGrid.of(self.ranges[key]).steps)


@dataclass(frozen=True)
class _Both(Mapping[Key, MomentSums]):
    """Sums over two parts of the data."""

    one: Mapping[Key, MomentSums]
    other: Mapping[Key, MomentSums]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.one)

    def __len__(self) -> int:
        return len(self.one)

    def __getitem__(self, key: Key) -> MomentSums:
        return self.one[key].merge(self.other[key])
