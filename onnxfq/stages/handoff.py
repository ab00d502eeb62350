"""`handoff`: folder for the machine with the GPU."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Data, Feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import DataError, OutputError, RecipeError, nearest
from onnxfq.graph.io.load import read_model
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import output_names
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.check import check
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.support.files import check_writable, replace_file, write_text
from onnxfq.targets.build_options import BuildOptions
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.profiles import Profile, cover_feeds, profiles
from onnxfq.targets.registry import DEFAULT_TARGET, collect_parts
from onnxfq.targets.target import Kit, Samples

SAMPLES = 4
"""Number of feeds in the folder."""

_DATA_SEED = 0
_MOST_RANDOM = 1 << 27


@dataclass(frozen=True)
class Handoff:
    """Result of `handoff`: the check of the model, shapes by input, files, and notes on what is missing."""

    folder: Path
    check: CheckResult
    profiles: dict[str, Profile]
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass
class _Folder:
    """A folder while it is filled."""

    path: Path
    files: list[str] = field(default_factory=list)

    def text(self, name: str, content: str) -> None:
        write_text(self.path / name, content)
        self.files.append(name)

    def binary(self, name: str, content: bytes) -> None:
        with replace_file(self.path / name) as temporary:
            temporary.write_bytes(content)
        self.files.append(name)


def handoff(
    model: str | Path | onnx.ModelProto,
    folder: str | Path,
    *,
    target: str = DEFAULT_TARGET,
    data: Data | None = None,
    build: BuildOptions | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    options: RunOptions | None = None,
) -> Handoff:
    """Write the Q/DQ `model`, shapes, commands, samples with expected outputs and findings into `folder`.

    Args:
        model: a path or a ModelProto.
        folder: a new or an empty folder.
        target: a target with tools.
        data: its first feeds are the samples; without data they are random numbers.
        build: build as well for the findings, as `check` does.
        shapes: of inputs with open dimensions, as for `check`.
        options: batch, threads and how data is read.

    Raises OutputError for a folder with files in it, RecipeError for a target without tools, and the errors
    of reading the model and the data.
    """
    options = options or RunOptions()
    kit, path = _kit_of(target), _check_folder(Path(folder))
    proto, _, source = read_model(model)
    found = check(proto, target, build=build).model_copy(update={"source": source})
    notes = []
    if data is None:
        feeds = [_random_feed(proto, profiles(proto, shapes or {}))]
        notes.append("the samples are random numbers: no data was given")
    else:
        feeds = list(islice(open_feeds(proto, data, options.batch, options.data), SAMPLES))
    wanted = cover_feeds(profiles(proto, shapes or {}), feeds)
    missing = explain_unsupported(proto)
    results = [] if missing else list(_results(proto, feeds, options.threads))
    if missing:
        notes.append(f"there are no expected outputs: {missing}")
    first = {name: array.shape for name, array in feeds[0].items()}
    named = {name for arrays in (*feeds, *results) for name in arrays}
    feeds, results = [_numbers(feed) for feed in feeds], [_numbers(result) for result in results]
    texts = sorted(named - {name for arrays in (*feeds, *results) for name in arrays})
    if texts:
        notes.append(f"{', '.join(texts)} hold no numbers, and are left out of the samples")
    with _fill_folder(path):
        for name in ("inputs", "raw", *(["outputs"] if results else [])):
            (path / name).mkdir()
        out = _Folder(path)
        save(proto, path / "model.onnx")
        out.files.append("model.onnx")
        _write_samples(out, kit, feeds, results)
        ends = {
            name: dict(zip(("min", "opt", "max"), profile, strict=True)) for name, profile in wanted.items()
        }
        out.text("profiles.json", json.dumps(ends, indent=2) + "\n")
        out.text("findings.json", found.model_dump_json(indent=2) + "\n")
        for name, text in kit.texts(Samples(proto, wanted, first, feeds, results)).items():
            out.text(name, text)
        out.text("README.md", kit.readme(found, notes, bool(results)))
    return Handoff(path, found, wanted, tuple(out.files), tuple(notes))


def _kit_of(target: str) -> Kit:
    kits = collect_parts(lambda one: one.kit)
    if target not in kits:
        raise RecipeError(f"there are no tools to hand over to target {target!r}{nearest(target, kits)}")
    return kits[target]


def _check_folder(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(
            f"{path} exists and is not an empty folder; give a new one, so that no files are mixed"
        )
    check_writable(path / "any" if path.exists() else path)
    return path


@contextmanager
def _fill_folder(folder: Path) -> Iterator[None]:
    """Create `folder` to be filled; on an error remove its content, and the folder if it is new."""
    new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if new:
            folder.rmdir()
        raise


def _random_feed(proto: onnx.ModelProto, wanted: Mapping[str, Profile]) -> Feed:
    """Return one feed of the most frequent shapes: normal numbers for floats, zeros and ones for integers."""
    rng = np.random.default_rng(_DATA_SEED)
    feed: dict[str, NDArray[Any]] = {}
    for spec in input_specs(proto):
        shape = wanted[spec.name][1] if spec.name in wanted else tuple(size or 1 for size in spec.shape or ())
        if prod(shape) > _MOST_RANDOM:
            raise DataError(
                f"input {spec.name!r} of shape {list(shape)} has over {_MOST_RANDOM:,} elements, too many "
                "for a random sample; give data, or a smaller --shape"
            )
        values = rng.normal(size=shape) if spec.dtype.kind not in "iub" else rng.integers(0, 2, shape)
        feed[spec.name] = np.asarray(values).astype(spec.dtype)
    return feed


def _results(
    proto: onnx.ModelProto, feeds: Sequence[Feed], threads: int
) -> Iterator[dict[str, NDArray[Any]]]:
    session = Session(proto, threads, exact=True)
    for feed in feeds:
        yield dict(zip(output_names(proto), session.run(feed), strict=True))


def _write_samples(
    out: _Folder, kit: Kit, feeds: Sequence[Feed], results: Sequence[Mapping[str, NDArray[Any]]]
) -> None:
    for name, array in feeds[0].items():
        out.binary(f"raw/{kit.raw_name(name)}.bin", np.ascontiguousarray(array).tobytes())
    for number, feed in enumerate(feeds):
        out.binary(f"inputs/{number}.npz", _npz(feed))
    for number, result in enumerate(results):
        out.binary(f"outputs/{number}.npz", _npz(result))


def _numbers(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the numeric arrays: strings, sequences and maps cannot be samples."""
    return {n: a for n, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS"}


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, allow_pickle=False, **arrays)
    return held.getvalue()
