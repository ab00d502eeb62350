"""Files of moments: what they round, and what is refused."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apart import run_apart
from builders import plain_quantize
from observed_models import X, folder
from typer.testing import CliRunner

import onnxfq
from onnxfq.calibration.statistics.input_means import ChannelEnds
from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.weights import Moments
from onnxfq.choices import DEFAULT_RECIPE
from onnxfq.cli.main import build_app
from onnxfq.layers.moments import RowSampler, SampledInput
from onnxfq.layers.round_weights import Rounding, round_weights

__all__ = ["folder"]
"""A fixture, which pytest finds by its name."""


def merge(one: Moments, other: Moments) -> Moments:
    """Return the moments over both parts."""
    return Moments(one.statistics.merge(other.statistics))


def run(command: str) -> str:
    """Run a command and return its last line; an error is its text."""
    name, *rest = command.split()
    done = CliRunner().invoke(build_app([name]), [name, *rest])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return str(done.exception)
    return done.output


def test_quantize_rounds_without_running_the_model(folder: Path):
    """Parts merged on the command line round to the bits of the moments of all data, and name it."""
    how = "--recipe tensorrt-int8 --rounding gptq"
    recipe = onnxfq.load_recipe(DEFAULT_RECIPE).override(weights={"rounding": "gptq"})
    usual = round_all(folder, recipe)
    for what, of in (("ranges", "--ranges"), ("moments", f"--ranges-from {folder}/ranges.npz")):
        for at in (0, 1):
            out = folder / f"{what}{at}.npz"
            assert "2 inputs over 12 samples" in run(
                f"observe --moments {folder}/m.onnx --data {folder}/x{at}.npz {how} {of} -o {out}"
            )
        both = f"{folder}/{what}0.npz {folder}/{what}1.npz"
        assert "2 inputs over 24 samples" in run(f"observe --merge {both} -o {folder}/{what}.npz")
    rounded = plain_quantize(
        folder / "m.onnx",
        folder / "x.npz",
        folder / "b.onnx",
        recipe=recipe,
        sources=onnxfq.Sources(moments=folder / "moments.npz"),
    )
    assert rounded.rounding is not None
    assert rounded.rounding.tensors == usual.tensors
    assert rounded.rounding.layers == usual.layers
    digest = Moments.load(folder / "moments.npz").statistics.data.hex[:12]
    assert rounded.encodings.rounding == f"gptq by moments of 24 samples with digest {digest}"
    assert usual.encodings.rounding == "gptq"


def round_all(folder: Path, recipe: onnxfq.Recipe) -> Rounding:
    """Return the weights of the network, rounded by the moments of all samples."""
    model = onnxfq.load(folder / "m.onnx")
    feeds = onnxfq.open_feeds(model.proto, folder / "x.npz")
    plan = onnxfq.make_plan(model, recipe)
    encodings = onnxfq.calibrate(model, plan, onnxfq.collect_statistics(model, plan, feeds))
    return round_weights(model, plan, encodings, feeds)


def test_an_interrupted_run_goes_on_where_it_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C keeps the inputs that are done; --resume gathers the others, and writes the bytes of one run."""
    how = f"observe --moments {folder}/m.onnx --data {folder}/x.npz --recipe tensorrt-int8 --rounding gptq -o"
    run(f"{how} {folder}/whole.npz")
    usual = SampledInput._sum

    def press(self: SampledInput, *arguments: Any) -> MomentSums:
        signal.raise_signal(signal.SIGINT)
        return usual(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SampledInput, "_sum", press)
        said = run(f"{how} {folder}/part.npz")
    assert "interrupted after 1 input;" in said and "continue with --resume" in said
    part = folder / "part.npz"
    for fault in (
        run(f"quantize {folder}/m.onnx --rounding gptq --data {folder}/x.npz --moments {part} -o {folder}/q"),
        run(f"observe --merge {part} {part} -o {folder}/both.npz"),
    ):
        assert "interrupted run, which reached 1 inputs; continue it with `onnxfq observe --resume`" in fault
    other = how.replace("x.npz", "x0.npz")
    assert "give the same data" in run(f"{other} {part} --resume")
    assert "nothing to resume" in run(f"{how} {folder}/whole.npz --resume")
    assert "2 inputs over 24 samples" in run(f"{how} {part} --resume")
    assert part.read_bytes() == (folder / "whole.npz").read_bytes()


