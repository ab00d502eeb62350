"""Calibrators on the activations of real networks, against the rules of peers.

The networks are the shipped digit network and the transformer of models/; with ONNXFQ_MODELS set to a
folder as benchmarks/real_models.py takes it, four more follow.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfq.calibration.calibrators.entropy import (
    LINEAR_BINS,
    divergences,
    entropy,
    least_divergence,
    magnitude_histogram,
)
from onnxfq.calibration.calibrators.grid_error import Density, grid_error
from onnxfq.calibration.calibrators.percentile import quantile_bin
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.graph.io.load import load
from onnxfq.numerics.spec import QuantSpec
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

INT8 = QuantSpec(qtype="int8")
UINT8 = QuantSpec(qtype="uint8", symmetric=False)
REAL = {
    "s02_resnet20_cifar10": "resnet20_op13_bn.onnx",
    "s03_yolox_nano": "yolox_nano.onnx",
    "s09_super_resolution": "espcn_x3_op10.onnx",
    "s11_stories260k": "stories260k_ts_op17.onnx",
}
VALUES = 60_000
"""Values of a tensor that are looked at: the first ones of a few feeds."""
INSIDE = 0.25 / 2**8
"""The share that entropy lets saturate."""


def activations_of(model, feeds):
    """Return {tensor: float32 values} of every activation that the default recipe quantizes."""
    loaded = load(model)
    names = [placement.tensor for placement in make_plan(loaded, load_recipe("tensorrt-int8")).activations]
    proto = onnx.ModelProto()
    proto.CopyFrom(loaded.proto)
    known = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in names
        if name not in known
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    taken = {name: [] for name in names}
    inner = [name for name in names if name not in feeds[0]]
    for feed in feeds:
        for name, value in {**feed, **dict(zip(inner, session.run(inner, feed), strict=True))}.items():
            if name in taken:
                taken[name].append(value.ravel()[: VALUES // len(feeds)])
    return {name: np.concatenate(parts).astype(np.float32) for name, parts in taken.items()}


def transformer(folder, images):
    """Activations of the transformer of models/, untrained."""
    torch = pytest.importorskip("torch.nn") and importlib.import_module("torch")
    from onnxfq import export_torch

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "models")
        network = importlib.import_module("transformer").build().eval()
    model = export_torch(network, (torch.from_numpy(images[:2]),), folder / "transformer.onnx")
    (name,) = (value.name for value in onnx.load(folder / "transformer.onnx").graph.input)
    assert model is not None
    return activations_of(folder / "transformer.onnx", [{name: images[:2]}, {name: images[2:4]}])


@pytest.fixture(scope="module")
def tensors(digits_model, digit_images, tmp_path_factory):
    """Every activation of the networks, by name, without those that hold one value."""
    found = {"digits": activations_of(digits_model, [{"image": digit_images[i : i + 8]} for i in (0, 8)])}
    found["transformer"] = transformer(tmp_path_factory.mktemp("exported"), digit_images)
    folder = os.environ.get("ONNXFQ_MODELS")
    for part, model in REAL.items() if folder else ():
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            feeds = list(importlib.import_module("score").feeds(part, model))[:4]
        found[part] = activations_of(Path(folder) / part / model, feeds)
    named = {f"{net}: {name}": x for net, mine in found.items() for name, x in mine.items()}
    assert len(named) >= 20
    return {name: x for name, x in named.items() if x.min() < x.max()}


@pytest.fixture(scope="module")
def some(tensors, request):
    """Every sixth tensor, for slow comparisons; --all-cases has all."""
    return dict(list(tensors.items())[:: 1 if request.config.getoption("--all-cases") else 6])


def amax_of(limits):
    """Return the larger end."""
    return max(map(abs, limits))


def smoothed(counts):
    """Give the bin of zero the next one's count, as the method does."""
    return np.concatenate([counts[1:2], counts[1:]])


def published_entropy(counts, levels):
    """The stride search of NVIDIA's pytorch-quantization with stride 1: the number of bins it keeps.

    Bin i of n belongs to level floor(i * levels / n); P has all counts beyond on its last bin, Q spreads each
    level's counts over its occupied bins; the last of equal divergences is taken.
    """
    bins = smoothed(counts)
    found = []
    for end in range(levels, bins.size + 1):
        level = np.arange(end) * levels // end
        occupied = bins[:end] > 0
        mass = np.bincount(level, bins[:end], levels)
        support = np.bincount(level, occupied, levels)
        q = np.where(occupied, (mass / np.maximum(support, 1))[level], 0.0)
        p = bins[:end].copy()
        p[-1] += bins[end:].sum()
        p, q = p / p.sum(), q / max(q.sum(), 1e-300)
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append(np.where(p > 0, p * np.log(p / q), 0.0).sum())
    return levels + len(found) - 1 - int(np.argmin(found[::-1]))


