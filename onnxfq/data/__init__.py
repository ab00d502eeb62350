"""Feeds from any data source: reading, batching, validation and one-line errors."""

from __future__ import annotations

from onnxfq.data.arrays import read_npz as read_npz
from onnxfq.data.digest import DataDigest as DataDigest
from onnxfq.data.digest import digest_feed as digest_feed
from onnxfq.data.digest import sample_digest as sample_digest
from onnxfq.data.feeds import DEFAULT_BATCH as DEFAULT_BATCH
from onnxfq.data.feeds import Feeds as Feeds
from onnxfq.data.feeds import copy_feeds as copy_feeds
from onnxfq.data.inputs import Feed as Feed
from onnxfq.data.inputs import InputSpec as InputSpec
from onnxfq.data.inputs import sample_count as sample_count
from onnxfq.data.options import DataOptions as DataOptions
from onnxfq.data.sources import Data as Data
from onnxfq.data.sources import DrawnInputs as DrawnInputs
