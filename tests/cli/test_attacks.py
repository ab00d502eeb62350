"""Hostile and odd inputs through the real command: one line, in bounded time and memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, conv_relu, feed_for, shared_weight, weights
from command_server import CommandServer, Ended
from command_table import SOUND, TABLE
from fuzzed_inputs import COMMANDS, damage, draw_options, run_case, snapshot
from later import later
from onnx import TensorProto, helper, numpy_helper

import onnxfq

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc")

QUANTIZE = "quantize m.onnx --data d.npz -o out.onnx"
ORT = [helper.make_opsetid("com.microsoft", 1)]


def graph(text: str, **constants: object) -> onnx.ModelProto:
    """A model from x [N, 4] to y, checked by nobody."""
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return build(f"g (float[N,4] x) => (float[N,M] y) {{ {text} }}", arrays)


def put(proto: onnx.ModelProto) -> None:
    """Write the model, valid or not."""
    Path("m.onnx").write_bytes(proto.SerializeToString())


def sparse_model(values: TensorProto, dims: list[int], constant: bool = False) -> onnx.ModelProto:
    """A model whose weight is sparse, as an initializer or a constant."""
    indices = numpy_helper.from_array(np.arange(len(values.float_data) or values.dims[0], dtype=np.int64))
    sparse = helper.make_sparse_tensor(values, indices, dims)
    proto = graph("y = MatMul (x, w)")
    if constant:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    else:
        proto.graph.sparse_initializer.append(sparse)
    return proto


@later
def external_sparse(location: str, constant: bool = False) -> None:
    """A model in a folder with a sparse weight in a file; the current folder has one of that name."""
    for folder in ("sub", "other"):
        Path(folder).mkdir()
    for place in ("v.bin", "other/v.bin"):
        np.arange(3, dtype=np.float32).tofile(place)
    Path("sub/link.bin").symlink_to("../other/v.bin")
    values = TensorProto(data_type=1, dims=[3], name="w", data_location=TensorProto.EXTERNAL)
    values.external_data.add(key="location", value=location)
    Path("sub/m.onnx").write_bytes(sparse_model(values, [4, 4], constant).SerializeToString())


def one() -> TensorProto:
    """One value."""
    return numpy_helper.from_array(np.ones(1, np.float32), "w")


def text(name: str, content: str) -> Callable[[], object]:
    """Return a function that writes a text file."""
    return lambda: Path(name).write_text(content)


@later
def header(name: str, said: str) -> None:
    """An .npy, or an .npz with one, with a header of this text."""
    head = said.encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(40)
    if name.endswith(".npy"):
        Path(name).write_bytes(content)
    else:
        with zipfile.ZipFile(name, "w") as packed:
            packed.writestr("x.npy", content)


UNHASHABLE = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), []: 1}"
HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }"
PYTHON2 = "{'descr': '<f4', 'fortran_order': False, 'shape': (5L,), }"


@later
def large_npz(name: str) -> None:
    """1.3 GB of zeros in a small file, under an input's name or another."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (83886080, 4), }\n"
    with zipfile.ZipFile("d.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        with packed.open(f"{name}.npy", "w", force_zip64=True) as stream:
            stream.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
            for _ in range(20):
                stream.write(bytes(1 << 26))


@later
def statistics(**changes: Callable[[np.ndarray], np.ndarray]) -> None:
    """Return a function that changes arrays of the statistics."""
    with np.load("s.npz") as data:
        arrays = {name: changes.get(name, np.asarray)(data[name]) for name in data.files}
    np.savez("s.npz", **arrays)


@later
def local_function(op: str) -> None:
    """A function without inputs under the name of an operator."""
    proto = graph("y = Add (a, x)")
    proto.graph.node.insert(0, helper.make_node(op, [], ["a"], domain="own"))
    own, onnx_17 = helper.make_opsetid("own", 1), helper.make_opsetid("", 17)
    body = [helper.make_node("Constant", [], ["b"], value_float=1.0)]
    proto.functions.append(helper.make_function("own", op, [], ["b"], body, [onnx_17]))
    proto.opset_import.append(own)
    put(proto)


@later
def replace(name: str, make: Callable[[Path], object]) -> None:
    """Return a function that puts something else in the place of a file."""
    Path(name).unlink(missing_ok=True)
    make(Path(name))


def links(rows: int) -> str:
    """YAML of a few lines that stands for 9^rows mappings."""
    first = "a0: &a0 {k: 1}\n"
    return first + "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, rows))


def wrong_shapes() -> None:
    """Give the weights of the Q/DQ model another shape."""
    proto = onnx.load("q.onnx")
    for tensor in proto.graph.initializer:
        if len(tensor.dims) == 2:
            tensor.dims[:] = [2, 8]
    Path("q.onnx").write_bytes(proto.SerializeToString())


WORDS: dict[str, tuple[str, str]] = {
    "scale beyond float": (f"{QUANTIZE} --scale 1e400", "scale is inf; give finite numbers"),
    "mean beyond float": (f"{QUANTIZE} --mean 1e400", "mean is inf; give finite numbers"),
    "std beyond float": (f"{QUANTIZE} --std 1e400", "std is inf; give finite numbers"),
    "scale of a billion digits": (f"{QUANTIZE} --scale 1e999999999", "scale is inf"),
    "scale that is long": (f"{QUANTIZE} --scale {'x' * 5000}", "--scale is 'xxx"),
    "wide images": (
        "quantize c.onnx --data images -o out.onnx --scale 1 --resize 99999999999x5",
        "resize is 99999999999x5, more than 67,108,864 pixels",
    ),
    "images of many digits": (f"{QUANTIZE} --resize {'9' * 5000}x5", "--resize is '999"),
    "large random sample": (
        "handoff q.onnx -o out --shape x:100000000x4",
        "input 'x' of shape [100000000, 4] has over 134,217,728 elements",
    ),
    "shape beyond TensorRT": ("handoff q.onnx -o out --shape x:900000000x4", "TensorRT takes up to"),
    "shape of many digits": (f"handoff q.onnx -o out --shape x:{'9' * 5000}x4", "a shape is NAME"),
}
"""Words of a command line on sound inputs, and what the error says."""

CASES: dict[str, tuple[Callable[[], object], str, str]] = {
    "sparse values beside the caller": (
        external_sparse("v.bin"),
        "inspect sub/m.onnx",
        "external data of 'w' cannot",
    ),
    "sparse constant beside the caller": (
        external_sparse("v.bin", constant=True),
        "quantize sub/m.onnx --data d.npz -o out.onnx",
        "the external data of 'w' cannot be read",
    ),
    "sparse values through a link": (
        external_sparse("link.bin"),
        "plan sub/m.onnx -o out.json",
        "not a path inside the folder of the model: it leads to",
    ),
    "sparse bomb": (lambda: put(sparse_model(one(), [4, 1 << 30])), QUANTIZE, "17.2 GB when dense"),
    "sparse constant of 16 TB": (
        lambda: put(sparse_model(one(), [4, 1 << 40], constant=True)),
        "plan m.onnx -o out.json",
        "17,592.2 GB when dense",
    ),
    "bomb of ConstantOfShape": (
        lambda: put(graph("w = ConstantOfShape (s) y = MatMul (x, w)", s=[4, 1 << 30])),
        QUANTIZE,
        "ConstantOfShape '' makes 'w' of shape [4, 1073741824], 17.2 GB",
    ),
    "bomb of Expand": (
        lambda: put(graph("w = Expand (c, s) y = MatMul (x, w)", s=[4, 1 << 40], c=np.float32(1))),
        "inspect m.onnx",
        "Expand '' makes 'w'",
    ),
    "bomb of products": (
        lambda: put(
            graph(
                "a = Expand (c, s) b = Expand (c, t) w = Mul (a, b) y = MatMul (x, w)",
                **{"s": [30000, 1], "t": [1, 30000], "c": np.float32(1)},
            )
        ),
        "check m.onnx",
        "Mul '' makes 'w' of shape [30000, 30000], 3.6 GB",
    ),
    "bomb of doublings": (
        lambda: put(
            graph(
                " ".join(f"c{i + 1} = Concat <axis = 1> (c{i}, c{i})" for i in range(30))
                + "y = MatMul (x, c30)",
                c0=weights(4, 4),
            )
        ),
        QUANTIZE,
        "and a tensor has at most 1 GB of constants",
    ),
    "bomb of an activation": (
        lambda: put(graph("a = MatMul (x, w) y = Expand (a, s)", w=weights(4, 4), s=[1 << 30, 1])),
        "check m.onnx",
        "at most 2,147,483,647 elements",
    ),
    "YAML integer of nothing": (
        text("r.yaml", "name: !!int ''"),
        f"{QUANTIZE} --recipe r.yaml",
        "'' is not a int",
    ),
    "YAML float of nothing": (
        text("r.yaml", "name: !!float ''"),
        f"{QUANTIZE} --recipe r.yaml",
        "is not a float",
    ),
    "YAML bool": (
        text("r.yaml", "name: !!bool maybe"),
        f"{QUANTIZE} --recipe r.yaml",
        "'maybe' is not a bool",
    ),
    "YAML time": (text("r.yaml", "name: !!timestamp soon"), f"{QUANTIZE} --recipe r.yaml", "not a timestamp"),
    "YAML set": (text("r.yaml", "name: !!set [a]"), f"{QUANTIZE} --recipe r.yaml", "not valid yaml"),
    "YAML bomb": (text("r.yaml", links(12)), f"{QUANTIZE} --recipe r.yaml", "stand for a million values"),
    "YAML in itself": (text("r.yaml", "name: &a [*a]"), f"{QUANTIZE} --recipe r.yaml", "contain themselves"),
    "long YAML": (text("r.yaml", "# \n" * (2 << 20)), f"{QUANTIZE} --recipe r.yaml", "it has 6 MB"),
    "labels of a damaged header": (
        header("l.npy", "{'descr': '<i8'"),
        COMMANDS["evaluate.labels"][0],
        "l.npy does not hold labels (its header is damaged",
    ),
    "labels of 8 TB": (header("l.npy", HUGE), COMMANDS["evaluate.labels"][0], "needs 8000000000000 bytes"),
    "labels of nothing": (text("l.txt", ""), COMMANDS["evaluate.text"][0], "must be whole numbers"),
    "labels beyond integers": (text("l.txt", "1e300\n" * 4), COMMANDS["evaluate.text"][0], "must be whole"),
    "npy with an unhashable key": (
        header("d.npy", UNHASHABLE),
        COMMANDS["quantize.npy"][0],
        "header is damaged",
    ),
    "npz with an unhashable key": (header("d.npz", UNHASHABLE), QUANTIZE, "unhashable"),
    "npz of Python 2": (header("d.npz", PYTHON2), QUANTIZE, "input 'x' got float32 [5]"),
    "example without samples": (
        lambda: np.savez("e.npz", x=np.zeros((0, 4), np.float32)),
        COMMANDS["quantize.example"][0],
        "holds no samples",
    ),
    "runs of no samples as an example": (
        lambda: np.savez("e.npz", x=np.zeros((4, 0, 4), np.float32)),
        COMMANDS["quantize.example"][0],
        "the example has no values to compare in input 'x'",
    ),
    "ragged encodings": (
        text("given.json", '{"x": [{"scale": [[1, 2], [3]], "zero_point": [0]}]}'),
        COMMANDS["quantize.encodings"][0],
        "given.json: x.scale: must be a number or lists of numbers of one shape",
    ),
    "statistics with bins of rank 2": (
        statistics(bins=lambda bins: bins[None]),
        COMMANDS["calibrate"][0],
        "s.npz is not a statistics file ('bins' is int32 [1, ",
    ),
    "statistics with counts of rank 2": (
        statistics(counts=lambda counts: counts[:, None]),
        COMMANDS["merge"][0],
        "wanted is iu ['?']",
    ),
    "statistics of another range": (
        statistics(range=lambda limits: limits * 0.5),
        COMMANDS["calibrate"][0],
        "does not end in its first and last bins",
    ),
    "function called QuantizeLinear": (
        local_function("QuantizeLinear"),
        "inspect m.onnx",
        "has the name of a quantizer and no scale",
    ),
    "Gemm of a vector": (
        lambda: put(graph("y = Gemm (x, v)", v=weights(4))),
        QUANTIZE,
        "Gemm '' reads 'v' of rank 1, and needs 2 at least",
    ),
    "compare of wrong shapes": (wrong_shapes, COMMANDS["compare"][0], "onnxruntime cannot load the model"),
    "output that leads to itself": (
        lambda: os.symlink("out.onnx", "out.onnx"),
        QUANTIZE,
        "cannot write out.onnx: it is a link that leads to itself",
    ),
    "model that leads to itself": (
        replace("m.onnx", lambda path: path.symlink_to(path.name)),
        "inspect m.onnx",
        "cannot read m.onnx",
    ),
    "other name of much data": (large_npz("z"), QUANTIZE, "d.npz lacks input 'x' (got z)"),
    "name of 5,000 characters": (
        lambda: np.savez("d.npz", **{"x" * 5000: np.zeros(3), "y" * 5000: np.zeros(3)}),
        QUANTIZE,
        "d.npz lacks input 'x' (got xxxxx",
    ),
    "sys.exit in a data function": (
        text("exits.py", "import sys\ndef feeds():\n    sys.exit(0)\n"),
        "quantize m.onnx --data exits:feeds -o out.onnx",
        "--data exits:feeds failed (SystemExit: 0) in line 3",
    ),
    "a crash in a data function": (
        text("crashes.py", "import os\ndef feeds():\n    os.kill(os.getpid(), 11)\n"),
        "quantize m.onnx --data crashes:feeds -o out.onnx",
        "the command was ended by SIGSEGV",
    ),
}
"""How an input becomes hostile, a command that reads it, and what the error says."""
for _name, (_line, _targets) in COMMANDS.items():
    for _target in _targets.split():
        if "/" not in _target:
            _word = "it is a device or a pipe"
            CASES[f"pipe as {_target} of {_name}"] = (replace(_target, os.mkfifo), _line, _word)
            CASES[f"zeros as {_target} of {_name}"] = (
                replace(_target, lambda path: path.symlink_to("/dev/zero")),
                _line,
                _word,
            )
_SHARED: set[str] = set()
for _name in [name for name in CASES if " of " in name and name.startswith(("pipe as", "zeros as"))]:
    # One case for each file, and for the model one for each command: commands share their readers.
    _kind = " ".join(
        (*_name.split(" of ")[0].split(), CASES[_name][1].split()[0] if "m.onnx" in _name else "")
    )
    if _kind in _SHARED:
        del CASES[_name]
    _SHARED.add(_kind)


@pytest.mark.parametrize("name", [*WORDS, *CASES])
def test_one_line(
    name: str, inputs: Path, server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends in one line that names the thing, quickly and in little memory, and changes no file."""
    prepare, line, says = CASES.get(name) or (lambda: None, *WORDS[name])
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    prepare()
    before = snapshot(tmp_path)
    ended = server.run(line.split(), tmp_path)
    assert not ended.fault and ended.code in (1, 2), ended
    assert says in ended.errors[0] and len(ended.errors[0]) < 1000
    assert ended.memory < 1 << 30
    after = {path: content for path, content in snapshot(tmp_path).items() if "__pycache__" not in path}
    assert after == before


BODY = "<body = b ({0}) => (bool co, {1}) {{ co = Identity (ci) {2} }}>"
GIGABYTES = {
    "Range": graph(
        "m = ReduceMax <keepdims = 0> (x) a = Abs (m) e = Mul (a, k) r = Range (z, e, o) "
        "s = ReduceSum <keepdims = 0> (r) h = Add (x, s) y = MatMul (h, w)",
        **{"w": weights(4, 4), "z": np.float32(0), "o": np.float32(1), "k": np.float32(4e9)},
    ),
    "Expand": graph(
        "h = MatMul (x, w) s, v = Loop (m, t, z) "
        + BODY.format(
            "int64 i, bool ci, float s", "float so, float[1000000] e", "so = Identity (s) e = Expand (s, n)"
        )
        + "r = ReduceMax <keepdims = 0> (v) y = Add (h, r)",
        **{"w": weights(4, 4), "m": 5000, "t": True, "z": np.float32(1), "n": [1000000]},
    ),
    "Concat": graph(
        "h = MatMul (x, w) v = Loop (m, t, h) "
        + BODY.format("int64 i, bool ci, float[K, 4] s", "float[L, 4] so", "so = Concat <axis = 0> (s, s)")
        + "r = ReduceMax <keepdims = 0> (v) y = Add (h, r)",
        **{"w": weights(4, 4), "m": 29, "t": True},
    ),
}
RUNNING = [
    "quantize m.onnx --data d.npz -o out.onnx",
    "observe m.onnx --data d.npz -o out.npz",
    "evaluate m.onnx m.onnx --data d.npz",
    "sensitivity m.onnx --data d.npz",
    "handoff m.onnx --data d.npz -o out",
]


@pytest.mark.parametrize("operator", GIGABYTES)
def test_bomb_of_a_run(operator: str, server: CommandServer, tmp_path: Path) -> None:
    """A tensor that a model makes as it runs ends at the limit of memory, in a line with the operator."""
    onnx.save(GIGABYTES[operator], tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.ones((2, 4), np.float32))
    for line in RUNNING if operator == "Range" else RUNNING[:1]:
        ended = server.run(line.split(), tmp_path, memory=1 << 30)
        assert not ended.fault and ended.code == 1 and ended.memory < 3 << 29, (line, ended)
        assert "the model cannot run on x [" in ended.errors[0], (line, ended)
        assert f"{operator} '" in ended.errors[0] and "more than the free memory holds" in ended.errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npz", "m.onnx"]


@pytest.mark.sample
def test_limit_of_memory() -> None:
    """The limit is the memory that the system calls available; a lower one, of `ulimit -d`, stays."""
    script = (
        "import resource; from onnxfq.support.memory import limit_memory; limit_memory();"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    sizes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    most = sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))

    def limit(lower: str) -> int:
        shell = f"{lower} exec '{sys.executable}' -c '{script}'"
        home = {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1])}
        ended = subprocess.run(["sh", "-c", shell], env=os.environ | home, capture_output=True, check=True)
        return int(ended.stdout)

    assert 1 << 30 <= limit("") <= most
    assert limit("ulimit -d 600000;") == 600000 * 1024


GOOD = {name: line for name, (line, _) in COMMANDS.items() if name not in ("compare.saved", "quantize.keep")}
GOOD |= {
    "quantize --report": "quantize m.onnx --data d.npz --repair off -o out.onnx --report out.html",
    "help": "--help",
    "help of a command": "quantize --help",
    "version": "--version",
}


def test_no_command_changes_its_inputs(inputs: Path, server: CommandServer, tmp_path: Path) -> None:
    """Every command on sound inputs, whose reader has gone, as of `head`: it ends well.

    All files are as before, only the output is new, and it is there.
    """
    folder = shutil.copytree(inputs, tmp_path / "inputs")
    before = snapshot(folder)
    lines = {line: name for name, line in (SOUND | GOOD).items() if name != "demo"}  # test_demo.py runs it
    for line, name in lines.items():
        ended = server.run(line.split(), folder, read=False)
        assert ended.code == (3 if name == "inspect.two" else 0) and not ended.fault, (name, ended)
        after = snapshot(folder)
        made = [path for path in after if path not in before]
        assert {path: after[path] for path in before} == before, name
        writes = " -o " in line and name != "diagnose.float"  # a sound file has no repaired one
        assert all(path.startswith("out") for path in made) and bool(made) == writes, (name, made)
        for path in {path.partition("/")[0] for path in made}:
            place = folder / path
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def test_damaged_inputs_of_every_command(inputs: Path, server: CommandServer, tmp_path: Path) -> None:
    """25 cases of tests/slow/fuzz_commands.py, which draws thousands."""
    wrong = []
    for number in range(25):
        folder = tmp_path / str(number)
        shutil.copytree(inputs, folder)
        case = damage(folder, np.random.default_rng(number))
        fault, _ = run_case(case, folder, server)
        wrong += [f"{number}: {case.what}: {fault}"] if fault else []
    assert not wrong, "\n".join(wrong)


def test_every_command_option_and_file_is_drawn(inputs: Path) -> None:
    """Each occurs in the cases that tests/slow/fuzz_commands.py begins with, and each input is damaged."""
    drawn = [draw_options(np.random.default_rng(number), number).arguments for number in range(2000)]
    for command, parameters in TABLE.items():
        words = {word for arguments in drawn if arguments[0] == command for word in arguments}
        wanted = {parameter.option for parameter in parameters} - {""}
        words |= {"--output"} if "-o" in words else set()
        assert words and wanted <= words, (command, wanted - words)
    damaged = {target for _, targets in COMMANDS.values() for target in targets.split()}
    kinds = {path.suffix for path in inputs.rglob("*") if path.is_file()} - {".py"}
    assert kinds == {Path(target).suffix for target in damaged}
    assert {line.split()[0] for line, _ in COMMANDS.values()} == {
        command for command, parameters in TABLE.items() if any(one.is_path for one in parameters)
    } - {"demo"}


def test_first_sample_of_much_data(
    inputs: Path, server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --limit 1, one sample of 1.3 GB is read."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    large_npz("x")()
    ended = server.run(f"{QUANTIZE} --limit 1".split(), tmp_path)
    assert ended.code == 0 and ended.memory < 1 << 30, ended


def test_split_with_an_unnamed_output(server: CommandServer, tmp_path: Path) -> None:
    """Onnxruntime ends with a signal on it; with a name for that output it runs."""
    proto = graph("a = MatMul (x, w) b, y = Split <axis = 1> (a)", w=weights(4, 4))
    proto.graph.node[1].output[0] = ""
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **feed_for(shared_weight(), count=4))
    ended: Ended = server.run(QUANTIZE.split(), tmp_path)
    assert ended.code == 0 and not ended.fault, ended


@pytest.mark.grid
@pytest.mark.parametrize("to", ["command", "child", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_end_during_a_run(number: signal.Signals, to: str, tmp_path: Path) -> None:
    """Whichever process of the command gets the signal, or both: one line, exit code 130 and no file."""
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "slow.py").write_text(
        "import os, time, numpy\ndef feeds():\n    print(os.getpid(), flush=True)\n    time.sleep(3)\n"
        f"    yield {{'x': numpy.zeros({feed_for(conv_relu())['x'].shape}, 'f4')}}\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "onnxfq", *"quantize m.onnx --data slow:feeds -o out.onnx".split()],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1]), "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Under nohup the tests themselves ignore SIGHUP, and a command inherits that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert run.stderr is not None  # prints of a user's code go there
    child = int(run.stderr.readline())
    if to == "group":
        os.killpg(run.pid, number)
    else:
        os.kill(child if to == "child" else run.pid, number)
    lines = run.communicate(timeout=60)[1].splitlines()
    assert lines.pop() == "onnxfq: error: interrupted" and run.returncode == 130
    assert all(line.startswith("onnxfq: note: ") for line in lines)  # on the data, which was read
    assert not (tmp_path / "out.onnx").exists() and not list((tmp_path / "tmp").glob("onnxfq-*"))


def test_a_signal_that_is_ignored(tmp_path: Path) -> None:
    """Under nohup a closed terminal ends nothing."""
    (tmp_path / "slow.py").write_text(
        "import os, time\ndef feeds():\n    print(1, flush=True)\n    time.sleep(1)\n    yield {}\n"
    )
    onnx.save(conv_relu(), tmp_path / "m.onnx")
    run = subprocess.Popen(
        [sys.executable, "-m", "onnxfq", *"quantize m.onnx --data slow:feeds -o out.onnx".split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(onnxfq.__file__).parents[1])},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert run.stderr is not None and run.stderr.readline() == "1\n"
    os.killpg(run.pid, signal.SIGHUP)
    error = run.communicate(timeout=60)[1]
    assert run.returncode == 1 and "interrupted" not in error and "input 'x'" in error, error
