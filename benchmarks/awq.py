"""AWQ's search of input factors and clipping (Lin et al., 2023), alone and before GPTQ, on trained networks.

    python benchmarks/awq.py FOLDER [--only stories260k_ts] [--schemes int4/64,NVFP4]

FOLDER is the one of `real_models.py`. Each input of a layer has the factor rms(x)^alpha, and its weights are
rounded after multiplication with it; each group has the scale of least error. Both are chosen by the expected
error of the outputs on calibration data, and scored on other data. Every factor counts as folded into the
layer before, also where no layer can take it: real models reach at most this.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from real_cases import CASES, Case, Folder, raised_to_float32
from rounding import make_recipe

import onnxfq
from onnxfq.calibration.weights import InputMoments, round_weight
from onnxfq.calibration.weights.gptq import round_columns
from onnxfq.calibration.weights.grid import WeightGrid
from onnxfq.graph.constants import weight_array
from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.block_scales import ScaleRule, Scales, choose_scales
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec
from onnxfq.passes.replace_constants import replace_weights, separate_float_readers, weight_tensor
from onnxfq.remedies.moments import collect_moments
from onnxfq.remedies.weighted_layers import WeightedLayer, find_layers

ALPHAS = np.linspace(0, 1, 11)
SHARES = np.linspace(1, 0.4, 25)
"""Largest magnitudes of a group that are tried, in times its own."""

ROW = Granularity(axis=0)
Array = NDArray[np.float64]


class Searched(NamedTuple):
    """A weight [groups, outputs, inputs] and what its scales are chosen from."""

    layer: WeightedLayer
    moments: InputMoments
    weights: NDArray[np.float32]

    @property
    def spec(self) -> QuantSpec:
        """Format of the weight."""
        return self.layer.placement.spec

    def grid(self, alpha: float, clip: bool) -> WeightGrid:
        """Return the grid with factors of this `alpha`.

        Args:
            alpha: power of the inputs' size; 0 for factors of 1.
            clip: choose scales by the error of the outputs, with products of inputs; else by their squares.
        """
        size = np.sqrt(np.diagonal(self.moments.plain, axis1=1, axis2=2))
        factors = np.maximum(size, 1e-4 * size.mean(axis=1, keepdims=True) + 1e-30) ** alpha
        factors /= np.sqrt(factors.max(axis=1, keepdims=True) * factors.min(axis=1, keepdims=True))
        scale = self._scales((self.weights * factors[:, None]).astype(np.float32), 1 / factors, clip)
        return WeightGrid(
            self.spec.grid, (scale / factors[:, None]).astype(np.float32), np.zeros((), np.float32)
        )

    def error(self, rounded: NDArray[np.float32]) -> float:
        """Return the expected squared error of the outputs."""
        return float(self.moments.errors(self.weights, rounded).sum())

    def _scales(self, weights: NDArray[np.float32], shrink: Array, clip: bool) -> NDArray[np.float32]:
        groups, outputs, inputs = weights.shape
        size = self.spec.granularity.block_size or inputs
        count = -(-inputs // size)
        tail = (0, count * size - inputs)
        rows = np.pad(weights, [(0, 0), (0, 0), tail]).reshape(-1, size)
        whole = np.pad(self.moments.plain * shrink[:, :, None] * shrink[:, None], [(0, 0), tail, tail])
        whole = whole.reshape(groups, count, size, count, size)
        blocks = np.stack([whole[:, n, :, n] for n in range(count)], axis=1)
        if not clip:
            blocks = blocks * np.eye(size)
        best, found = np.full(len(rows), np.inf), np.ones(len(rows), np.float32)
        for scale in self._tried(rows):
            lost = fake_quantize(rows, scale, qtype=self.spec.grid, granularity=ROW).astype(np.float64) - rows
            lost = lost.reshape(groups, outputs, count, size).transpose(0, 2, 1, 3)
            error = ((lost @ blocks) * lost).sum(axis=3).transpose(0, 2, 1).reshape(-1)
            found, best = np.where(error < best, scale, found), np.minimum(error, best)
        return np.repeat(found.reshape(groups, outputs, count), size, axis=2)[..., :inputs]

    def _tried(self, rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the scales of each row to choose from."""
        low, high = np.minimum(rows.min(axis=1), 0.0), np.maximum(rows.max(axis=1), 0.0)
        amax = np.maximum(-low, high).astype(np.float64)
        if self.spec.scale_type == "float32":
            ends = ((np.maximum(low, -amax * share), np.minimum(high, amax * share)) for share in SHARES)
            rules = self.spec.param_rules()
            return [choose_qparams(*pair, self.spec.qtype, True, rules)[0] for pair in ends]
        rule = ScaleRule(self.spec.qtype, self.spec.scale_type, True)
        rule = rule._replace(global_scale=choose_scales(rows, rule, ROW).global_scale)
        shares = (1.0, 2.0, 0.5) if self.spec.scale_type == "e8m0" else (1.5, 1.25, *SHARES[:15])
        return [choose_scales((amax * share).astype(np.float32), rule, ROW).scale for share in shares]


