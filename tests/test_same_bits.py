"""One calibration, fed in many ways: statistics' files, models and moments are the same bytes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, weights
from observed_models import by_groups, feeds_of, narrow_channels
from short_digits import short_digits

import onnxfq
from onnxfq.calibration.calibrators import observing_names
from onnxfq.calibration.statistics import Statistics
from onnxfq.calibration.weights import Moments
from onnxfq.cli.main import main
from onnxfq.data import Feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError
from onnxfq.graph.io.load import load
from onnxfq.layers.moments import collect_moments
from onnxfq.layers.weighted_layers import find_layers
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.insert import insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import MergingObserver, ObserveOptions
from onnxfq.stages.options import open_feeds
from onnxfq.stages.plan import make_plan
from onnxfq.support.resources import package_file
from onnxfq.targets.recipes import load_recipe
from onnxfq.tools.record_moments import gather_moments

COUNT = 16
"""Samples of each network."""

MODELS = Path(os.environ.get("ONNXFQ_MODELS", "missing"))
"""A folder of trained networks, each in its own folder."""
ORDER_FREE = sorted(name for name in observing_names() if name != "moving_average")


def digits(folder: Path, count: int = COUNT) -> tuple[Path, Feed]:
    """Trained layers with some digits, in a file."""
    onnx.save(short_digits(), folder / "digits.onnx")
    with np.load(package_file("digits", "mnist_t10k.npz")) as data:
        images = data["images"][8000 : 8000 + count].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(
            255
        )
    return folder / "digits.onnx", {"image": images}


def tokens(folder: Path) -> tuple[Path, Feed]:
    """A small transformer layer over sequences of any length, in a file."""
    model = build(
        """g (float[N,T,32] x) => (float[N,T,32] y) {
            q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)
            kt = Transpose <perm = [0,2,1]> (k)
            s = MatMul (q, kt) p = Softmax <axis = -1> (s)
            o = MatMul (p, v) h = MatMul (o, w1) r = Relu (h) y = MatMul (r, w2) }""",
        {
            **{name: weights(32, 32, seed=i) / np.float32(8) for i, name in enumerate(("wq", "wk", "wv"))},
            "w1": weights(32, 64),
            "w2": weights(64, 32),
        },
    )
    onnx.save(model, folder / "tokens.onnx")
    x = np.random.default_rng(0).standard_normal((COUNT, 17, 32)).astype(np.float32)
    return folder / "tokens.onnx", {"x": x}


def resnet20() -> tuple[Path, Feed]:
    """A trained ResNet-20, where it is at hand."""
    found = sorted(MODELS.glob("*/resnet20*bn.onnx"))
    if not found:
        pytest.skip("ONNXFQ_MODELS names no folder that has it")
    (spec,) = input_specs(load(found[0]).proto)
    x = np.random.default_rng(0).standard_normal((COUNT, *(spec.shape or ())[1:])).astype(np.float32)
    return found[0], {spec.name: x}


def channels(folder: Path) -> tuple[Path, Feed]:
    """Convolutions whose channels fill no whole block of the runtime's layout."""
    onnx.save(narrow_channels(), folder / "channels.onnx")
    return folder / "channels.onnx", {"x": np.concatenate([feed["x"] for feed in feeds_of(COUNT)])}


INT8 = load_recipe("tensorrt-int8")
OBSERVED = {
    "digits": (digits, INT8),
    "tokens": (tokens, INT8),
    "resnet20": (lambda _: resnet20(), INT8),
    "channels": (channels, INT8),
    "groups": (channels, by_groups("simulation", granularity="per_axis")),
}
"""Networks and what is observed of them; of the last, a range and a histogram for each channel."""


def sampled(names: Iterable[str], *few: str) -> list[Any]:
    """Mark those of the names that stand for all where a run takes a sample."""
    return [pytest.param(one, marks=pytest.mark.sample) if one in few else one for one in names]


def parts(data: Feed, size: int) -> list[Feed]:
    """The samples in feeds of `size`."""
    (name, values), *_ = data.items()
    return [{name: values[start : start + size]} for start in range(0, len(values), size)]


def turned(data: Feed, order: object) -> Feed:
    """The samples in another order."""
    return {name: values[order] for name, values in data.items()}


def one_by_one(data: Feed) -> Iterator[Feed]:
    """A generator without the batch axis."""
    (name, values), *_ = data.items()
    yield from ({name: sample} for sample in values)


