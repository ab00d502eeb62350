"""Tables of a page by what they tell: scores, worst samples, remedies, times, kernels, reasons for float."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from onnxfq.documents.equalization import Equalization
from onnxfq.documents.proof import name_figure
from onnxfq.documents.scores import LOW_SQNR_DB, CandidateScore
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.documents.timing import Timing
from onnxfq.documents.trial import Trial
from onnxfq.support.groups import group_pairs
from onnxfq.support.plurals import agree_numbers
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


def list_table(
    title: str,
    note: str,
    rows: Iterable[Sequence[Cell]],
    pictures: Sequence[str] = (),
    *,
    is_shared: bool = False,
) -> list[PageTable]:
    """Return a table of `rows`, of which the first has the headings; nothing without others."""
    heads, *others = map(list, rows)
    names = [head for head in heads if isinstance(head, str)]
    table = PageTable(
        title=title, note=note, heads=names, rows=others, pictures=list(pictures), shared=is_shared
    )
    return [table] if others else []


def score_tables(candidates: Sequence[CandidateScore], samples: str) -> list[PageTable]:
    """Return the scores of outputs and their parts on `samples`, in words, and those that suffer most."""
    heads = "candidate, output, SQNR dB, 90%, cosine, largest error, same top-1, by weights, accuracy"
    rows: list[Sequence[Cell]] = [heads.split(", ")]
    for one in candidates:
        accuracy = "" if one.accuracy is None else f"{one.accuracy:.4f}"
        cells = [*one.cells(one.outputs), *one.cells(one.parts), *one.cells(one.shares)]
        # Activations may cancel noise of weights on the few feeds that tell it.
        shares = {n: f"{share:.0%}" if share <= 1.0 else "all" for n, share in one.weight_shares.items()}
        rows += [[one.candidate, *texts, shares.get(texts[0], ""), accuracy] for texts in cells]
    note = f"On {samples}. At {LOW_SQNR_DB:g} dB the noise is a tenth of the signal; each 6 dB halve it."
    worst = [(one.candidate, sample) for one in candidates for sample in one.worst_samples]
    worst_rows = [(name, str(one.sample), f"{one.sqnr_db:.1f}") for name, one in worst]
    suffering = list_table(
        "Samples that suffer most",
        "Numbers count the samples of the data from 0; the SQNR is the lowest of what judges the model.",
        [("candidate", "sample", "SQNR dB"), *worst_rows],
        [one.picture for _, one in worst],
    )
    return [*list_table("Comparison with the float model", note, rows), *suffering]


def trial_tables(trials: Sequence[Trial]) -> list[PageTable]:
    """Return the remedies that were needed: what each gains on unseen samples, costs, and why it was left."""
    heads = ("remedy", "result", "before dB", "after dB", "seconds", "cost", "reason and details")
    rows: list[Sequence[Cell]] = [heads]
    for one in trials:
        if one.is_needed:
            figures = ["" if db is None else f"{db:.1f}" for db in (one.before, one.after)]
            folded = one.evidence.lines()[1:] if isinstance(one.evidence, Equalization) else []
            texts = [*one.texts, *(line.strip() for line in folded)]
            rows.append([one.remedy, one.result, *figures, f"{one.seconds:.1f}", one.cost, texts])
    note = (
        "dB on samples that did not choose the remedy; cost at run time: new operators, or multiply-adds "
        "that take another format; what is left is not in the written model."
    )
    return list_table("What repair tried", note, rows)


def mix_tables(found: Sequence[Sensitivity]) -> list[PageTable]:
    """Return the mixes of formats that cost least for what they give, and which of them was chosen last."""
    ranked = [(one.remedy, one) for one in found if one.remedy is not None and len(one.remedy.frontier) > 1]
    if not ranked:
        return []
    remedy, ranking = ranked[-1]
    rows = [("cost", "groups in another format", "SQNR dB", "choice")]
    for place, point in enumerate(remedy.frontier):
        cost = f"{point.cost / 8e3:,.1f} kB" if remedy.size else f"{point.cost:.1%}"
        mark = "chosen" if place == remedy.chosen else ""
        rows.append((cost, str(point.changed), name_figure(point.sqnr_db).removesuffix(" dB"), mark))
    unit = "bytes of weights" if remedy.size else "share of the time, by multiply-adds and starts of kernels"
    note = f"Predicted by single groups on {ranking.samples} feeds; others prove the choice. Cost: {unit}."
    return list_table("Mixes of formats", agree_numbers(note), rows)


def time_tables(timing: Timing | None) -> list[PageTable]:
    """Return the times of the models; what slow ones spend them on is in the note."""
    if timing is None:
        return []
    return list_table("Time of one sample", "; ".join(timing.remarks()), timing.cells())


def kernel_tables(engine: BuildRecord | None) -> list[PageTable]:
    """Return the counts of engines, and of engines of the same graph without pairs."""
    against = () if engine is None else engine.check.against
    rows = [("device", "count", "quantized", "without pairs")]
    for one in against:
        plain = dict(one.plain)
        rows += [(one.device, name, f"{count}", f"{plain[name]}") for name, count in one.quantized]
    note = " ".join(f"{one.device}: {one.sentence}." for one in against)
    return list_table("Kernels of the engine", note, rows)


def reason_tables(skipped: Iterable[tuple[str, str]]) -> list[PageTable]:
    """Return the reasons for float with the names that share them, the most frequent first."""
    ordered = sorted(group_pairs(skipped).items(), key=lambda item: -len(item[1]))
    rows: list[Sequence[Cell]] = [(why, str(len(those)), those) for why, those in ordered]
    return list_table("Tensors and nodes in float", "", [("reason", "count", "names"), *rows])
