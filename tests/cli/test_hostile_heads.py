"""Files whose heads and columns say what their content does not hold: one line, and little memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_relu, stage, weights
from numpy.typing import NDArray
from observed_models import X, by_groups, feeds_of, folder, narrow_channels

import onnxfq
from onnxfq.calibration.statistics import Statistics
from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.weights import InputMoments, Moments
from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.data.digest import LEAST, DataDigest
from onnxfq.documents.encodings import Encodings
from onnxfq.errors import OnnxfqError, PlanError, StatisticsError
from onnxfq.graph.io.load import load
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.plan import make_plan

__all__ = ["folder"]  # a fixture

Array = NDArray[Any]
BILLION = 10**9


def save(path: Path, arrays: dict[str, Array]) -> Path:
    """Write an .npz."""
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """Columns of statistics by tensors and channels."""
    path = tmp_path_factory.mktemp("statistics") / "s.npz"
    model = load(narrow_channels())
    collect_statistics(model, make_plan(model, by_groups(granularity="per_axis")), feeds_of(3)).save(path)
    return dict(np.load(path))


NUMBERS = {
    "largest": lambda one: np.full_like(one, np.iinfo(one.dtype).max),
    "beyond int64": lambda one: np.full(one.shape, 1 << 63, np.uint64),
    "negative": lambda one: -one.astype(np.int64) - 1,
    "twice": lambda one: np.concatenate([one, one]) if one.ndim else None,
    "none": lambda one: one[:0] if one.ndim else None,
    "as floats": lambda one: one.astype(np.float64),
}
FLOATS = {"NaN": lambda one: one * np.nan, "a text": lambda one: np.full(one.shape, "1")}
BLOCKS = (
    f'{{"axis": 1, "shape": [{BILLION}, {BILLION}, {BILLION}]}}',
    '{"axis": 1, "shape": [-1, -3]}',
    '{"axis": 1, "shape": ["a"]}',
    '{"axis": 1}',
    '{"block_size": 3, "shape": [3]}',
    "[" * 100_000,
    "7",
)


def test_numbers_of_statistics(columns: dict[str, Array], tmp_path: Path) -> None:
    """A column with other numbers than its file can hold is refused; it decides no size in memory."""
    refused = 0
    for name, array in columns.items():
        kind = array.dtype.kind
        changes: dict[str, Callable[[Array], Array | None]] = (
            NUMBERS if kind in "iu" and name != "least" else FLOATS if kind == "f" and array.size else {}
        )
        for what, change in changes.items():
            made = change(array)
            if made is None or (name in ("feeds", "samples") and what != "as floats" and (made >= 0).all()):
                continue  # counts of feeds are free
            path = save(tmp_path / "h.npz", columns | {name: made})
            with pytest.raises(StatisticsError, match=r"h\.npz is not a statistics file"):
                Statistics.load(path)
            refused += 1
    assert refused > 40


@pytest.mark.parametrize("text", BLOCKS, ids=[text[:40] for text in BLOCKS])
def test_shapes_of_groups(text: str, columns: dict[str, Array], tmp_path: Path) -> None:
    """The groups of a tensor are those that the columns hold."""
    made = columns | {"group_blocks": np.full(columns["group_blocks"].shape, text)}
    with pytest.raises(StatisticsError, match=r"h\.npz is not a statistics file"):
        Statistics.load(save(tmp_path / "h.npz", made))


NAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "window": lambda name: name["view"].update(op_type="Conv", kernel=[BILLION, BILLION]),
    "groups": lambda name: name["view"].update(group=BILLION),
    "no groups": lambda name: name["view"].update(group=0),
    "field": lambda name: name.update(more=1),
    "no view": lambda name: name.pop("view"),
}
ARRAYS: dict[str, Array] = {"rows": np.asarray(-1), "ends": np.full((2, 32), np.inf), "more": np.zeros(1)}


@pytest.fixture
def arrays(folder: Path) -> dict[str, Array]:
    """Arrays of a file of moments of the model in `folder`."""
    model = onnxfq.load(folder / "m.onnx")
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"}))
    onnxfq.gather_moments(model, plan, X, folder / "m.npz")
    return dict(np.load(folder / "m.npz"))


def column_of(arrays: dict[str, Array], field: str) -> str:
    """Return the column with a field of the moments of the first input."""
    return next(name for name in arrays if name.endswith(f"/{field}"))


def round_by(folder: Path, arrays: dict[str, Array]) -> None:
    """Read all moments of `arrays`, and round with them."""
    path = save(folder / "h.npz", arrays)
    Moments.load(path).statistics.save(folder / "again.npz")
    onnxfq.quantize(
        folder / "m.onnx",
        folder / "x.npz",
        folder / "q.onnx",
        recipe=onnxfq.load_recipe(DEFAULT_RECIPE).override(weights={"rounding": "gptq"}),
        sources=onnxfq.Sources(moments=path),
    )


@pytest.mark.parametrize("what", NAMES)
def test_names_of_moments(what: str, folder: Path, arrays: dict[str, Array]) -> None:
    """The name of an input that does not fit its arrays is refused, before any memory is taken."""
    made = {}
    for column, array in arrays.items():
        kind, text, field = column.partition("/")[0], *column.partition("/")[2].rpartition("/")[::2]
        if field:
            name = json.loads(text)
            NAMES[what](name)
            column = f"{kind}/{json.dumps(name)}/{field}"
        made[column] = array
    with pytest.raises(StatisticsError, match=r"h\.npz is not a statistics file"):
        round_by(folder, made)


@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_of_moments(what: str, folder: Path, arrays: dict[str, Array]) -> None:
    """Rows and ranges that none have, and an array that moments lack, are refused."""
    name = column_of(arrays, "sums0").removesuffix("sums0")
    with pytest.raises(StatisticsError, match=r"h\.npz is not a statistics file"):
        round_by(folder, arrays | {f"{name}{what}": ARRAYS[what]})


def indefinite(sums: Array) -> Array:
    """Symmetric sums with a positive diagonal, larger off it than on it."""
    made = np.full_like(sums, sums.max())
    made[:] = made.max()
    for group in made:
        np.fill_diagonal(group, 1)
    return made


SUMS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "negative": (np.negative, "a sum of squares is negative"),
    "of floats": (lambda sums: sums.astype(np.float64), "its sums are"),
    "of one input": (lambda sums: sums[:, :1, :1], "do not fit 32 channels"),
    "flat": (np.ravel, "do not fit 32 channels"),
    "not symmetric": (lambda sums: np.triu(sums[0])[None], "not symmetric"),
    "indefinite": (indefinite, "not positive definite; .*gather them"),
}


@pytest.mark.parametrize("what", SUMS)
def test_sums_that_are_no_moments(what: str, folder: Path, arrays: dict[str, Array]) -> None:
    """One line names the file and the tensor; nothing is written."""
    (change, words), name = SUMS[what], column_of(arrays, "sums0")
    with pytest.raises(StatisticsError, match=words) as raised:
        round_by(folder, arrays | {name: change(arrays[name])})
    assert "h.npz" in str(raised.value) and "'x'" in str(raised.value)
    assert not (folder / "q.onnx").exists()


def test_moments_of_fewer_layers(folder: Path) -> None:
    """A tensor that the recipe rounds and the file lacks is named, with the remedy."""
    model = onnxfq.load(folder / "m.onnx")
    recipe = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"})
    fewer = onnxfq.Recipe.model_validate(
        recipe.model_dump() | {"overrides": [{"tensors": ["w2"], "keep_float": True}]}
    )
    onnxfq.gather_moments(model, onnxfq.make_plan(model, fewer), X, folder / "f.npz")
    with pytest.raises(StatisticsError, match="no moments for tensor 'r' as MatMul reads it: gather them"):
        onnxfq.quantize(
            folder / "m.onnx",
            folder / "x.npz",
            recipe=onnxfq.load_recipe(DEFAULT_RECIPE).override(weights={"rounding": "gptq"}),
            sources=onnxfq.Sources(moments=folder / "f.npz"),
        )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_moments_that_are_not_finite(value: float) -> None:
    """Wherever they come from, and for both methods."""
    whole = np.eye(4)[None].copy()
    whole[0, 1, 1] = value
    with pytest.raises(StatisticsError, match="moments of tensor 't' are not finite"):
        _ = InputMoments(whole, 4, name="'t'").factor
    with pytest.raises(StatisticsError, match="of tensor 't' are of 1 groups of 4 inputs, .* has 1 of 5"):
        InputMoments(np.eye(4)[None], 4, name="'t'").check_size(1, 5)


def test_array_files_of_encodings(tmp_path: Path) -> None:
    """Shapes that ask for more scales than the array file has are refused."""
    staged = stage(conv_relu())
    path = tmp_path / "e.json"
    staged.encodings.save(path)
    content = json.loads(path.read_text())
    blocked = next(one for one in content["encodings"] if one["param_shape"])
    for shape in ([BILLION, BILLION], [-4], [BILLION], ["a"], [1.5], None):
        blocked["param_shape"] = shape
        path.write_text(json.dumps(content))
        with pytest.raises(PlanError, match=r"e\.json"):
            Encodings.load(path)


def test_sizes_of_external_data(tmp_path: Path) -> None:
    """A place beyond the end of the data file is refused, before any memory is taken."""
    model = conv_relu()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    made = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    entries = {one.key: one for one in made.graph.initializer[0].external_data}
    for key, value in (
        ("length", 10**15),
        ("offset", 10**15),
        ("offset", -8),
        ("length", -8),
        ("length", "x"),
    ):
        before = entries[key].value
        entries[key].value = str(value)
        onnx.save(made, tmp_path / "h.onnx")
        with pytest.raises(OnnxfqError, match=r"h\.onnx|m\.data"):
            load(tmp_path / "h.onnx")
        entries[key].value = before


def digest(numbers: range) -> DataDigest:
    """The digest of samples with these numbers."""
    found = DataDigest()
    for number in numbers:
        found = found.plus(hash((number, "sample")) % (1 << 64) << 192)
    return found


@pytest.mark.parametrize("scale", [1, 40])
def test_data_that_overlaps(scale: int) -> None:
    """Parts of any order, sizes and cuts; exact for as many samples as are remembered."""
    whole, one, two = (digest(range(a * scale, b * scale)) for a, b in ((0, 60), (0, 30), (30, 60)))
    joined = two + one
    assert joined == whole and joined.least == whole.least and len(whole.least) <= LEAST
    assert not one.overlaps(two) and not DataDigest().overlaps(DataDigest())
    for other in (one, whole, digest(range(10 * scale, 60 * scale))):
        assert one.overlaps(other) and other.overlaps(one)
    few = digest(range(25 * scale, 60 * scale))
    assert not one.overlaps(few) and one.count_shared(few) > 0 == one.count_shared(two)
    assert (DataDigest(5, 3) + one).least == ()  # unknown parts stay unknown
    assert DataDigest(5, 3).overlaps(DataDigest(5, 3)) and not DataDigest(5, 3).overlaps(DataDigest(6, 3))


def test_samples_that_repeat() -> None:
    """If samples repeat within a set, one in both sets does not show that they overlap."""
    dark = digest(range(1))
    one, two = digest(range(1, 30)) + dark + dark, digest(range(30, 60)) + dark
    assert not one.overlaps(two) and one.overlaps(one)


def test_symmetric_sums() -> None:
    """The square at the top of each block, over all groups, is checked; what lies below is free."""
    x = weights(2, 300, 40).astype(np.float64)
    sums = np.rint(x @ x.swapaxes(1, 2) * 100).astype(np.int32)
    steps = np.ones((2, 300))
    blocks = (sums[:, :, :256], sums[:, 256:, 256:])
    MomentSums(blocks, steps, steps, 40).check()
    blocks[1][1, 3, 5] += 1
    with pytest.raises(ValueError, match="not symmetric"):
        MomentSums(blocks, steps, steps, 40).check()