def test_an_interruption_before_the_first_input_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while the model runs over the data."""
    usual = SampledInput.add

    def press(self: SampledInput, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        usual(self, *arguments)

    monkeypatch.setattr(SampledInput, "add", press)
    how = f"--data {folder}/x.npz --recipe tensorrt-int8 --rounding gptq"
    run(f"observe --moments {folder}/m.onnx {how} -o {folder}/part.npz")
    assert not (folder / "part.npz").exists()


ON_A_CLUSTER = """
import sys, numpy as np, onnxfq, ray
from onnxfq.errors import OnnxfqError

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         object_store_memory=100 << 20)
x = np.load("x.npz")["x"].repeat(30, axis=0)
model = onnxfq.load("m.onnx")
plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"}))
for name, where in (("one", None), ("ray", "local")):
    onnxfq.gather_moments(model, plan, {"x": x}, f"{name}.npz", ray=where)
    recipe = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"})
    options = onnxfq.QuantizeOptions(ray=where)
    off = onnxfq.AccuracyTarget(repair=None)
    onnxfq.quantize("m.onnx", {"x": x}, f"{name}.onnx", recipe=recipe, options=options, accuracy=off)
x[700] = np.inf
try:
    onnxfq.gather_moments(model, plan, {"x": x}, "bad.npz", ray="local",
                          options=onnxfq.RunOptions(data=onnxfq.DataOptions(nonfinite="skip")))
except OnnxfqError as error:
    print(error)
