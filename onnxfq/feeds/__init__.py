"""What a model is fed with: any data read, cut into batches, checked, and told what is wrong with it."""

from __future__ import annotations

from onnxfq.feeds.archives import read_npz
from onnxfq.feeds.digest import DataDigest, sample_digest
from onnxfq.feeds.feeds import DEFAULT_BATCH, Feeds, owned
from onnxfq.feeds.inputs import Feed, InputSpec, sample_count
from onnxfq.feeds.options import DataOptions
from onnxfq.feeds.sources import Data

__all__ = [
    "DEFAULT_BATCH",
    "Data",
    "DataDigest",
    "DataOptions",
    "Feed",
    "Feeds",
    "InputSpec",
    "owned",
    "read_npz",
    "sample_count",
    "sample_digest",
]
