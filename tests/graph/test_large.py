"""Models with data files and models that one file cannot hold; the limit is lowered to see both."""

from __future__ import annotations

import hashlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import BUILDERS, build, constants, feed_for, open_as_written, weights, whole_recipe
from builders import plain_quantize as quantize
from command_server import CommandServer, command_server

from onnxfq.cli.main import main
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import ModelError, OutputError
from onnxfq.graph.external import sizes
from onnxfq.graph.external.tensor import is_external, tensor_array
from onnxfq.graph.io.load import load
from onnxfq.graph.io.save import save
from onnxfq.runtime.session import Session
from onnxfq.targets.target import BuildOptions
from onnxfq.tools.check import check


def two_layers(folder: Path, external: bool = True, opset: int = 17, width: int = 256) -> Path:
    """Write a model with two weights of [256, width], 256 kB, in a data file when `external`."""
    proto = build(
        """g (float[N,256] x) => (float[N,256] y) {
            [a] h = MatMul (x, w1) r = Relu (h) [b] y = MatMul (r, w2) }""",
        {"w1": weights(256, width), "w2": weights(width, 256, seed=1)},
        opset=opset,
    )
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    onnx.save(proto, path, save_as_external_data=external, location="m.data", size_threshold=0)
    return path


def feeds() -> list[dict[str, np.ndarray]]:
    """Two feeds."""
    return [{"x": weights(3, 256, seed=seed)} for seed in (5, 6)]


def assert_near(got: Evaluation, want: Evaluation) -> None:
    """Scores agree; the sums of large models run in another order: their weights are not packed."""
    for have, expected in zip(got.candidates, want.candidates, strict=True):
        for a, b in zip(have.outputs, expected.outputs, strict=True):
            assert a.cosine == pytest.approx(b.cosine, rel=1e-6)


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


@pytest.mark.grid
@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("recipe", ["tensorrt-int8", "tensorrt-int4", "onnxruntime-int8"])
def test_large_and_small_give_the_same(
    recipe: str, opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in a file or inside, an output with a data file or without: the same tensors and scores."""
    plain = quantize(two_layers(tmp_path / "a", external=False, opset=opset), feeds(), recipe=recipe)
    path = two_layers(tmp_path / "b", opset=opset)
    before = hashes(tmp_path / "b")
    monkeypatch.setattr(sizes, "LIMIT", 6000)
    out = tmp_path / "out" / "q.onnx"
    out.parent.mkdir()
    large = quantize(path, feeds(), out, recipe=recipe)
    assert hashes(tmp_path / "b") == before
    assert_near(large.evaluation, plain.evaluation)
    written = onnx.load(out)  # by onnx itself
    onnx.checker.check_model(str(out), full_check=True)
    stored, expected = constants(written), constants(plain.qdq)
    assert set(stored) == set(expected)
    for name, array in expected.items():
        # Large models are observed without packed weights, so activations are summed in another order.
        np.testing.assert_allclose(stored[name].astype(np.float32), array.astype(np.float32), rtol=1e-5)
    files = sorted(p.name for p in out.parent.iterdir())
    assert len(files) == 2 and files[0] == "q.onnx" and files[1].endswith(".data")
    again = tmp_path / "again"
    again.mkdir()
    quantize(path, feeds(), again / "q.onnx", recipe=recipe)
    assert hashes(again) == hashes(out.parent)
    feed = feeds()[0]
    got, want = open_as_written(str(out)).run(None, feed), Session(plain.qdq, 1, exact=True).run(feed)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-3)


@pytest.mark.sample
def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    """A loaded model refers to its weights and reads them where they are asked for."""
    model = load(two_layers(tmp_path))
    tensors = {t.name: t for t in model.proto.graph.initializer}
    assert is_external(tensors["w1"]) and not tensors["w1"].raw_data
    np.testing.assert_array_equal(tensor_array(tensors["w1"]), weights(256, 256))
    assert len(model.proto.SerializeToString()) < 2000


@pytest.mark.share(4)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_structure_inside_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of nothing every structure still loads, runs, and is quantized to the same scores."""
    proto, feed = BUILDERS[name](), feed_for(BUILDERS[name]())
    recipe = whole_recipe("tensorrt-int8")
    plain = quantize(proto, [feed], recipe=recipe)
    for limit, value in (("LIMIT", 0), ("IN_MEMORY", 0), ("SMALL", 8)):
        monkeypatch.setattr(sizes, limit, value)
    large = quantize(proto, [feed], tmp_path / "q.onnx", recipe=recipe)
    assert_near(large.evaluation, plain.evaluation)
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)


def test_a_new_output_takes_its_old_data_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written over, a model leaves no data file of before; other files stay."""
    path = two_layers(tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.data").write_text("mine")
    monkeypatch.setattr(sizes, "LIMIT", 6000)
    quantize(path, feeds(), out / "q.onnx")
    quantize(path, feeds()[:1], out / "q.onnx", recipe="onnxruntime-int8")
    assert len(list(out.iterdir())) == 3
    monkeypatch.undo()
    quantize(path, feeds(), out / "q.onnx")
    assert sorted(p.name for p in out.iterdir()) == ["mine.data", "q.onnx"]


@pytest.mark.grid
@pytest.mark.parametrize("stage", ["data", "model", "verify"])
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_of_a_failure(
    stage: str, fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C and a full disk while the data, the model or its check is done leave the folder as it was."""
    proto = load(two_layers(tmp_path / "in")).proto
    monkeypatch.setattr(sizes, "LIMIT", 6000)
    out = tmp_path / "out"
    out.mkdir()

    def fail(*_: object) -> None:
        raise fault

    if stage == "data":
        monkeypatch.setattr("onnxfq.graph.io.save.split_weights", fail)
    if stage == "model":
        monkeypatch.setattr(Path, "write_bytes", fail)
    expected = KeyboardInterrupt if isinstance(fault, KeyboardInterrupt) else (OutputError, OSError)
    with pytest.raises(expected):
        save(proto, out / "q.onnx", fail if stage == "verify" else None)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("where", ["beside", "stored"])
