"""`perplexity`: how well a language model predicts the tokens of its texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import DataError
from onnxfq.metrics.metric import Arrays, Mean

_TOKENS, _MASK = "input_ids", "attention_mask"
_FLOAT_LOGITS = 3
"""Axes of logits: texts, tokens, vocabulary."""


def perplexity(outputs: Iterator[Arrays], samples: Iterable[Arrays]) -> Mean:
    """Return the perplexity of a language model: exp of the mean of -log p(next token), lower is better.

    Each text is scored from its second token on. Tokens that the attention mask leaves out do not count.

    Args:
        outputs: of each sample; the first output of shape [texts, tokens, vocabulary] is the logits.
        samples: with `input_ids` [texts, tokens], and `attention_mask` if the model has one.

    Raises DataError for a model without such logits or tokens, and for texts of one token.
    """
    texts: list[tuple[float, float]] = []
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
        losses = -_log_likelihood(logits, tokens) * counted
        texts += zip(losses.sum(axis=1), counted.sum(axis=1), strict=True)
    if not any(count for _, count in texts):
        raise DataError("perplexity needs texts of at least two tokens; give longer texts")
    return Mean.of(texts, _exp)


def _exp(mean: float) -> float:
    with np.errstate(over="ignore"):  # infinite, which callers refuse by name
        return float(np.exp(mean))


def _log_likelihood(logits: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.float64]:
    """Return log p of each token but the first, [texts, tokens - 1]."""
    scores = logits[:, :-1].astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    likelihood: NDArray[np.float64] = chosen - np.log(np.exp(scores).sum(axis=-1))
    return likelihood
