"""`sensitivity`: which quantizers cost the accuracy, measured in a model that is loaded once.

Every group of quantizers is switched on alone. One layer left in float finds nothing when two are fatal; one
layer quantized alone finds both. Squared errors and signals are summed over samples before they are divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxfq.calibration.statistics import Statistics
from onnxfq.choices import CHANNEL_FEEDS, DEFAULT_RECIPE, LOW_SQNR_DB, RANKING_FEEDS
from onnxfq.data import Data, DrawnInputs, Feed
from onnxfq.data.labels import Labels
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.sensitivity import FLOAT, GroupNoise, MetricValues, Sensitivity
from onnxfq.errors import DataError
from onnxfq.execution.toggled_segments import State
from onnxfq.interchange.genai_folder import open_folders
from onnxfq.judging.accuracy_target import AccuracyTarget, Aim, SqnrAim, open_aim
from onnxfq.judging.candidate import Sources, build_candidate
from onnxfq.judging.judge import Judge
from onnxfq.judging.task_metric import TaskMetric
from onnxfq.layers.channel_statistics import measure_channels
from onnxfq.layers.layer_costs import look_up, measure_costs
from onnxfq.layers.quantizer_toggles import QuantizerToggles, first_feeds
from onnxfq.metrics import Metric, check_labels
from onnxfq.remedies.equalize_search import EQUALIZE, equalize_named
from onnxfq.remedies.mixes import Mixes, open_search, switch_off, with_remedy
from onnxfq.runtime.session import Progress
from onnxfq.stages.inputs import open_inputs
from onnxfq.stages.options import QuantizeOptions, RunOptions, choose_padding, shows_progress
from onnxfq.support.progress import announce
from onnxfq.targets.recipes import load_recipe

MEASURED = 5
"""Groups, the worst, whose absence is measured too."""


@shows_progress
@open_folders
def sensitivity(
    model: str | Path | onnx.ModelProto,
    data: Data,
    *,
    recipe: str | Path | Recipe = DEFAULT_RECIPE,
    statistics: str | Path | Statistics | None = None,
    samples: int = RANKING_FEEDS,
    accuracy: AccuracyTarget | None = None,
    metric: str | Metric | None = None,
    labels: Labels | None = None,
    options: RunOptions | None = None,
) -> Sensitivity:
    """Return the noise that each group of quantizers of `recipe` adds to the outputs of `model`.

    Args:
        model: a float model: a path or a ModelProto, or a folder of ONNX Runtime GenAI.
        data: as for `quantize`; it calibrates, and some samples of it are measured.
        recipe: what is quantized and how.
        statistics: of the data, recorded earlier, so that nothing is observed.
        samples: number of samples that rank the groups; for a stream, of windows of 64 feeds.
        accuracy: find the cheapest groups in float that keep it, see `Sensitivity.remedy`; measured with
            these groups in float even if the promise has another fallback.
        metric: of the task, as in `AccuracyTarget`; ranks the groups that it separates. It is measured on
            half of the data, once for each group: the other half proves a promise. A promised drop has
            its own metric.
        labels: of the data, as in `AccuracyTarget`; alone they are for top-1 accuracy.
        options: batch, threads and how data is read.

    Raises DataError for fewer than one sample, and the errors of `quantize`.
    """
    chosen = load_recipe(recipe)
    if accuracy is not None and accuracy.fits_size:
        raise DataError("a size is a promise of quantize; sensitivity takes min_sqnr or max_drop")
    if accuracy is not None and accuracy.max_drop is not None:
        if metric is not None or labels is not None:
            raise DataError("the promise has a metric already; leave metric and labels out")
        metric, labels = accuracy.metric, accuracy.labels
    check_labels(metric, labels is not None)
    options = choose_padding(QuantizeOptions.of(options), metric is not None or labels is not None)
    if samples < 1:
        raise DataError(f"samples is {samples}; give at least 1")
    if isinstance(data, DrawnInputs):
        raise DataError("inputs that are drawn rank no layers by what they cost on real data; give data")
    sources = Sources(statistics=statistics)
    session = open_inputs(model, data, chosen, options, observed=statistics is not None)
    session, _ = equalize_named(session, chosen, sources, options)
    candidate = build_candidate(session, chosen, sources, options)
    candidate, _ = Judge(candidate, options, sources, is_off=True).better(candidate, EQUALIZE)
    session, board = candidate.session, candidate.open_toggles(options)
    task = None
    if metric is not None or labels is not None:
        task = TaskMetric(metric, labels, board, session, options.data.limit is not None)
    feeds = first_feeds(session.kept, samples)
    ranked = rank_groups(board, feeds, chosen, task)
    guilty = [tensor for group in ranked.groups if group.alone_db < LOW_SQNR_DB for tensor in group.tensors]
    channels = measure_channels(session.model, session.kept[:CHANNEL_FEEDS], guilty, options.threads)
    ranked = ranked.model_copy(update={"channels": channels})
    if accuracy is None:
        return ranked
    return find_remedy(
        board, ranked, open_aim(accuracy, session.kept, task, board.judged), accuracy.fallbacks[-1]
    )


def rank_groups(
    board: QuantizerToggles,
    feeds: Sequence[Feed],
    recipe: Recipe,
    task: TaskMetric | None = None,
) -> Sensitivity:
    """Return the groups by their harm alone; for the worst also what the model is without them.

    Args:
        board: a session of the model.
        feeds: for the noise.
        recipe: of the plan.
        task: metric that ranks the groups that it separates.
    """
    groups = board.groups
    states = [board.everything, *(board.enable([group]) for group in groups)]
    runs = len(states) * len(feeds)
    total = runs + (0 if task is None else len(states)) + min(len(groups), MEASURED) * len(feeds)

    def tell(done: int) -> None:
        announce("rank", done, total)

    whole, *alone = board.noise(feeds, states, tell)
    metric, metrics = _measure_metric(board, states, task, lambda done: tell(runs + done))
    drops = [0.0 if metric is None else metric.clear_drop(value) for value in metrics]
    order = sorted(range(len(groups)), key=lambda at: (drops[at], alone[at]), reverse=True)
    worst = order[:MEASURED]
    without = [board.enable([groups[at]], on=False) for at in worst]
    done = total - len(worst) * len(feeds)
    rest = dict(zip(worst, board.noise(feeds, without, lambda more: tell(done + more)), strict=True))
    costs = measure_costs(board.proto, board.plan, feeds[0])
    alike = zip(worst, without, strict=True)
    task_rest = {} if task is None else {at: task.measure(board.set(one), 0) for at, one in alike}
    prices = costs.prices(groups)
    made = tuple(
        GroupNoise(
            tensors=groups[at].tensors,
            nodes=board.named(groups[at]).nodes,
            op_types=look_up(board.named(groups[at]), costs.types),
            modules=look_up(board.named(groups[at]), costs.modules),
            noise=alone[at],
            rest=rest.get(at),
            metric=metrics[at],
            metric_rest=task_rest.get(at),
            multiplies=costs.multiplies(groups[at]),
            weight_bytes=costs.weight_bytes(groups[at]),
            price=prices[at],
        )
        for at in order
    )
    return Sensitivity(
        model_sha256=board.plan.model_sha256,
        recipe=recipe.name,
        outputs=tuple(name for name in board.judged.deciding if name not in board.judged.logits),
        samples=len(feeds),
        noise=whole,
        metric=metric,
        groups=made,
    )


def _measure_metric(
    board: QuantizerToggles, states: Sequence[State], task: TaskMetric | None, tell: Progress
) -> tuple[MetricValues | None, list[float | None]]:
    """Return the metric of the whole, the first of `states`, and its value for each of the others."""
    if task is None:
        return None, [None] * (len(states) - 1)
    reference = task.measure_float(0)
    found: list[float] = []
    for state in states:
        found.append(task.measure(board.set(state), 0))
        tell(len(found))
    whole, *alone = found
    chance = max([0.0, *(value - reference for value in alone)])
    return MetricValues(name=task.name, reference=reference, quantized=whole, chance=chance), [*alone]


def find_remedy(board: QuantizerToggles, ranked: Sensitivity, aim: Aim, fallback: str) -> Sensitivity:
    """Return `ranked` with the cheapest of its groups in float that reach what `aim` wants, or the last ones.

    Args:
        board: the session.
        ranked: the groups and their noise.
        aim: what is measured, on the part of the data that chooses.
        fallback: see `AccuracyTarget`; noted in the remedy.
    """
    before = reached = aim.choose(board, board.everything)
    mixes, formats = Mixes.unmeasured(ranked), dict[int, str]()
    search = open_search(mixes, aim)
    while reached < aim.wanted and (found := search.choose(reached)):
        formats, reached = found, aim.choose(board, switch_off(board, ranked, found))
    fields: dict[str, Any] = {"measure": aim.measure, "wanted": aim.wanted, "before": before}
    traced = mixes if isinstance(aim, SqnrAim) and fallback == FLOAT else None
    return with_remedy(ranked, dict.fromkeys(formats, fallback), traced, **fields, reached=reached)
