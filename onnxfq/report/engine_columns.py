"""Precision and time of each layer in an engine, next to the noise of the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxfq.errors import DataError
from onnxfq.report.contents import AnyResult
from onnxfq.report.record import ResultRecord
from onnxfq.support.records import read_document
from onnxfq.targets.findings import CheckResult


def add_engine(results: Sequence[tuple[str, AnyResult]], path: Path) -> list[tuple[str, AnyResult]]:
    """Return labelled results with the precision and the time of their layers in an engine.

    Args:
        results: only results of `quantize` have layers of their own.
        path: what `onnxfq check --layers --json` printed, or `check --build --json`.

    Raises DataError for another file, and for an engine without any layer of the results.
    """
    found = read_document(path, CheckResult, DataError)
    ran = {node.node: node.verdict for node in found.engine}
    known = [
        row.node for _, result in results if isinstance(result, ResultRecord) for row in result.table.layers
    ]
    if ran.keys().isdisjoint(known):
        raise DataError(
            f"{path} names no layer of these results; give what `onnxfq check --layers FILE --json` "
            "printed for the model of one of them"
        )
    return [
        (label, _with_engine(result, found, ran) if isinstance(result, ResultRecord) else result)
        for label, result in results
    ]


def _with_engine(result: ResultRecord, found: CheckResult, ran: Mapping[str, str]) -> ResultRecord:
    rows = []
    for row in result.table.layers:
        time = None if found.listing is None else found.listing.time_of(row.node)
        rows.append(row.model_copy(update={"ran": ran.get(row.node, ""), "engine_ms": time}))
    table = result.table.model_copy(update={"layers": tuple(rows)})
    return result.model_copy(update={"table": table})
