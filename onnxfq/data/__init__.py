"""Feeds from any data source: reading, batching, validation and one-line errors."""

from __future__ import annotations

from onnxfq.data.arrays import read_npz
from onnxfq.data.digest import DataDigest, digest_feed, sample_digest
from onnxfq.data.feeds import DEFAULT_BATCH, Feeds, copy_feeds
from onnxfq.data.inputs import Feed, InputSpec, sample_count
from onnxfq.data.options import DataOptions
from onnxfq.data.sources import Data, DrawnInputs

__all__ = [
    "DEFAULT_BATCH",
    "Data",
    "DataDigest",
    "DataOptions",
    "DrawnInputs",
    "Feed",
    "Feeds",
    "InputSpec",
    "copy_feeds",
    "digest_feed",
    "read_npz",
    "sample_count",
    "sample_digest",
]
