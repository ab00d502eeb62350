"""Result of `quantize` as a record for programs and pages."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Literal

import numpy as np
import onnx

from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.layers import LayerTable
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.scores import Evaluation
from onnxfq.documents.trial import Trial
from onnxfq.graph.external.sizes import weight_bytes
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.layer_table import layer_table
from onnxfq.report.text import describe_samples, list_lines
from onnxfq.report.thumbnails import with_thumbnails
from onnxfq.runtime.ort import onnxruntime
from onnxfq.support.records import Amount, Count, PrintedRecord, Record
from onnxfq.tools.build_written import BuildRecord
from onnxfq.version import VERSION


class CoverageCount(Record):
    """Low-precision nodes of one operator, out of all."""

    op_type: str
    quantized: Count
    total: Count


class Sizes(Record):
    """Bytes before and after: of the files, or of the weights if nothing was written."""

    before: Count
    after: Count


class Origin(Record):
    """Origin of a result.

    Attributes:
        command: the command line; empty from Python.
        date: of the record, in UTC.
        versions: of the libraries.
        model_sha256: of the float model.
        data_sha256: sum of the SHA-256 of the calibration samples; empty if unknown.
        feeds: number of observed feeds.
        encodings: kind of the file that gave encodings; empty without one.
    """

    command: str = ""
    date: str
    versions: dict[str, str]
    model_sha256: str
    data_sha256: str = ""
    feeds: Count
    encodings: str = ""


class ResultRecord(PrintedRecord):
    """Result of `quantize` without models, statistics and scales: other files hold these (`.json`).

    Attributes:
        notes: changes made by loading, and what was done with external encodings and rounded weights.
        trials: every remedy that could be tried, with its figures and why it was kept or left.
        equalization: what was done to channels; None if nothing was.
        engine: what the target's builder made of the written model; None if it was not built.
        table: layers and tensors with their noise.
        samples: those of the comparison in words; empty without one.
    """

    format: Literal["onnxfq.result/2"] = "onnxfq.result/2"
    source: str
    recipe: Recipe
    origin: Origin
    evaluation: Evaluation
    coverage: tuple[CoverageCount, ...]
    bytes: Sizes
    notes: tuple[str, ...] = ()
    plan: Plan
    floats: FloatPlan | None = None
    trials: tuple[Trial, ...] = ()
    equalization: Equalization | None = None
    seconds: dict[str, Amount]
    engine: BuildRecord | None = None
    table: LayerTable
    samples: str = ""


def quantize_record(
    result: QuantizeResult,
    sizes: tuple[int, int] | None = None,
    command: str = "",
    engine: BuildRecord | None = None,
    thumbnails: bool = False,
) -> ResultRecord:
    """Return the record of a result; both models run again on its samples.

    Args:
        result: of `quantize`.
        sizes: bytes of the files of the float model and of the written model; None takes the weights.
        command: the command line.
        engine: what the target's builder made of the written model.
        thumbnails: add pictures of the worst samples, which are the user's data.
    """
    # The table of trials folds what the judge chose.
    is_tried = any(isinstance(trial.evidence, Equalization) for trial in result.trials)
    before, after = sizes or (weight_bytes(result.model.proto), weight_bytes(result.qdq))
    steps = list_lines(result.matched, None if is_tried else result.equalization, result.rounding)
    return ResultRecord(
        source=result.model.source,
        recipe=result.recipe,
        origin=Origin(
            command=command,
            date=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
            versions=library_versions(),
            model_sha256=result.model.sha256,
            data_sha256=result.encodings.data_sha256,
            feeds=result.statistics.feeds,
            encodings=result.encodings.source,
        ),
        evaluation=with_thumbnails(result) if thumbnails else result.evaluation,
        coverage=tuple(CoverageCount(**row._asdict()) for row in result.plan.coverage()),
        bytes=Sizes(before=before, after=after),
        notes=(*result.model.notes, *steps),
        plan=result.plan,
        floats=result.floats,
        trials=result.trials,
        equalization=result.equalization,
        seconds=result.seconds,
        engine=engine,
        table=layer_table(result),
        samples=describe_samples(result),
    )


def library_versions() -> dict[str, str]:
    """Return the versions of onnxfq and of the libraries that compute."""
    return {
        "onnxfq": VERSION,
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
    }
