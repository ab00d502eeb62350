"""`handoff`: folder for the machine with the GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Data, Feed
from onnxfq.errors import DataError, ModelError, RecipeError, nearest
from onnxfq.execution.drawn_inputs import draw_feed
from onnxfq.graph.io.load import read_model
from onnxfq.graph.io.save import save
from onnxfq.graph.signature import output_names
from onnxfq.interchange.genai_folder import is_folder
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.runtime.session import Session
from onnxfq.runtime.unsupported_ops import explain_unsupported
from onnxfq.stages.insert import find_target
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.support.arrays import write_npz
from onnxfq.support.files import check_folder, replace_folder
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.profiles import (
    ENDS,
    Ends,
    Profile,
    Range,
    ShapeCount,
    check_covered,
    cover_shapes,
    profiles,
    set_ends,
)
from onnxfq.targets.target import DEFAULT_TARGET, BuildOptions, Kit, Samples, collect_parts
from onnxfq.tools.check import check
from onnxfq.tools.runtimes import onnxruntime

SAMPLES = 4
"""Number of feeds in the folder."""


@dataclass(frozen=True)
class Handoff:
    """Result of `handoff`: the check of the model, shapes by input, files, and notes on what is missing."""

    folder: Path
    check: CheckResult
    profiles: dict[str, Profile]
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def handoff(
    model: str | Path | onnx.ModelProto,
    folder: str | Path,
    *,
    target: str = DEFAULT_TARGET,
    data: Data | None = None,
    build: BuildOptions | None = None,
    shapes: Mapping[str, Sequence[int | Range]] | None = None,
    ends: Ends | None = None,
    gpus: Sequence[str] = (),
    options: RunOptions | None = None,
) -> Handoff:
    """Write the Q/DQ `model`, shapes, commands, samples with expected outputs and findings into `folder`.

    Args:
        model: a path or a ModelProto.
        folder: a new or an empty folder.
        target: a target with tools.
        data: its first feeds are the samples, and the shapes of all its feeds make the profiles; without data
            the samples are random numbers.
        build: build as well for the findings, as `check` does, for the profiles of the folder.
        shapes: of inputs with open dimensions, as for `check`.
        ends: shapes that replace those of the profiles: {"min" | "opt" | "max": {input: shape}}.
        gpus: names or compute capabilities, as for `check`.
        options: batch, threads and how data is read.

    Raises OutputError for a folder with files in it, RecipeError for a target without tools, DataError for
    shapes that do not fit the model or the samples, and the errors of reading the model and the data.
    """
    options, shapes, path = options or RunOptions(), shapes or {}, Path(folder)
    kit = _kit_of(target)
    check_folder(path)
    if is_folder(model):
        raise ModelError(f"{model} is a folder, which GenAI loads as it is: copy it to its machine")
    proto, _, source = read_model(model)
    notes: list[str] = []
    count = ShapeCount()
    if data is None:
        wanted = set_ends(proto, profiles(proto, shapes), ends or {})
        feeds = [draw_feed(proto, wanted)]
        notes.append("the samples are random numbers: no data was given")
    else:
        given = count.over(open_feeds(proto, data, options.batch, options.data.unsurveyed.padded))
        feeds = list(islice(given, SAMPLES))
        for _ in given:  # only their shapes count
            pass
        wanted = set_ends(proto, cover_shapes(proto, count, shapes), ends or {})
    check_covered(wanted, feeds)
    covered = None if build is None else replace(build, covered=wanted)
    found = check(proto, target, build=covered, gpus=gpus).model_copy(update={"source": source})
    if (made_for := find_target(proto)) not in ("", target):
        notes.append(f"the file is for {made_for}: a recipe of {target} makes one for this folder")
    missing = explain_unsupported(proto)
    results = [] if missing else list(onnxruntime(proto, feeds, output_names(proto), options.threads))
    agreements = {} if missing else _compare_roundings(proto, feeds, results, options.threads)
    if missing:
        notes.append(f"there are no expected outputs: {missing}")
    first = {name: array.shape for name, array in feeds[0].items()}
    named = {name for arrays in (*feeds, *results) for name in arrays}
    feeds, results = [_numbers(feed) for feed in feeds], [_numbers(result) for result in results]
    texts = sorted(named - {name for arrays in (*feeds, *results) for name in arrays})
    if texts:
        notes.append(f"left out of the samples, because they hold no numbers: {', '.join(texts)}")
    samples = Samples(proto, wanted, first, feeds, results, agreements)
    with replace_folder(path) as made:
        _write(made, kit, samples, found, notes)
        files = sorted(str(one.relative_to(made)) for one in made.rglob("*") if one.is_file())
    return Handoff(path, found, wanted, tuple(files), tuple(notes))


def _write(folder: Path, kit: Kit, samples: Samples, found: CheckResult, notes: Sequence[str]) -> None:
    """Fill the new `folder`."""
    save(samples.proto, folder / "model.onnx")
    for name, arrays in (("inputs", samples.feeds), ("outputs", samples.results)):
        for number, one in enumerate(arrays):
            (folder / name).mkdir(exist_ok=True)
            write_npz(folder / name / f"{number}.npz", one.items())
    (folder / "raw").mkdir()
    for name, file in kit.raw_files(samples.feeds[0]).items():
        (folder / "raw" / file).write_bytes(np.ascontiguousarray(samples.feeds[0][name]).tobytes())
    ends = {name: dict(zip(ENDS, profile, strict=True)) for name, profile in samples.profiles.items()}
    texts = {
        "profiles.json": json.dumps(ends, indent=2) + "\n",
        "findings.json": found.model_dump_json(indent=2) + "\n",
        **kit.texts(samples),
        "README.md": kit.readme(found, notes, samples),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _kit_of(target: str) -> Kit:
    kits = collect_parts(lambda one: one.kit)
    if target not in kits:
        raise RecipeError(f"there are no tools to hand over to target {target!r}{nearest(target, kits)}")
    return kits[target]


def _compare_roundings(
    proto: onnx.ModelProto, feeds: Sequence[Feed], results: Sequence[Mapping[str, Any]], threads: int
) -> dict[str, float]:
    """Return each output's least cosine with the output of onnxruntime's optimised kernels, over all feeds.

    Those round at other places, as kernels of other runtimes do. Empty if they cannot run the model.
    """
    try:
        session, names = Session(proto, threads), output_names(proto)
        others = [dict(zip(names, session.run(feed), strict=True)) for feed in feeds]
    except (ModelError, DataError):
        return {}
    least: dict[str, float] = {}
    for one, other in zip(results, others, strict=True):
        for name, array in _numbers(one).items():
            cosine = ErrorSums.from_arrays(array, other[name]).cosine
            least[name] = min(least.get(name, 1.0), cosine if np.isfinite(cosine) else 1.0)
    return least


def _numbers(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the numeric arrays: strings, sequences and maps cannot be samples."""
    return {n: a for n, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS"}