def measure(folder: Folder, case: Case, scheme: str, work: Path) -> dict[str, float]:
    """Return the first figure of the task by each way of rounding."""
    path = folder.path / case.file
    if case.raised:
        path = work / "raised.onnx"
        onnx.save(raised_to_float32(folder.path / case.file), path)
    model, feeds = onnxfq.load(path), folder.feeds(case)
    plan = onnxfq.make_plan(model, make_recipe(scheme, "gptq"))
    encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, feeds))
    layers = {}
    for layer, moments in collect_moments(model, find_layers(model, plan)[0], feeds):
        weights = layer.view.fold(weight_array(model, layer.placement.tensor).astype(np.float32))
        layers[layer.placement.tensor] = Searched(layer, moments, weights)

    def today(name: str, one: Searched) -> NDArray[np.float32]:
        old = encodings[name]
        scales = Scales(old.scale_array, old.zero_point_array.astype(np.float32), old.global_scale)
        stored = weight_array(model, name).astype(np.float32)
        made = round_weight(stored, one.spec, scales, one.layer.view, one.moments, "gptq")
        return one.layer.view.fold(made.values)

    def score(rounded: Callable[[str, Searched], NDArray[np.float32]]) -> float:
        tensors = {}
        for name, one in layers.items():
            stored = weight_array(model, name)
            values = one.layer.view.unfold(rounded(name, one), stored.shape)
            tensors[name] = weight_tensor(name, values, stored)
        made = replace_weights(separate_float_readers(model, plan, tensors), tensors)
        onnx.save(made.proto, work / "rounded.onnx")
        return folder.measure(case, {case.file: work / "rounded.onnx"})[0]

    figures = {}
    for title, alphas, clip in (("scales", [0.0], False), ("clip", [0.0], True), ("AWQ", ALPHAS, True)):
        chosen = _choose(layers, alphas, clip)
        figures[title] = score(partial(_round_plainly, chosen))
        figures[f"{title}, GPTQ"] = score(partial(_round_columns, chosen))
    return figures | {"gptq": score(today)}


def _round_plainly(grids: dict[str, WeightGrid], name: str, one: Searched) -> NDArray[np.float32]:
    return grids[name].round(one.weights)


def _round_columns(grids: dict[str, WeightGrid], name: str, one: Searched) -> NDArray[np.float32]:
    return round_columns(one.weights, grids[name], one.moments.factor)


def _choose(layers: dict[str, Searched], alphas: Array | list[float], clip: bool) -> dict[str, WeightGrid]:
    """Return the grids of least error; layers with one input share an alpha."""
    groups: dict[object, list[str]] = {}
    for name, one in layers.items():
        first = one.layer.inputs[0]
        groups.setdefault((first.tensor, first.view), []).append(name)
    chosen: dict[str, WeightGrid] = {}
    for names in groups.values():
        least = np.inf
        for alpha in alphas:
            grids = {name: layers[name].grid(alpha, clip) for name in names}
            error = sum(layers[name].error(grids[name].round(layers[name].weights)) for name in names)
            if error < least:
                least, chosen = error, chosen | grids
    return chosen


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="stories260k_ts", help="models whose path holds this text")
    parser.add_argument("--schemes", default="int4/64,int4/32,NVFP4")
    asked = parser.parse_args()
    folder = Folder(asked.folder.resolve())
    for case in CASES:
        for scheme in asked.schemes.split(",") if asked.only in case.file else ():
            with tempfile.TemporaryDirectory() as work:
                figures = measure(folder, case, scheme, Path(work))
            cells = (f"{title} {figure:.4g}" for title, figure in figures.items())
            print(f"{case.name} {case.metrics[0]} {scheme}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