OBSERVE = """
import sys
import numpy as np
from onnxfq.graph.io.load import load
from onnxfq.stages.observe import collect_statistics
from onnxfq.documents.recipe import Recipe
from onnxfq.stages.options import open_feeds
from onnxfq.stages.plan import make_plan

model = load(sys.argv[1])
plan = make_plan(model, Recipe.model_validate_json(sys.argv[4]))
collect_statistics(model, plan, open_feeds(model.proto, sys.argv[2])).save(sys.argv[3])
"""


def split_over_processes(path: Path, data: Feed, recipe: Recipe, folder: Path) -> Statistics:
    """Each quarter observed by a separate process, merged last to first."""
    running = []
    for number, part in enumerate(parts(data, COUNT // 4)):
        np.savez(folder / f"{number}.npz", **part)
        files = [str(path), str(folder / f"{number}.npz"), str(folder / f"{number}.stats.npz")]
        words = [sys.executable, "-c", OBSERVE, *files, recipe.model_dump_json()]
        running.append(subprocess.Popen(words, stderr=subprocess.PIPE))
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    files = sorted(folder.glob("*.stats.npz"), reverse=True)
    return reduce(Statistics.merge, (Statistics.load(file) for file in files))


WAYS: dict[str, Callable[[Feed], object]] = {
    "batches of 1": lambda data: parts(data, 1),
    "batches of 8": lambda data: parts(data, 8),
    "all at once": lambda data: [data],
    "an array": lambda data: next(iter(data.values())),
    "reversed": lambda data: turned(data, slice(None, None, -1)),
    "shuffled": lambda data: parts(turned(data, np.random.default_rng(5).permutation(COUNT)), 7),
    "samples from a generator": one_by_one,
    "a function": lambda data: lambda: iter(parts(data, 3)),
}


@pytest.mark.parametrize("network", sampled(OBSERVED, "tokens"))
def test_however_it_is_fed(network: str, tmp_path: Path) -> None:
    """Batches, order, sources, threads, passes and processes change no byte, for any calibrator."""
    make_network, recipe = OBSERVED[network]
    path, data = make_network(tmp_path)
    model = load(path)
    plan = make_plan(model, recipe)
    np.savez(tmp_path / "all.npz", **data)
    found = {
        way: collect_statistics(model, plan, open_feeds(model.proto, make(data)))
        for way, make in WAYS.items()
    }
    file = str(tmp_path / "all.npz")
    for threads in (1, 2, 4):
        options = ObserveOptions(threads=threads)
        found[f"{threads} threads"] = collect_statistics(model, plan, open_feeds(model.proto, file), options)
    few = ObserveOptions(memory=1 << 18)
    found["several passes"] = collect_statistics(model, plan, open_feeds(model.proto, file), few)
    with MergingObserver(model, plan, ObserveOptions(), "cpu") as observer:
        found["merged by the model"] = observer.run(open_feeds(model.proto, file))
    if network == "tokens":
        found["processes"] = split_over_processes(path, data, recipe, tmp_path)
    if network == "groups":  # their states, from files, last to first
        for number, part in enumerate(parts(data, COUNT // 4)):
            one = collect_statistics(model, plan, open_feeds(model.proto, [part]))
            one.save(tmp_path / f"{number}.stats.npz")
        files = sorted(tmp_path.glob("*.stats.npz"), reverse=True)
        found["merged files"] = reduce(Statistics.merge, map(Statistics.load, files))
    assert len(found) >= 10
    digests = {way: digest_of_file(statistics, tmp_path) for way, statistics in found.items()}
    assert len(set(digests.values())) == 1, digests
    for calibrator in ORDER_FREE:
        models = {
            insert_qdq(model, plan, calibrate(model, plan, found[way], calibrator)).SerializeToString(
                deterministic=True
            )
            for way in ("batches of 1", "shuffled")
        }
        assert len(models) == 1, calibrator


def digest_of_file(statistics: Statistics, folder: Path) -> str:
    """Return the SHA-256 of the file that statistics are saved in."""
    statistics.save(folder / "s.npz")
    return hashlib.sha256((folder / "s.npz").read_bytes()).hexdigest()


@pytest.mark.parametrize("network", sampled(["digits", "tokens"], "tokens"))
def test_files_of_moments_however_they_are_made(network: str, tmp_path: Path) -> None:
    """Every way of feeding, threads, passes, and parts merged in any order give the same bytes."""
    path, data = {"digits": digits, "tokens": tokens}[network](tmp_path)
    model = load(path)
    plan = make_plan(model, load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"}))

    def gather(name: str, feeds: object, **how: object) -> Moments:
        return gather_moments(model, plan, feeds, tmp_path / f"{name}.moments.npz", **how)

    made = {way: gather(way, make(data)) for way, make in WAYS.items() if make is not one_by_one}
    made["passes"] = gather("passes", parts(data, 8), memory=1)
    for threads in (2, 4):
        options = onnxfq.RunOptions(threads=threads)
        made[f"{threads} threads"] = gather(f"{threads} threads", parts(data, 8), options=options)
    pieces = parts(data, COUNT // 4)
    files = [gather(f"r{i}", [one], ranges_only=True) for i, one in enumerate(pieces)]
    reduce(Statistics.merge, [one.statistics for one in files]).save(tmp_path / "ranges.npz")
    files = [gather(f"p{i}", [one], ranges=tmp_path / "ranges.npz") for i, one in enumerate(pieces)]
    reduce(Statistics.merge, [one.statistics for one in reversed(files)]).save(
        tmp_path / "merged.moments.npz"
    )
    bytes_of = {way: (tmp_path / f"{way}.moments.npz").read_bytes() for way in [*made, "merged"]}
    assert len(set(bytes_of.values())) == 1, {way: len(held) for way, held in bytes_of.items()}
    layers, refused = find_layers(model, plan)
    assert not refused
    kept = Moments.load(tmp_path / "merged.moments.npz")
    for room in (None, 1 << 20):
        for layer, moments in collect_moments(
            model, layers, open_feeds(model.proto, parts(data, 8)), room=room
        ):
            found = kept.of_layer((one.tensor, one.view) for one in layer.inputs)
            assert (found.rows, found.plain.tobytes()) == (moments.rows, moments.plain.tobytes())


def uneven(folder: Path) -> tuple[Path, Feed]:
    """Convolutions, a sum, a recurrent layer along the rows and a class, for samples of unequal size."""
    model = build(
        """g (float[N,3,8,8] x) => (float[N,10] y) {
            c = Conv <pads = [1,1,1,1]> (x, w0, b0) r = Relu (c)
            d = Conv <pads = [1,1,1,1]> (r, w1) a = Add (d, r)
            m = ReduceMean <axes = [3], keepdims = 0> (a) t = Transpose <perm = [2,0,1]> (m)
            l, h = GRU <hidden_size = 8> (t, gw, gr) k = Squeeze (h, first)
            y = Gemm <transB = 1> (k, w2, b2) }""",
        {
            "w0": weights(4, 3, 3, 3),
            "b0": weights(4),
            "w1": weights(4, 4, 3, 3, seed=1),
            "gw": weights(1, 24, 4) / np.float32(2),
            "gr": weights(1, 24, 8) / np.float32(2),
            "first": np.array([0]),
            "w2": weights(10, 8, seed=2),
            "b2": weights(10),
        },
        opset=17,
    )
    onnx.save(model, folder / "uneven.onnx")
    rng = np.random.default_rng(5)
    x = rng.normal(size=(COUNT, 3, 8, 8)) * np.exp(rng.normal(size=(COUNT, 1, 1, 1)))
    return folder / "uneven.onnx", {"x": x.astype(np.float32)}


NETWORKS = {"digits": digits, "tokens": tokens, "uneven": uneven}

CHOOSING = {
    "repair": ["--repair", "60"],
    "promise": ["--min-sqnr", "PROMISED"],
    "smooth": ["--smooth", "auto"],
    "equalize": ["--equalize", "auto"],
    "biases": ["--bias-correction", "auto", "--recipe", "w4a8.yaml"],
    "rounding": ["--rounding", "auto", "--recipe", "w4a8.yaml"],
    "halves": ["--float", "fp16"],
    "sequence": ["--rounding", "qronos"],
}
"""Options that choose by runs of the data."""

W4A8 = "{name: w4a8, target: simulation, activations: {qtype: int8, calibrator: minmax}, "
W4A8 += "weights: {qtype: int4, rounding: nearest}}"


def feeding_words(folder: Path, data: Feed) -> dict[str, list[str]]:
    """Return the words of the command line for each way of feeding the same samples."""
    ((name, values),) = data.items()
    turned_values = values[np.random.default_rng(7).permutation(len(values))]
    np.savez(folder / "d.npz", **data)
    np.savez(folder / "turned.npz", **{name: turned_values})
    np.savez_compressed(folder / "small.npz", **data)
    np.save(folder / "d.npy", values)
    for count in (1, 7):
        (folder / f"of{count}").mkdir()
        for number, part in enumerate(np.array_split(values, count)):
            np.savez(folder / f"of{count}" / f"{number}.npz", **{name: part})
    (folder / "made_here.py").write_text(
        f"import numpy as np\n\ndef samples():\n    for one in np.load({str(folder / 'd.npy')!r}):\n"
        f"        yield {{{name!r}: one}}\n"
    )
    file = str(folder / "d.npz")
    return {
        "npz": [file],
        **{f"batch {size}": [file, "--batch", str(size)] for size in (1, 2, 3, 8, 0)},
        "turned": [str(folder / "turned.npz")],
        "turned, 3 threads": [str(folder / "turned.npz"), "--threads", "3"],
        "compressed": [str(folder / "small.npz")],
        "one file": [str(folder / "of1")],
        "seven files": [str(folder / "of7")],
        "npy": [str(folder / "d.npy")],
        "function": ["made_here:samples"],
    }


SOME_WAYS = ("batch 8", "batch 0", "turned, 3 threads", "seven files", "function")
"""Tensors that differ most; one of them for each network and option, unless all are asked for."""


@pytest.mark.grid
@pytest.mark.parametrize("option", sorted(CHOOSING))
@pytest.mark.parametrize("network", sampled(sorted(NETWORKS), "tokens"))
def test_a_choice_however_it_is_fed(
    network: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Order, batches, files and threads change no byte of a model whose making chose, and no trial of it."""
    path, data = NETWORKS[network](tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("made_here", None)
    words = [str(path), *CHOOSING[option]]
    if "PROMISED" in words:
        words[-1] = str(promised(path, data))
    (tmp_path / "w4a8.yaml").write_text(W4A8)
    ways = feeding_words(tmp_path, data)
    if not request.config.getoption("--all-ways"):
        first = (sorted(NETWORKS).index(network) + sorted(CHOOSING).index(option)) % len(SOME_WAYS)
        ways = {way: ways[way] for way in ("npz", SOME_WAYS[first])}
    found = {}
    for way, given in ways.items():
        assert main(["quantize", *words, "--data", *given, "-o", "q.onnx", "--json"]) == 0
        trials = [one | {"seconds": 0.0} for one in json.loads(capsys.readouterr().out)["trials"]]
        found[way] = hashlib.sha256((tmp_path / "q.onnx").read_bytes()).hexdigest(), str(trials)
    assert len(set(found.values())) == 1, found


def promised(path: Path, data: Feed) -> float:
    """Return a promise that some groups of the network must stay in float for."""
    plain = (
        onnxfq.quantize(path, data, accuracy=onnxfq.AccuracyTarget(repair=None))
        .evaluation.candidates[0]
        .outputs
    )
    for more in (16, 12, 10, 8, 6, 4, 2, 1):
        wanted = round(min(one.sqnr_db for one in plain)) + more
        try:
            made = onnxfq.quantize(path, data, accuracy=onnxfq.AccuracyTarget(min_sqnr=wanted))
        except RecipeError:
            continue
        if made.sensitivity is not None and made.sensitivity.remedy is not None:
            return wanted
    raise AssertionError("no promise above what quantizing gives can be kept")


def test_a_promised_drop_in_any_order(tmp_path: Path) -> None:
    """Samples turned together with their labels, in any batches: the same layers stay in float."""
    path, data = digits(tmp_path, 40)
    (name, images), *_ = data.items()
    (tmp_path / "w4a8.yaml").write_text(W4A8)
    session = Session(load(path).proto, 1)
    labels = np.concatenate([session.run({name: one[None]})[0].argmax(-1).ravel() for one in images])
    rng, found = np.random.default_rng(3), {}
    for batch, is_turned in ((1, False), (7, True), (0, True)):
        order = rng.permutation(len(images)) if is_turned else np.arange(len(images))
        accuracy = onnxfq.AccuracyTarget(max_drop=0.004, labels=labels[order].tolist(), metric=confidence)
        made = onnxfq.quantize(
            path,
            {name: images[order]},
            tmp_path / "q.onnx",
            recipe=tmp_path / "w4a8.yaml",
            accuracy=accuracy,
            options=onnxfq.RunOptions(batch=batch),
        )
        assert made.sensitivity is not None and made.sensitivity.remedy is not None
        found[batch] = hashlib.sha256((tmp_path / "q.onnx").read_bytes()).hexdigest()
    assert len(set(found.values())) == 1, found


def confidence(outputs: Iterator[Feed], labels: np.ndarray) -> float:
    """A metric of the user: the mean share of the right class, summed as exactly as float64 can."""
    shares = []
    for made, label in zip(outputs, labels, strict=True):
        logits = next(iter(made.values())).astype(np.float64).ravel()
        assert logits.size == 10  # one sample at a time
        shares.append(np.exp(logits[label] - logits.max()) / np.exp(logits - logits.max()).sum())
    return math.fsum(shares) / len(shares)
