"""The digest of data: it tells samples apart, and sees neither order nor batches."""

from __future__ import annotations

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfq.data import DataDigest, Feeds, InputSpec, digest_feed, sample_digest

X = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def test_a_sample_is_hashed_as_stated() -> None:
    """SHA-256, as hashlib has it, over name, dtype, shape and bytes, in the order of the names."""
    text = json.dumps(["a", "int64", []]).encode() + b"\0" + np.int64(7).tobytes()
    text += json.dumps(["x", "float32", [1, 2, 3]]).encode() + b"\0" + X.tobytes()
    expected = int(hashlib.sha256(text).hexdigest(), 16)
    assert sample_digest({"x": X, "a": np.asarray(7)}) == expected
    assert sample_digest({"a": np.asarray(7), "x": np.asfortranarray(X)}) == expected


DIFFERENT = {
    "name": {"y": X},
    "shape": {"x": X.reshape(1, 3, 2)},
    "dtype": {"x": X.view(np.int32)},
    "value": {"x": X + np.float32(1e-6)},
    "sign of zero": {"x": X * np.where(X == 0, np.float32(-1), np.float32(1))},
    "further input": {"x": X, "y": X},
    "nothing": {"x": X[:0]},
    "bfloat16": {"x": X.astype(ml_dtypes.bfloat16)},
    "texts": {"x": np.array(["a", "b"], object)},
    "other texts": {"x": np.array(["a", "c"], object)},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_has_another_digest(what: str) -> None:
    """Another name, shape, dtype or bit is another sample."""
    others = [{"x": X}, *(feed for name, feed in DIFFERENT.items() if name != what)]
    assert sample_digest(DIFFERENT[what]) not in {sample_digest(feed) for feed in others}
    assert sample_digest(DIFFERENT[what]) == sample_digest({k: v.copy() for k, v in DIFFERENT[what].items()})


@given(st.lists(st.integers(0, 2**256 - 1), max_size=9), st.randoms(), st.integers(0, 9))
def test_a_sum_without_order(digests: list[int], random, split: int) -> None:
    """Any order and any split give the sum modulo 2^256 and the count; a repeated sample counts twice."""

    def total(part: list[int]) -> DataDigest:
        result = DataDigest()
        for digest in part:
            result = result.plus(digest)
        return result

    mixed = random.sample(digests, len(digests))
    assert total(mixed[:split]) + total(mixed[split:]) == total(digests)
    assert total(digests) == DataDigest(sum(digests) % 2**256, len(digests))
    assert int(total(digests).hex, 16) == total(digests).value and len(total(digests).hex) == 64


@pytest.mark.parametrize("batch", [1, 2, 0])
def test_a_sample_is_hashed_once(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds carry the digest that their survey found, and it is the digest of their bytes."""
    spec = InputSpec("x", np.dtype(np.float32), (None, 2, 3))
    feeds = Feeds([{"x": X + n} for n in range(5)], (spec,), batch)
    given = list(feeds)
    expected = [digest_feed(dict(feed), feeds.inputs) for feed in given]
    monkeypatch.setattr("onnxfq.data.digest.sample_digest", lambda sample: pytest.fail("hashed again"))
    assert [digest_feed(feed, feeds.inputs) for feed in given] == expected
    assert sum(expected, DataDigest()) == feeds.digest
    with pytest.raises(pytest.fail.Exception, match="hashed again"):  # cut into samples in another way
        digest_feed(given[0], (InputSpec("x", np.dtype(np.float32), (1, 2, 3)),))
