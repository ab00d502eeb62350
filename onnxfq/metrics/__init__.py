"""Metrics of tasks: those that come with onnxfq, by name, and functions of the user."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxfq.errors import DataError, nearest
from onnxfq.metrics.boxes import f1, mean_precision, read_coco
from onnxfq.metrics.classes import miou, top1, top5
from onnxfq.metrics.embeddings import cosine, neighbours
from onnxfq.metrics.language import perplexity as perplexity
from onnxfq.metrics.metric import TAKES as TAKES
from onnxfq.metrics.metric import Mean as Mean
from onnxfq.metrics.metric import Metric as Metric
from onnxfq.metrics.metric import NamedMetric
from onnxfq.metrics.texts import make_error_rate, read_lines
from onnxfq.support.user_code import FUNCTION_NAME, import_function

_BOXES, _EMBEDDINGS, _TEXTS = "annotations as COCO JSON", "embeddings in an .npy", "a text a line"

METRICS: dict[str, NamedMetric] = {
    "top1": NamedMetric(top1, "the class of each row"),
    "top5": NamedMetric(top5, "the class of each row"),
    "map": NamedMetric(mean_precision, _BOXES, read_coco),
    "f1": NamedMetric(f1, _BOXES, read_coco),
    "miou": NamedMetric(miou, "masks in an .npy"),
    "cosine": NamedMetric(cosine, _EMBEDDINGS),
    "neighbours": NamedMetric(neighbours, _EMBEDDINGS),
    "perplexity": NamedMetric(perplexity, counts_errors=True),
}
"""Metrics by name."""

RATES: dict[str, Callable[[str], Sequence[str]]] = {"wer": str.split, "cer": list}
"""Parts of a text by the name of the error rate that counts them; an alphabet follows it, as in wer:FILE."""

SPELLINGS = [*METRICS, *(f"{name}:ALPHABET" for name in RATES)]
"""Names as a user writes them, such as `top1` and `wer:ALPHABET`."""


def find_named(metric: str | Metric | None) -> NamedMetric | None:
    """Return the metric that comes with onnxfq by this name; None for a function and its name.

    Raises DataError for an alphabet that cannot be read.
    """
    if not isinstance(metric, str):
        return None
    name, _, file = metric.partition(":")
    if name not in RATES or not file:
        return METRICS.get(metric)
    try:
        alphabet = [*read_lines(Path(file))]
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(
            f"cannot read the alphabet {file} ({fault}); give a text file with a symbol a line"
        ) from None
    return NamedMetric(make_error_rate(alphabet, RATES[name]), _TEXTS, read_lines, counts_errors=True)


def check_metric_name(metric: str | Metric | None) -> None:
    """Raise DataError for a name that is neither of a metric here nor `package.module:function`."""
    if not isinstance(metric, str) or metric in METRICS or FUNCTION_NAME.fullmatch(metric):
        return
    if metric.partition(":")[0] in RATES and ":" in metric:
        return
    near = nearest(re.sub(r"\W", "", metric.lower()), [*METRICS, *RATES])  # more than a message lists
    raise DataError(
        f"metric {metric!r} must be package.module:function, or one of {', '.join(SPELLINGS)}{near}"
    )


def check_labels(metric: str | Metric | None, has_labels: bool) -> None:
    """Raise DataError for a metric that comes with onnxfq and lacks the labels that it reads."""
    check_metric_name(metric)
    named = find_named(metric)
    if named is not None and named.labels and not has_labels:
        raise DataError(f"metric {metric} needs labels, {named.labels}; give them with labels")
    if named is not None and has_labels and not named.labels:
        raise DataError(f"metric {metric} reads the data and no labels; leave these out")


def find_metric(metric: str | Metric) -> Metric:
    """Return a metric by name or as given. Raises DataError for a function that cannot be imported."""
    check_metric_name(metric)
    named = find_named(metric)
    if named is not None:
        return named.measure
    return import_function(metric, "--metric") if isinstance(metric, str) else metric


def raise_metric(metric: str | Metric) -> tuple[str, Metric]:
    """Return the name of a metric and a function that is higher for better models: errors count negative."""
    name, named, measure = name_metric(metric), find_named(metric), find_metric(metric)
    if named is None or not named.counts_errors:
        return name, measure
    return f"-{name}", lambda outputs, truth: -measure(outputs, truth)


def name_metric(metric: str | Metric) -> str:
    """Return the name of a metric, for messages and tables."""
    if isinstance(metric, str):
        return metric.partition(":")[0] if metric.partition(":")[0] in RATES else metric
    return getattr(metric, "__name__", type(metric).__name__)


def read_value(value: Any, name: str) -> float:
    """Return what the metric called `name` returned as a float, a `Mean` as it is.

    Raises DataError unless it is finite.
    """
    number = value if isinstance(value, Mean) else _to_number(value)
    if not math.isfinite(number):
        raise DataError(f"{name} returned {_describe(value)}; return a finite number")
    return number


def _to_number(value: Any) -> float:
    """Return what a metric returned as a float; NaN for anything but a number."""
    if isinstance(value, (str, bytes, bytearray)):
        return math.nan
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _describe(value: Any) -> str:
    """Return the beginning of a value as text; its type where it has none, as an integer of 5,000 digits."""
    try:
        return f"{value!r:.80}"
    except Exception:  # the class is the user's
        return f"a {type(value).__name__}"
