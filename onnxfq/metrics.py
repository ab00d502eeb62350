"""Metrics of tasks: those that come with onnxfq, by name, and functions of the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.support.user_code import FUNCTION_NAME, import_function

Arrays = Mapping[str, NDArray[Any]]
Metric = Callable[[Iterator[Arrays], Any], float]
"""Takes the outputs of each sample in order, and the labels of their rows or, without labels, the samples."""

_TOKENS, _MASK = "input_ids", "attention_mask"
_FLOAT_LOGITS = 3
"""Axes of logits: texts, tokens, vocabulary."""


def perplexity(outputs: Iterator[Arrays], samples: Iterable[Arrays]) -> float:
    """Return the perplexity of a language model: exp of the mean of -log p(next token), lower is better.

    Each text is scored from its second token on. Tokens that the attention mask leaves out do not count.

    Args:
        outputs: of each sample; the first output of shape [texts, tokens, vocabulary] is the logits.
        samples: with `input_ids` [texts, tokens], and `attention_mask` if the model has one.

    Raises DataError for a model without such logits or tokens, and for texts of one token.
    """
    total, count = 0.0, 0
    for sample, made in zip(samples, outputs, strict=True):
        logits = next((a for a in made.values() if getattr(a, "ndim", 0) == _FLOAT_LOGITS), None)
        tokens = sample.get(_TOKENS)
        if logits is None or tokens is None or logits.shape[:2] != tokens.shape:
            raise DataError(
                f"perplexity needs an input {_TOKENS!r} [texts, tokens] and an output [texts, tokens, "
                "vocabulary]; give a metric of your own as package.module:function"
            )
        mask = sample.get(_MASK)
        counted = np.ones(tokens.shape, bool) if mask is None else mask[:, -tokens.shape[1] :] != 0
        counted = counted[:, 1:] & counted[:, :-1]
        total -= float(_log_likelihood(logits, tokens)[counted].sum())
        count += int(counted.sum())
    if not count:
        raise DataError("perplexity needs texts of at least two tokens; give longer texts")
    return float(np.exp(total / count))


def _log_likelihood(logits: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.float64]:
    """Return log p of each token but the first, [texts, tokens - 1]."""
    scores = logits[:, :-1].astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    likelihood: NDArray[np.float64] = chosen - np.log(np.exp(scores).sum(axis=-1))
    return likelihood


METRICS: dict[str, Metric] = {"perplexity": perplexity}
"""Metrics by name."""

LOWER_IS_BETTER = frozenset({"perplexity"})
"""Names of those that count errors."""


def check_metric_name(metric: str | Metric | None) -> None:
    """Raise DataError for a name that is neither in `METRICS` nor `package.module:function`."""
    if isinstance(metric, str) and metric not in METRICS and not FUNCTION_NAME.fullmatch(metric):
        raise DataError(f"metric {metric!r} must be package.module:function, or one of {', '.join(METRICS)}")


def find_metric(metric: str | Metric) -> Metric:
    """Return a metric by name or as given. Raises DataError for a function that cannot be imported."""
    check_metric_name(metric)
    if isinstance(metric, str):
        return METRICS[metric] if metric in METRICS else import_function(metric, "--metric")
    return metric


def raise_metric(metric: str | Metric) -> tuple[str, Metric]:
    """Return the name of a metric and a function that is higher for better models: errors count negative."""
    name, measure = name_metric(metric), find_metric(metric)
    if name not in LOWER_IS_BETTER:
        return name, measure
    return f"-{name}", lambda outputs, truth: -measure(outputs, truth)


def name_metric(metric: str | Metric) -> str:
    """Return the name of a metric, for messages and tables."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)


def read_value(value: Any, name: str) -> float:
    """Return what the metric called `name` returned as a float. Raises DataError unless it is finite."""
    number = _to_number(value)
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