"""


def test_a_cluster_gathers_and_rounds_to_the_same_bytes(folder: Path, request: pytest.FixtureRequest):
    """Two workers of Ray write the moments and the rounded model of one process; a fault names its feed."""
    pytest.importorskip("ray", reason="extra ray is not installed")
    if not request.config.getoption("--all-cases"):
        pytest.skip("large, for --all-cases")
    told = run_apart("-c", ON_A_CLUSTER, folder=folder)
    for kind in ("npz", "onnx"):
        assert (folder / f"ray.{kind}").read_bytes() == (folder / f"one.{kind}").read_bytes()
    assert "feed 700 gives tensor 'x' NaN or infinities" in told
    assert not (folder / "bad.npz").exists()


def test_weights_alone_need_no_data(folder: Path):
    """A recipe for weights alone rounds by moments where no data is given."""
    model = onnxfq.load(folder / "m.onnx")
    recipe = onnxfq.Recipe.model_validate(
        {"name": "w4", "target": "onnxruntime", "activations": None, "weights": {"qtype": "int4"}}
    ).override(weights={"rounding": "gptq"})
    onnxfq.gather_moments(model, onnxfq.make_plan(model, recipe), folder / "x.npz", folder / "m.npz")
    found = plain_quantize(
        folder / "m.onnx", None, None, recipe=recipe, sources=onnxfq.Sources(moments=folder / "m.npz")
    )
    assert found.rounding is not None and [one.method for one in found.rounding.layers] == ["gptq", "gptq"]
    assert all(one.after_db > one.before_db for one in found.rounding.layers)


def test_the_table_of_calibrate_shows_what_rounding_gains(folder: Path):
    """Two rows for each weight: the expected SQNR that `quantize --rounding` reports before and after."""
    run(f"plan {folder}/m.onnx -o {folder}/p.json")
    run(f"observe {folder}/m.onnx --plan {folder}/p.json --data {folder}/x.npz -o {folder}/s.npz")
    run(f"observe --moments {folder}/m.onnx --data {folder}/x.npz --rounding gptq -o {folder}/m.npz")
    given = f"{folder}/m.onnx --plan {folder}/p.json --statistics {folder}/s.npz -o {folder}/e.json"
    lines = run(f"calibrate {given} --moments {folder}/m.npz --table").splitlines()
    usual = round_all(folder, onnxfq.load_recipe(DEFAULT_RECIPE).override(weights={"rounding": "gptq"}))
    for layer in usual.layers:
        at = next(n for n, line in enumerate(lines) if line.split()[:2] == [layer.weight, "nearest"])
        assert lines[at].split()[-2:] == [f"{layer.before_db:.1f}", "*"]
        name, *_, gained = lines[at + 1].split()
        assert (name, gained) == ("gptq", f"{layer.after_db:.1f}")
    assert "give --table" in run(f"calibrate {given} --moments {folder}/m.npz")
    run(f"observe --moments {folder}/other.onnx --data {folder}/x.npz --rounding gptq -o {folder}/o.npz")
    assert "SHA-256" in run(f"calibrate {given} --moments {folder}/o.npz --table")


def test_what_does_not_fit_is_refused(folder: Path):
    """Other models, parts of the data, ranges alone, other grids, other methods: one line with the remedy."""
    model = onnxfq.load(folder / "m.onnx")
    plan = onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"}))
    x = {at: folder / f"x{at}.npz" for at in (0, 1)}
    ranges = {at: onnxfq.gather_moments(model, plan, x[at], folder / "r.npz", ranges_only=True) for at in x}
    own = {at: onnxfq.gather_moments(model, plan, x[at], folder / f"o{at}.npz") for at in x}
    both = merge(ranges[0], ranges[1])
    part = onnxfq.gather_moments(model, plan, x[0], folder / "p.npz", ranges=both)
    other = onnxfq.gather_moments(model, plan, x[1], folder / "q.npz", ranges=both)
    third = onnxfq.gather_moments(model, plan, X[:12] / 2, folder / "t.npz", ranges=both)
    whole = onnxfq.gather_moments(model, plan, folder / "x.npz", folder / "w.npz")

    values = {key: ChannelEnds(value.ends[:, :5]) for key, value in both.statistics.values.items()}
    narrow = Moments(replace(both.statistics, values=values))

    def quantize(moments: Moments, name: str = "m", rounding: str = "gptq") -> None:
        onnxfq.quantize(
            folder / f"{name}.onnx",
            folder / "x.npz",
            folder / "out.onnx",
            recipe=onnxfq.load_recipe(DEFAULT_RECIPE).override(weights={"rounding": rounding}),
            sources=onnxfq.Sources(moments=moments),
        )

    refused = (
        (lambda: quantize(whole, "other"), "gathered from a model with SHA-256 .* this one has"),
        (lambda: quantize(whole, rounding="nearest"), "for which moments have no effect"),
        (lambda: quantize(whole, rounding="qronos"), "needs the inputs of the quantized model"),
        (lambda: quantize(part), "of 12 of 24 samples; merge"),
        (lambda: quantize(both), "has ranges and no moments"),
        (lambda: merge(own[0], own[1]), "different grids; .*--ranges-from"),
        (lambda: merge(own[0], both), "only one side has"),
        (lambda: merge(both, narrow), "tensor 'x': the parts have 32 and 5 channels"),
        (
            lambda: onnxfq.gather_moments(model, plan, X, folder / "z.npz", ranges=narrow),
            "given ranges of tensor 'x' are of 5 channels, and it has 32; gather them",
        ),
        (lambda: merge(part, part), "p.npz .12 samples. and .*p.npz .12. hold the same samples"),
        (lambda: merge(merge(part, other), third), "36 samples together, and the ranges are of 24"),
        (lambda: quantize(merge(part, third)), "24 samples with digest .* ranges of others"),
        (
            lambda: onnxfq.gather_moments(model, plan, [{"x": 9 * X}], folder / "z.npz", ranges=both),
            "feed 0 gives tensor 'x' values outside of the given ranges",
        ),
        (
            lambda: onnxfq.gather_moments(
                model, onnxfq.make_plan(model, onnxfq.load_recipe("tensorrt-int8")), X, folder / "z.npz"
            ),
            "rounds no weight by moments",
        ),
        (lambda: Moments.load(folder / "x.npz"), "x.npz is not a statistics file"),
        (lambda: Moments.load(folder / "none.npz"), "no such file"),
    )
    for call, message in refused:
        with pytest.raises(onnxfq.OnnxfqError, match=message):
            call()
    assert not (folder / "out.onnx").exists() and not (folder / "z.npz").exists()
    held = bytearray((folder / "w.npz").read_bytes())
    held[len(held) // 3] ^= 0xFF
    (folder / "bad.npz").write_bytes(held)
    with pytest.raises(onnxfq.OnnxfqError, match="bad.npz is not a statistics file"):
        quantize(Moments.load(folder / "bad.npz"))


def test_rows_of_two_shapes_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that asks for another shape between two steps of the first does not change its answer."""
    sampler, shapes = RowSampler(("x", InputView("MatMul", -1)), 4096), (((1, 50, 4), 1), ((1, 70, 4), 1))
    wanted = [sampler.sample_of(shape) for shape in shapes]
    kept: list[Any] = [None]

    def keep(sampler: RowSampler, value: Any) -> None:
        first, kept[:] = kept[0] is None, [value]
        if first:
            sampler.sample_of(shapes[1])  # as another thread may

    monkeypatch.setattr(RowSampler, "_sample", property(lambda sampler: kept[0], keep), raising=False)
    taken = sampler.sample_of(shapes[0])
    assert taken.take(np.ones((1, 50, 4), np.float32)).shape == (1, 8, 4)
    assert np.array_equal(taken.pixels, wanted[0].pixels)
    assert not np.array_equal(taken.pixels, wanted[1].pixels)
