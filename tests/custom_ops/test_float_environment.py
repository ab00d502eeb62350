"""Kernels compute with subnormal numbers in a process that has switched them off, as torch lets it do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from onnxfq.runtime import kernels

TINY = np.random.default_rng(0).permutation(np.linspace(-3e-38, 3e-38, 70001)).astype(np.float32)
SCALE = np.float32(3e-39)
TOO_SMALL = np.float32(1e-40)
NORMAL = np.float32(2e-38)  # torch itself reads a subnormal scale as 0; values of x are subnormal still


@pytest.fixture
def flushed() -> Iterator[None]:
    """A process that reads and writes subnormal numbers as 0."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always computes with subnormal numbers")
    assert not np.array([1e-40], np.float32)[0] > 0
    yield
    torch.set_flush_denormal(False)


DIVIDED = kernels.fake_quantize(TINY, SCALE, 0, qtype="int8").tobytes()
AS_TORCH = kernels.fake_quantize(TINY, NORMAL, 0, qtype="int8", arithmetic="reciprocal").tobytes()
RANGE = kernels.observe(TINY)[0].tobytes()


def test_kernels_keep_subnormal_numbers(flushed: None) -> None:
    """One thread, by the C functions."""
    assert kernels.fake_quantize(TINY, SCALE, 0, qtype="int8").tobytes() == DIVIDED
    assert kernels.observe(TINY)[0].tobytes() == RANGE


def test_threads_keep_subnormal_numbers(flushed: None) -> None:
    """Threads that are started here have the setting too."""
    torch = pytest.importorskip("torch")
    from onnxfq.torch import fake_quantize_per_tensor_affine

    found = fake_quantize_per_tensor_affine(torch.from_numpy(TINY), torch.tensor(NORMAL), 0, -128, 127)
    assert found.numpy().tobytes() == AS_TORCH


@pytest.mark.parametrize("threads", [1, 2])
def test_operators_keep_subnormal_numbers(ops, threads: int, flushed: None) -> None:
    """The threads of a session that is made here have the setting too."""
    assert ops.fake_quantize(TINY, SCALE, qtype="int8", threads=threads).tobytes() == DIVIDED


def test_a_small_scale_is_told_as_what_it_is(ops, flushed: None) -> None:
    """The error names the rule that the scale breaks."""
    with pytest.raises(Exception, match="too small to have a finite reciprocal; use arithmetic 'divide'"):
        ops.fake_quantize(TINY, TOO_SMALL, qtype="int8", arithmetic="reciprocal")
