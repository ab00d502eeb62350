"""Tables of a page by what they tell: scores, worst samples, remedies, times, engines, recipes, causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from onnxfq.diagnosis.diagnosis import Diagnosis
from onnxfq.documents.equalization import Equalization
from onnxfq.documents.scores import LOW_SQNR_DB, CandidateScore
from onnxfq.documents.timing import Timing
from onnxfq.documents.trial import Trial
from onnxfq.report.recipe_table import RecipeTable
from onnxfq.tools.build_written import BuildRecord

Cell = str | list[str]
"""A text, or lines of which a page folds many."""


class PageTable(TypedDict):
    """One table of a page; results side by side join their rows under one title.

    Attributes:
        heads: of the columns; of figures they end with a unit. Columns without any cell are left out.
        pictures: data URL of an image for each row, or nothing.
        shared: whether the rows belong to all results of the page.
    """

    title: str
    note: str
    heads: list[str]
    rows: list[list[Cell]]
    pictures: list[str]
    shared: bool


def _table(
    title: str, note: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], pictures: Sequence[str] = ()
) -> list[PageTable]:
    """Return a table; nothing without rows."""
    listed = [list(row) for row in rows]
    one = PageTable(
        title=title, note=note, heads=list(heads), rows=listed, pictures=list(pictures), shared=False
    )
    return [one] if listed else []


def score_tables(candidates: Sequence[CandidateScore]) -> list[PageTable]:
    """Return the scores of outputs and their parts, and the samples that suffer most."""
    heads = (
        "candidate",
        "output",
        "SQNR dB",
        "cosine",
        "largest error",
        "same top-1",
        "by weights",
        "accuracy",
    )
    rows: list[list[Cell]] = []
    for one in candidates:
        accuracy = "" if one.accuracy is None else f"{one.accuracy:.4f}"
        cells = [*one.cells(one.outputs), *one.cells(one.parts), *one.cells(one.shares)]
        shares = {name: f"{share:.0%}" for name, share in one.weight_shares.items()}
        rows += [[one.candidate, *texts, shares.get(texts[0], ""), accuracy] for texts in cells]
    note = f"At {LOW_SQNR_DB:g} dB the noise is a tenth of the signal; each 6 dB halve it."
    worst = [(one.candidate, sample) for one in candidates for sample in one.worst_samples]
    return [
        *_table("Comparison with the float model", note, heads, rows),
        *_table(
            "Samples that suffer most",
            "Numbers count the samples of the data from 0; the SQNR is the lowest of what judges the model.",
            ("candidate", "sample", "SQNR dB"),
            [(name, str(one.sample), f"{one.sqnr_db:.1f}") for name, one in worst],
            [one.picture for _, one in worst],
        ),
    ]


def trial_tables(trials: Sequence[Trial]) -> list[PageTable]:
    """Return the remedies that were needed: what each gains on unseen samples, costs, and why it was left."""
    rows: list[list[Cell]] = []
    for one in trials:
        if one.is_needed:
            figures = ["" if db is None else f"{db:.1f}" for db in (one.before, one.after)]
            rows.append([one.remedy, one.result, *figures, f"{one.seconds:.1f}", _price(one), one.texts])
    return _table(
        "What repair tried",
        "dB on samples that did not choose the remedy; what is left is not in the written model.",
        ("remedy", "result", "before dB", "after dB", "seconds", "cost", "reason and details"),
        rows,
    )


def _price(trial: Trial) -> str:
    """Return what a kept remedy costs at run time, where that is known."""
    evidence = trial.evidence if trial.is_kept else None
    if isinstance(evidence, Equalization):
        count = sum(group.inserted for group in evidence.groups)
        return f"{count} new Mul" if count else "none"
    chosen = None if evidence is None else evidence.remedy
    if chosen is None or chosen.multiplies is None:
        return ""
    return f"{chosen.multiplies:.1%} of the multiply-adds in {chosen.fallback}"


def time_tables(timing: Timing | None) -> list[PageTable]:
    """Return the times of the models, and the operators of slow ones."""
    rows: list[list[Cell]] = [
        [
            one.model,
            one.target,
            f"{one.least_ms:.3f}",
            f"{one.median_ms:.3f}",
            one.figure,
            [*map(str, one.costs)],
        ]
        for one in (timing.models if timing is not None else ())
    ]
    heads = ("model", "runtime", "least ms", "median ms", "time to float", "costs most")
    note = "The models ran in turn. " + "; ".join(timing.remarks() if timing is not None else ())
    return _table("Time of one sample", note, heads, rows)


def engine_tables(engine: BuildRecord | None) -> list[PageTable]:
    """Return what the target's builder made of the model, and its kernels beside those without pairs."""
    if engine is None:
        return []
    check = engine.check
    facts: list[list[Cell]] = [
        ["builder", check.builder or "the rules alone"],
        ["low precision", [*map(str, check.coverage)]],
        ["findings", [f"{one.severity}: {one.op_type} {one.node}: {one.message}" for one in check.findings]],
        ["run", engine.run],
    ]
    counts: list[list[Cell]] = [
        [one.device, name, *(f"{value}" for value in pair)]
        for one in check.against
        for name, pair in one.pairs().items()
    ]
    return [
        *_table(f"Engine for {check.target}", "", ("question", "answer"), [row for row in facts if row[1]]),
        *_table(
            "Kernels",
            " ".join(f"{one.device}: {one.sentence}." for one in check.against),
            ("device", "count", "quantized", "without pairs"),
            counts,
        ),
    ]


def recipe_tables(result: RecipeTable) -> list[PageTable]:
    """Return the recipes beside the float model."""
    heads = (
        "recipe",
        "bytes",
        "SQNR dB",
        "low precision",
        "median ms",
        "time to float",
        "findings",
        "remark",
    )
    rows: list[list[Cell]] = [
        [
            *row.cells(None if result.timing is None else result.timing.of(row.recipe)),
            str(row.findings) if row.findings else "",
            row.error or row.promise,
        ]
        for row in result.rows
    ]
    return [table | {"shared": True} for table in _table("Recipes", "", heads, rows)]


def cause_tables(found: Diagnosis) -> list[PageTable]:
    """Return the causes of a diagnosis, the most harmful first."""
    rows: list[list[Cell]] = [
        [
            cause.kind.replace("_", " "),
            cause.tensor or cause.node,
            *("" if value is None else f"{value:.1f}" for value in (cause.before, cause.after)),
            cause.evidence,
            cause.repair,
        ]
        for cause in found.causes
    ]
    heads = ("cause", "tensor", f"before {found.unit}", f"after {found.unit}", "evidence", "repair")
    return _table("Causes", "", heads, rows)


def reason_tables(skipped: Iterable[tuple[str, str]]) -> list[PageTable]:
    """Return the reasons for float with the names that share them, the most frequent first."""
    names: dict[str, list[str]] = {}
    for why, name in skipped:
        names.setdefault(why, []).append(name)
    rows = [
        (why, str(len(those)), those) for why, those in sorted(names.items(), key=lambda item: -len(item[1]))
    ]
    return _table("Tensors and nodes in float", "", ("reason", "count", "names"), rows)