def test_every_stage_takes_weights_in_a_file(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command takes a Q/DQ model whose weights and scales stay in a data file or in its own file.

    The scales of 320 columns are over 1 KB. At full size: tests/slow/check_large_model.py.
    """
    monkeypatch.chdir(tmp_path)
    source = two_layers(tmp_path / "in", width=320)
    quantize(source, feeds(), "inside.onnx")
    proto = onnx.load("inside.onnx")
    assert any(len(tensor.raw_data) > 1024 for tensor in proto.graph.initializer if tensor.data_type == 1)
    external = where == "beside"
    onnx.save(proto, "q.onnx", save_as_external_data=external, location="q.data", size_threshold=0)
    if not external:
        monkeypatch.setattr(sizes, "IN_MEMORY", 1 << 14)
        held = {tensor.name: is_external(tensor) for tensor in load("q.onnx").proto.graph.initializer}
        assert sum(held.values()) >= 3  # the weights and the scale of 320 columns
    np.savez("d.npz", x=weights(8, 256))
    for line in (
        "quantize q.onnx --data d.npz --requantize -o again.onnx --artifacts parts --repair off",
        "plan q.onnx --requantize -o p.json",
        "observe q.onnx --plan p.json --data d.npz -o s.npz",
        "calibrate q.onnx --plan p.json --statistics s.npz -o e.json --table",
        "calibrate q.onnx --plan p.json --encodings e.json --format aimet-1.0.0 -o aimet.json",
        "insert q.onnx --plan p.json --encodings e.json -o r.onnx",
        "check q.onnx",
        "inspect q.onnx",
        "inspect inside.onnx q.onnx",
        "convert q.onnx -o c.onnx --data d.npz",
        "handoff q.onnx -o folder --data d.npz",
        "compare q.onnx --data d.npz",
        "evaluate inside.onnx q.onnx --data d.npz",
    ):
        assert main(line.split()) == 0, line
    made = onnx.load("folder/model.onnx")
    assert made.graph.initializer and not any(is_external(t) for t in made.graph.initializer)


def test_the_builder_takes_weights_in_a_file(tmp_path: Path) -> None:
    """TensorRT builds a model whose weights are in a data file as one with them inside."""
    pytest.importorskip("tensorrt_rtx")
    quantize(two_layers(tmp_path / "in"), feeds(), tmp_path / "inside.onnx")
    proto, path = onnx.load(tmp_path / "inside.onnx"), tmp_path / "q.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="q.data", size_threshold=0)
    inside, beside = (check(model, build=BuildOptions()) for model in (tmp_path / "inside.onnx", path))
    assert beside.findings == inside.findings == () and beside.engine == inside.engine


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("../m.data", "is not a path inside the folder"),
        ("/etc/hostname", "is not a path inside the folder"),
        ("none.data", "No such file.* keep the data file next to the model"),
    ],
)
def test_references_that_lead_out(location: str, says: str, tmp_path: Path) -> None:
    """A reference out of the folder, or to nothing, is one line."""
    path = two_layers(tmp_path / "in")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=f"external data of 'w1' cannot be read .*{says}"):
        load(path)


KILLED = """
import os, signal, sys, tempfile
from importlib import import_module
place, name, when, tempfile.tempdir, *words = sys.argv[1:]
module = import_module(place)
function = getattr(module, name)
def die(*given, **named):
    if when == "after":
        function(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, die)
from onnxfq.cli.main import main
sys.exit(main(words))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    """Runs Python without the imports of each process."""
    with command_server() as made:
        yield made


MOMENTS = [
    ("onnxfq.quantizing.pipeline.build_candidate", "after", False),
    ("onnxfq.quantizing.pipeline.write_model", "before", True),
    *(("onnxfq.stages.write._run", "before", written) for written in (False, True)),
    *(("onnxfq.support.temporary.link_file", "after", written) for written in (False, True)),
    ("os.replace", "before", True),
    ("onnxfq.quantizing.pipeline.write_model", "after", True),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_runs_leave_nothing(
    moment: tuple[str, str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: CommandServer
) -> None:
    """SIGKILL leaves the output whole or as it was, and no temporary files past the next run.

    At random moments on a large model: tests/slow/check_large_model.py.
    """
    place, when, written = moment
    path, scratch, target = two_layers(tmp_path / "in"), tmp_path / "tmp", tmp_path / "out"
    for folder in (scratch, target):
        folder.mkdir()
    np.savez(tmp_path / "d.npz", x=weights(8, 256))
    words = ["quantize", str(path), "--data", str(tmp_path / "d.npz"), "-o", str(target / "q.onnx"), "-q"]
    words += ["--repair", "off"]
    if written:
        assert main(words) == 0
    before = hashes(target)
    command = ["-c", KILLED, *place.rpartition(".")[::2], when, str(scratch), *words]
    killed = server.run(command, tmp_path, program="python")
    assert killed.code == -signal.SIGKILL, killed.err
    left = {name: value for name, value in hashes(target).items() if not name.startswith(".")}
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert main(words) == 0
    assert left in (before, hashes(target)) and hashes(target).keys() == {"q.onnx"}
    assert not list(scratch.glob("onnxfq-*"))
