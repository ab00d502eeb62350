"""Contents of a page by kind of result: verdict, scores, layers, reasons for float, source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from onnxfq.diagnosis.diagnosis import Diagnosis
from onnxfq.documents.layers import GraphNode, LayerRow, LayerTable, TensorRow
from onnxfq.documents.scores import LOW_SQNR_DB, CandidateScore, Evaluation
from onnxfq.documents.sensitivity import Sensitivity, name_format
from onnxfq.documents.timing import QUANTIZED
from onnxfq.errors import DataError
from onnxfq.report.layer_table import lost_values
from onnxfq.report.page_tables import (
    PageTable,
    kernel_tables,
    list_table,
    mix_tables,
    reason_tables,
    score_tables,
    time_tables,
    trial_tables,
)
from onnxfq.report.recipe_table import RecipeTable
from onnxfq.report.record import ResultRecord
from onnxfq.report.text import advice_lines, proof_lines
from onnxfq.report.tiles import Tile, make_tile, score_tiles, time_tiles
from onnxfq.report.verdict import verdict
from onnxfq.support.plurals import agree_numbers
from onnxfq.support.records import parse, read_content
from onnxfq.targets.recipes import find_wider

RECORDS: dict[
    str,
    type[ResultRecord] | type[Evaluation] | type[Sensitivity] | type[RecipeTable] | type[Diagnosis],
] = {
    str(record.model_fields["format"].default): record
    for record in (ResultRecord, Evaluation, Sensitivity, RecipeTable, Diagnosis)
}
"""Records that a page shows, by their format."""

AnyResult = ResultRecord | Evaluation | Sensitivity | RecipeTable | Diagnosis


class Content(TypedDict, total=False):
    """One result on a page; what its kind lacks is absent.

    Attributes:
        notes: headings with lines.
        tables: in front of the layers.
        measured: what the figures of layers are of, in a sentence.
        floats: what stays in float, in tables behind them.
        graph: nodes around the layers.
        facts: names with values.
    """

    label: str
    subtitle: str
    tiles: list[Tile]
    notes: list[tuple[str, list[str]]]
    tables: list[PageTable]
    layers: Sequence[LayerRow]
    measured: str
    tensors: Sequence[TensorRow]
    graph: Sequence[GraphNode]
    floats: list[PageTable]
    facts: list[tuple[str, str]]


def read_result(path: str | Path) -> AnyResult:
    """Return the result in a JSON file of `quantize`, `evaluate` or `sensitivity`.

    Raises DataError in one line for any other file.
    """
    remedy = "give what `quantize`, `evaluate` or `sensitivity` print with --json"
    if Path(path).suffix in (".onnx", ".npz", ".html"):
        raise DataError(f"{path} holds no result; {remedy}")
    content = read_content(path, DataError)
    form = content.get("format") if isinstance(content, dict) else None
    if form not in RECORDS:
        wanted = f"its format is {form!r:.60}, wanted is one of {', '.join(RECORDS)}"
        raise DataError(f"{path} holds no result: {wanted}; {remedy}")
    return parse(content, RECORDS[form], DataError, str(path))


def page_contents(results: Iterable[tuple[str, AnyResult]]) -> list[Content]:
    """Return the contents of a page: one for each labelled result, or candidate of an evaluation."""
    return [_agree(content) for label, result in results for content in _contents(label, result)]


def _agree(content: Content) -> Content:
    content["measured"] = agree_numbers(content.get("measured", ""))
    content["subtitle"] = agree_numbers(content["subtitle"])
    content["notes"] = [(head, [agree_numbers(line) for line in lines]) for head, lines in content["notes"]]
    return content


def _contents(label: str, result: AnyResult) -> Iterator[Content]:
    if isinstance(result, ResultRecord):
        yield _quantized(label, result)
    elif isinstance(result, Evaluation):
        several = len(result.candidates) > 1
        for candidate in result.candidates:
            yield _evaluated(f"{label}: {candidate.candidate}" if several else label, result, candidate)
    elif isinstance(result, RecipeTable):
        for number, own in enumerate(result.with_times()):
            content = _quantized(own.recipe.name, own)
            if not number:
                recipes = list_table("Recipes", "; ".join(result.terms()), result.cells(), is_shared=True)
                content["tables"] = [*recipes, *content["tables"]]
            yield content
    elif isinstance(result, Diagnosis):
        yield _diagnosed(label, result)
    else:
        yield _ranked(label, result)


def _quantized(label: str, result: ResultRecord) -> Content:
    table, origin, evaluation = result.table, result.origin, result.evaluation
    quantized = sum(row.quantized for row in result.coverage)
    total = sum(row.total for row in result.coverage)
    before, after = result.bytes.before, result.bytes.after
    tiles = score_tiles(evaluation.candidates[-1:], evaluation) + time_tiles(evaluation.timing, QUANTIZED)
    tiles += [make_tile(f"{_size(before)} → {_size(after)}", "size before and after")]
    if table.multiplies is not None:
        tiles += [make_tile(f"{table.multiplies:.1%}", "of the multiply-adds in low precision")]
    tiles += [make_tile(f"{table.weight_bytes:.1%}", "of the bytes of constants in low precision")]
    tiles += [make_tile(f"{quantized}/{total}", "operators in low precision")]
    skipped = [*result.plan.skipped, *(result.floats.tensors + result.floats.nodes if result.floats else ())]
    wider, is_float = find_wider(result.recipe), not result.plan.placements and result.floats is None
    return Content(
        label=label,
        subtitle=f"{Path(result.source).name}, recipe {result.recipe.name} for target "
        f"{result.recipe.target}, "
        + (f"observed over {origin.feeds} runs" if origin.feeds else "no activation observed"),
        tiles=tiles,
        notes=[
            ("verdict", [verdict(evaluation, result.trials, wider, table.layers, is_float)]),
            *[("promised", [str(one.promised)]) for one in result.trials if one.promised is not None],
            *([("engine", result.engine.lines())] if result.engine is not None else []),
            *_words(proof_lines(evaluation)),
            *_advice(result),
            *_lost(table.tensors),
            *_notes(
                [*result.notes, *evaluation.notes, *(evaluation.timing.notes if evaluation.timing else ())]
            ),
        ],
        tables=[
            *score_tables(evaluation.candidates, result.samples or f"{evaluation.feeds} samples"),
            *trial_tables(result.trials),
            *mix_tables([one.evidence for one in result.trials if isinstance(one.evidence, Sensitivity)]),
            *time_tables(evaluation.timing),
            *kernel_tables(result.engine),
        ],
        layers=table.layers,
        measured=_name_samples(table),
        tensors=table.tensors,
        graph=table.graph,
        floats=reason_tables((one.why, one.name) for one in skipped),
        facts=[
            ("model", result.source),
            ("SHA-256 of the model", origin.model_sha256),
            ("SHA-256 of the data", origin.data_sha256 or "unknown"),
            *([("encodings from", origin.encodings)] if origin.encodings else []),
            ("command", origin.command or "from Python"),
            ("date", origin.date),
            ("versions", _list_pairs(origin.versions)),
            ("operators", ", ".join(f"{c.op_type} {c.quantized}/{c.total}" for c in result.coverage)),
            ("seconds", _list_pairs({stage: f"{s:.2f}" for stage, s in result.seconds.items()})),
        ],
    )


def _evaluated(label: str, evaluation: Evaluation, candidate: CandidateScore) -> Content:
    rows = [
        LayerRow(node=score.output, op_type="tensor", position=place, quantized=True, output_db=score.sqnr_db)
        for place, score in enumerate(candidate.tensors)
    ]
    return Content(
        label=label,
        subtitle=f"{candidate.candidate} against {evaluation.reference}, {evaluation.feeds} samples",
        tiles=score_tiles([candidate], evaluation) + time_tiles(evaluation.timing, candidate.candidate),
        notes=_notes([*evaluation.notes, *(evaluation.timing.notes if evaluation.timing else ())]),
        tables=[*score_tables([candidate], f"{evaluation.feeds} samples"), *time_tables(evaluation.timing)],
        layers=sorted(rows, key=lambda row: row.output_db or 0.0),
        facts=[("reference", evaluation.reference), ("candidate", candidate.candidate)],
    )


def _ranked(label: str, found: Sensitivity) -> Content:
    remedy = found.remedy
    kept = {} if remedy is None else dict(zip(remedy.kept, map(name_format, remedy.formats), strict=True))
    members = [(place, group, node) for place, group in enumerate(found.groups) for node in group.nodes]
    shown = found.sqnr_db
    return Content(
        label=label,
        subtitle=f"recipe {found.recipe}, {found.samples} samples, measured at {', '.join(found.outputs)}",
        tiles=[
            make_tile(
                f"{shown:.1f} dB", "SQNR of the outputs with everything quantized", shown < LOW_SQNR_DB
            ),
            make_tile(str(len(found.groups)), "groups of layers"),
            make_tile(str(len(kept)), "groups that the remedy gives another format"),
        ],
        notes=[("remedy", [found.remedy_text()])],
        tables=mix_tables([found]),
        layers=[
            LayerRow(
                node=node,
                op_type=", ".join(group.op_types),
                module=", ".join(group.modules),
                position=number,
                quantized=place not in kept,
                why=f"the remedy has it {kept[place]}" if place in kept else "",
                alone_db=group.alone_db,
                noise_share=found.share(group),
                rest_db=group.rest_db,
                multiplies=group.multiplies,
            )
            for number, (place, group, node) in enumerate(members)
        ],
        measured=f"Layers are measured on {found.samples} samples.",
        facts=[("SHA-256 of the model", found.model_sha256), ("recipe", found.recipe)],
    )


def _diagnosed(label: str, found: Diagnosis) -> Content:
    tiles = [make_tile(str(len(found.causes)), "causes", bool(found.causes))]
    kind = "SQNR " if found.unit == "dB" else ""
    for figure, name in ((found.before, "of the file as given"), (found.after, "with all repairs")):
        tiles += [] if figure is None else [make_tile(f"{figure:.1f} {found.unit}", kind + name)]
    return Content(
        label=label,
        subtitle=f"{found.quantizers} quantizers, {found.samples} samples",
        tiles=tiles,
        notes=[("verdict", found.verdict.splitlines())],
        tables=list_table("Causes", "", found.cells()),
        tensors=found.tensors,
        facts=[("model", found.source), ("looked at", ", ".join(found.looked_at))],
    )


def _advice(result: ResultRecord) -> list[tuple[str, list[str]]]:
    """Return what the terminal says below a low SQNR, each sentence under its word."""
    sizes = {row.tensor: row.sizes for row in result.table.tensors if row.sizes and row.format != "float"}
    lines = advice_lines(result.evaluation, result.trials, lambda: sizes, find_wider(result.recipe))
    return _words(lines)


def _words(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    return [(line[:11].strip(), [line[11:]]) for line in lines]


def _name_samples(table: LayerTable) -> str:
    """Return on how many samples layers are measured; a short budget has fewer for those left in float."""
    fewer = f", those that repair left in float on {table.chosen_by}" * (0 < table.chosen_by < table.samples)
    return f"Layers are measured on {table.samples} of the samples{fewer}." if table.samples else ""


def _lost(tensors: Sequence[TensorRow]) -> list[tuple[str, list[str]]]:
    lost = lost_values(tensors)
    if not lost:
        return []
    first = (
        "with their ranges the middle half of the values of these tensors is smaller than a step, and most "
        "of it becomes 0; leave them in float with an override, or take 16 bits or float8"
    )
    return [("Lost typical values", [first, *(f"{name} ({db:.1f} dB)" for name, db in lost.items())])]


def _notes(notes: Iterable[str]) -> list[tuple[str, list[str]]]:
    lines: list[str] = []
    for note in notes:
        if note.startswith(" ") and lines:  # a detail of the line above
            lines[-1] += f"{'' if lines[-1].endswith(':') else ';'} {note.strip()}"
        else:
            lines.append(note)
    return [("Notes", ["", *lines])] if len(lines) > 1 else [("Note", lines)] if lines else []


def _list_pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs.items())


def _size(count: int) -> str:
    space = "\N{NO-BREAK SPACE}"
    return f"{count / 1e6:.1f}{space}MB" if count >= 1e6 else f"{count / 1e3:.1f}{space}kB"