def test_entropy_on_the_histogram_of_pytorch_quantization(tensors):
    """Given its own linear histogram, and no limit on what saturates, the same bin as its rule."""
    for name, x in tensors.items():
        counts = np.histogram(np.abs(x), 512, (0.0, np.abs(x).max()))[0].astype(np.float64)
        assert least_divergence(counts, 128, 1.0) == published_entropy(counts, 128), name


@pytest.mark.sample
def test_percentile_on_the_histogram_of_pytorch_quantization(tensors):
    """Given its own linear histogram, the same bin: the first whose running share reaches the percentile."""
    for name, x in tensors.items():
        counts = np.histogram(np.abs(x), LINEAR_BINS, (0.0, np.abs(x).max()))[0]
        total = counts.sum()
        for percent in (99.0, 99.9, 99.99):
            share = np.cumsum(counts / total)
            theirs = np.searchsorted(share, percent / 100)
            ours = counts.size - 1 - quantile_bin(counts[::-1], round((1 - percent / 100) * total, 6))
            # A share that is the percentile exactly is rounded to either side of it.
            at = share[min(ours, theirs)]
            assert ours == theirs or at == pytest.approx(percent / 100, abs=1e-12), name


def test_mse_on_the_histogram_of_pytorch_quantization(some):
    """Given its own linear histogram, all values on the bins' middles, the same middle as its rule.

    Its rule: of the middles from the 128th on the one whose symmetric grid of -127 ... 127 has the least
    squared error.
    """
    spec = QuantSpec(qtype="int8[-127,127]")
    for name, x in some.items():
        counts, edges = np.histogram(np.abs(x), LINEAR_BINS, (0.0, float(np.abs(x).max())))
        middles = (edges[1:] + edges[:-1]) / 2
        theirs = []
        for amax in middles[128:]:
            scale = 127 / amax
            rounded = np.clip(np.round(middles * scale), -127, 127) / scale
            theirs.append(((rounded - middles) ** 2 * counts).sum())
        density = Density(middles, middles, counts.astype(np.float64))
        ours = grid_error(density, -middles[128:], middles[128:], spec)
        # Our scales are float32, which can turn a tie of two middles round.
        assert np.argmin(ours) == np.argmin(theirs) or min(theirs) == pytest.approx(
            theirs[np.argmin(ours)], rel=1e-5
        ), name


def onnxruntime_entropy(x, levels):
    """Return the larger end that onnxruntime's entropy collector chooses with 2048 bins."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector("entropy", True, 2048, levels, 99.99, "same")
    collector.collect({"x": [x]})
    low, high = collector.compute_collection_result()["x"][:2]
    return max(abs(float(low)), abs(float(high)))


def test_entropy_is_never_worse_than_the_rules_of_peers(some):
    """The stated divergence at our end is at most that at onnxruntime's and at pytorch-quantization's.

    Stated: of the histogram as observed, and infinite where more than the limit saturates.
    """
    for name, x in list(some.items())[::24]:
        stats = TensorStatistics.from_array(x)
        counts = magnitude_histogram(Density.from_statistics(stats), stats.amax, LINEAR_BINS)
        exact = np.histogram(np.abs(x), LINEAR_BINS, (0.0, stats.amax))[0].astype(np.float64)
        theirs = [published_entropy(exact, 128)]
        for levels in (128, 255):
            theirs.append(round(onnxruntime_entropy(x, levels) / stats.amax * LINEAR_BINS))
        ours = round(amax_of(entropy(stats, INT8)) / stats.amax * LINEAR_BINS)
        ends = np.clip([ours, *theirs], 128, LINEAR_BINS).astype(np.int64)
        found = divergences(smoothed(counts), np.zeros_like(ends), ends, 128)
        outside = np.asarray([smoothed(counts)[end:].sum() for end in ends]) / smoothed(counts).sum()
        found = np.where(outside > INSIDE * (1 + 1e-9), np.inf, found)
        assert np.isfinite(found[0]) and (found[0] <= found[1:] + 1e-12).all(), name
