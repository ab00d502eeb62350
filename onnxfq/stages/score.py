"""`score_models`: scores and accuracy of candidates on the same feeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.choices import DeviceChoice
from onnxfq.data import Feed
from onnxfq.data.labels import RightClasses
from onnxfq.data.stream import StreamSamples, lead_to
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import ModelError
from onnxfq.execution.candidate_sums import CandidateSums
from onnxfq.execution.given_choices import GivenChoices
from onnxfq.execution.sequences import FedBack
from onnxfq.execution.sides import LEAST_FEEDS, Outputs, Side, run_sides
from onnxfq.graph.patterns.logits import NOTHING_KNOWN, JudgedTensors
from onnxfq.graph.signature import output_names
from onnxfq.metrics.classes import refuse_label_count
from onnxfq.numerics.windows import WINDOW
from onnxfq.runtime.session import Progress
from onnxfq.support.groups import group_pairs
from onnxfq.targets.target import Opener

NO_OPENERS: Mapping[str, Opener] = {}
"""Nothing runs in another runtime."""


def score_models(
    reference: onnx.ModelProto,
    candidates: Mapping[str, onnx.ModelProto],
    feeds: Iterable[Feed],
    *,
    reference_name: str = "float",
    labels: NDArray[Any] | None = None,
    more_labels: bool = False,
    tensors: Sequence[str] = (),
    threads: int = 0,
    progress: Progress | None = None,
    device: DeviceChoice = "any",
    exact: bool = True,
    narrow_from: int = 0,
    expected: Iterator[Outputs] | None = None,
    weights_alone: bool = False,
    judged: JudgedTensors = NOTHING_KNOWN,
    openers: Mapping[str, Opener] = NO_OPENERS,
) -> Evaluation:
    """Run the reference and every candidate on each feed, once, and return the scores.

    Floats have an SQNR, in maps and sequences too, by position and key. Integers, texts and booleans
    have the share of equal elements. Floats are left out for a feed on which they have another size along
    an axis that the reference leaves open, such as the boxes of a detector.

    A candidate takes the state that it left on the feed before, if the feed has what the reference left. The
    worst window of such a stream gives the SQNR. Samples of recordings are run behind the ones before them.

    Args:
        reference: the float model.
        candidates: models with the same outputs, by name.
        feeds: the data.
        reference_name: name of the reference in the result.
        labels: classes, one for each row of the first output in the order of the feeds.
        more_labels: whether the feeds are the first of more, and so are their labels.
        tensors: inner tensors of the reference to compare with the quantized ones of the candidates.
        threads: of a session, 0 for one per core.
        progress: called with the number of feeds done.
        device: of all sessions; "any" is a GPU if one works and has room.
        exact: run candidates without graph optimisation, so that equal models give equal bits; otherwise
            optimised where that is right.
        narrow_from: stop after so many feeds, a multiple of LEAST_FEEDS, or more once the interval of the
            SQNR is narrower than NARROW_DB; 0 for all feeds.
        expected: the outputs, and the inner tensors of `judged`, of the reference on the feeds, if it has run
            already; `tensors` must be empty. A model with state that is fed back runs again.
        weights_alone: run candidates from `switch_activations` on the first feeds with activations in float
            too.
        judged: of the reference; its inner tensors and parts of outputs are scored, and what decides nothing
            is marked.
        openers: open candidates in the runtime of a target, by name; all others run in ONNX Runtime.

    Raises:
        ModelError: if a candidate's outputs differ from the reference's.
        DataError: if labels and rows differ in number.
        RuntimeLibraryError: for a GPU that was requested by name and cannot be used.
        DeviceMemoryError: for a GPU that was requested by name and lacks memory.
    """
    names = output_names(reference)
    for name, proto in candidates.items():
        if output_names(proto) != names:
            raise ModelError(
                f"{name} has outputs {', '.join(output_names(proto))}, the reference {', '.join(names)}"
            )
    names = (*names, *(name for name in judged.inner if name not in names))
    tensors = [name for name in tensors if name not in names]
    sizes = _read_declared_sizes(reference)
    runs = [
        CandidateSums(name, proto, names, tensors, sizes, exact, weights_alone, judged)
        for name, proto in candidates.items()
    ]
    sides = [replace(run.side, opener=openers.get(run.name)) for run in runs]
    choices = GivenChoices(judged.choices, names) if judged.choices else None
    if labels is not None and choices is not None:  # the classes depend on each model's own choices
        sides += [replace(run.own, opener=openers.get(run.name)) for run in runs]
    places: Iterator[int | None] = count()
    expected = None if judged.states else expected
    floats: list[Outputs] = []
    if judged.states and isinstance(feeds, StreamSamples):
        known = feeds.outputs.get((*names, *tensors), {})
        feeds, kept = lead_to(feeds)
        places = iter(kept)
        floats = [known[id(feed)][1] for feed in feeds if id(feed) in known]
        expected = iter(floats) if len(floats) == len(kept) else None
    fed_back = FedBack(judged.states, names, floats if expected else None) if judged.states else None
    if expected is not None and choices is not None:
        feeds, expected = choices.watch(feeds, expected)
    if expected is None:
        sides.insert(0, Side(reference, [*names, *tensors], exact=False))
    classes = None if labels is None else RightClasses(labels, names[0])
    done = counted = 0
    part = LEAST_FEEDS if narrow_from or fed_back else None
    with closing(run_sides(sides, feeds, threads, device, part, fed_back, choices)) as outputs:
        pairs = zip(outputs, expected or (), strict=False)
        rows = outputs if expected is None else ([first, *row] for row, first in pairs)
        for place, (wanted, *results) in zip(places, rows, strict=False):
            truth = None if classes is None else classes.add(wanted[0])
            for run, got, own in zip(runs, results, results[-len(runs) :], strict=False):
                run.add(got, wanted, truth, own, place)
            done += 1
            counted += place is not None
            if progress is not None:
                progress(done)
            is_enough = narrow_from and done >= narrow_from and done % LEAST_FEEDS == 0
            if is_enough and all(run.is_narrow for run in runs):
                break
    for run in runs:
        run.steps = [] if fed_back is None else fed_back.steps
    scores = tuple(run.score(done, 0 if classes is None else classes.rows) for run in runs)
    if classes is not None and classes.rows != classes.labels.size and not more_labels:
        raise refuse_label_count(classes.labels, str(classes.rows), names[0])
    notes = (
        *(f"output {name!r} is selected by values: its SQNR judges nothing" for name in sorted(judged.moved)),
        *_describe_choices(judged),
        *_describe_states(judged.states, fed_back),
        *(f"{score.candidate}: {line}" for score in scores for line in score.drift_lines()),
        *(note for run in runs for note in run.notes(done)),
        *([] if classes is None else classes.notes()),
    )
    accuracy = None if classes is None else classes.right / classes.rows
    return Evaluation(
        reference=reference_name, feeds=counted, accuracy=accuracy, candidates=scores, notes=notes
    )


def _describe_choices(judged: JudgedTensors) -> Iterator[str]:
    """Yield a note on the choices that the float model gave to the candidates, and on those it did not."""
    if judged.choices:
        names = ", ".join(map(repr, judged.choices))
        yield f"what depends on {names} ran with the choices of the float model"
    if judged.unjudged:
        yield judged.explain_unjudged()


def _describe_states(states: Mapping[str, str], fed_back: FedBack | None) -> Iterator[str]:
    """Yield a note on the outputs that are fed back, one for all that were run alike."""
    runs = ((_describe_run(fed_back.lengths(of) if fed_back else []), name) for name, of in states.items())
    for run, names in group_pairs(runs).items():
        first = names[0]
        some = f"output {first!r} counts as state that input {states[first]!r} takes: its"
        many = f"{len(names)} outputs count as state that inputs take, such as {first!r}: their"
        yield f"{some if len(names) == 1 else many} SQNR judges nothing{run}"


def _describe_run(lengths: Sequence[int]) -> str:
    """Return how a state was given to candidates, for sequences of these lengths; "" without feeds."""
    if max(lengths, default=0) > 1:
        total = sum(lengths)
        given = f"state fed back to {total - len(lengths)} of {total} feeds"
        return (
            f"; sequences of up to {max(lengths)} feeds were run, {given}, and the worst {WINDOW} feeds "
            f"after the first {WINDOW} of a sequence count"
        )
    return "; no feed has the state that the one before leaves, and frames were compared" if lengths else ""


def _read_declared_sizes(reference: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Return the sizes of outputs and inner tensors as the model declares them; None for an open axis."""
    found = {}
    for value in (*reference.graph.output, *reference.graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            found[value.name] = [d.dim_value if d.HasField("dim_value") else None for d in dims]
    return found
