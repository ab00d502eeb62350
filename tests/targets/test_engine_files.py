"""`check --layers`: exported layers and times of an engine, mapped to the nodes of the model."""

from __future__ import annotations

import copy
import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import BUILDERS, feed_for, plain_quantize
from engines import needs_builder
from exported_engines import classic_layer, export_listing, profile_of

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import DataError, RecipeError
from onnxfq.targets.target import BuildOptions
from onnxfq.targets.tensorrt.builder.exported import read_layers, read_times

MODELS = ["two_branch", "attention", "gemm"]


@functools.cache
def quantized(name: str) -> onnx.ModelProto:
    """Return the int8 model of a builder."""
    proto = BUILDERS[name]()
    feeds = [feed_for(proto, seed) for seed in range(3)]
    return plain_quantize(proto, feeds).qdq


def classic(release: int = 10) -> dict[str, Any]:
    """What classic TensorRT says of `two_branch`: three convolutions, the sum fused into the second."""

    def convolution(name: str, inputs: list[str], output: str, nodes: list[str]) -> dict[str, Any]:
        return classic_layer(name, "CaskConvolution", inputs, output, nodes, ("Int8", 144))

    ends = ["Bindings"] if release == 10 else ["I/O Tensors"]
    layers = [
        classic_layer("h/q + head", "Reformat", ["FP32"], "Int8", ["h/q"]),
        convolution("w1/dq + conv1 + PWN(relu1)", ["Int8"], "Int8", ["conv1", "relu1"]),
        convolution("conv2 + add", ["Int8", "Int8"], "Int8", ["conv2", "add", "relu2"]),
        convolution("conv3", ["Int8"], "FP32", ["conv3"]),
    ]
    return {"Layers": layers, **{end: ["x", "y"] for end in ends}}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An int8 model in the current folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(quantized("two_branch"), "q.onnx")
    return Path("q.onnx")


def write(content: Any, name: str = "layers.json") -> Path:
    """Write JSON."""
    Path(name).write_text(json.dumps(content))
    return Path(name)


@needs_builder
@pytest.mark.parametrize("name", MODELS)
def test_the_builders_own_listing(name: str, tmp_path: Path) -> None:
    """The builder's listing in the inspector's form says of each node what `--build` says."""
    onnx.save(quantized(name), tmp_path / "q.onnx")
    built = onnxfq.check(tmp_path / "q.onnx", build=BuildOptions())
    listing = export_listing(tmp_path / "q.onnx")
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(listing))
    found = onnxfq.check(tmp_path / "q.onnx", layers=path)
    seen = {node.node: node.verdict for node in built.engine if node.device == "SM89"}
    assert {node.node: node.verdict for node in found.engine} == seen and seen
    assert found.coverage == built.coverage
    assert found.listing is not None and len(found.listing.layers) == len(listing["Layers"])


@pytest.mark.parametrize("release", [10, 11])
def test_classic_layers(model: Path, release: int) -> None:
    """Convolutions of TensorRT 10 and 11 run in the types of their input and weights; names are mapped."""
    found = onnxfq.check(model, layers=write(classic(release)))
    assert {node.node: node.verdict for node in found.engine} == dict.fromkeys(
        ["conv1", "conv2", "conv3", "add"], "low"
    )
    assert found.passed and found.listing is not None
    assert [layer.promised for layer in found.listing.layers] == [(), ("conv1",), ("conv2",), ("conv3",)]
    assert found.listing.layers[0].only_quantizes
    assert "Conv 3/3 low, Add (residual) 1/1 low (built by the engine of layers.json)" in found.table()


@pytest.mark.sample
def test_a_skip_branch_in_float(model: Path) -> None:
    """A sum whose skip branch the engine reads in a half type is named, beside its convolution in int8."""
    content = classic()
    skip = content["Layers"][2]["Inputs"][1]
    for key, text in skip.items():
        skip[key] = text.replace("Int8", "FP16") if isinstance(text, str) else text
    found = onnxfq.check(model, layers=write(content))
    (one,) = found.findings
    assert (one.rule, one.node, one.op_type) == ("engine", "add", "Add (residual)")


@pytest.mark.parametrize("key", ["DataType", "Datatype"])
def test_a_type_beside_its_format(key: str, model: Path) -> None:
    """TensorRT 11 splits the type from the format, whose words may name another one."""
    content = classic(11)
    tensors = [one for layer in content["Layers"] for one in (*layer["Inputs"], *layer["Outputs"])]
    for tensor in tensors:
        text = tensor.pop("Format/Datatype")
        tensor[key] = next(kind for kind in ("Int8", "FP16", "FP32") if kind in text)
        tensor["Format"] = "Row major linear FP32 format (kLINEAR)"
    found = onnxfq.check(model, layers=write(content))
    assert {node.verdict for node in found.engine} == {"low"} and found.passed


def test_names_stand_for_missing_metadata(model: Path) -> None:
    """Without metadata the joined names of a layer are its nodes, pointwise ones in their wrapping too."""
    content = classic()
    for layer in content["Layers"]:
        del layer["Metadata"]
    layers = read_layers(write(content))
    assert layers[1].nodes == ("w1/dq", "conv1", "relu1")
    assert {node.verdict for node in onnxfq.check(model, layers="layers.json").engine} == {"low"}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"Weights": {"Type": "Half", "Count": 144}}, "mixed"),
        ({"Inputs": [{"Dimensions": [1, 4, 6, 6], "Format/Datatype": "Half"}]}, "weight-only"),
        ({"Metadata": "[ONNX Layer: relu1]", "Name": "relu1"}, "missing"),
        ({"LayerType": "Reformat"}, "missing"),
        ({"LayerType": "Myelin"}, "missing"),
    ],
    ids=str,
)
def test_planted_differences(model: Path, change: dict[str, Any], verdict: str) -> None:
    """A layer that computes otherwise than promised is named, with what it does; the others stay."""
    content = classic()
    content["Layers"][1] |= change
    found = onnxfq.check(model, layers=write(content))
    assert {node.node: node.verdict for node in found.engine} == {
        "conv1": verdict,
        **dict.fromkeys(["conv2", "conv3", "add"], "low"),
    }
    (lost,) = [finding for finding in found.findings if finding.rule == "engine"]
    assert lost.node == "conv1" and f"has {verdict} on the engine" in lost.message
    assert not found.passed and str(found.coverage[0]) == "Conv 2/3 low"


def test_times(model: Path) -> None:
    """Times of layers add up, are mapped to the nodes, and a profile in any order is read by names."""
    content = classic()
    write(profile_of(content, [0.25, 1.0, 2.0, 0.5]), "profile.json")
    found = onnxfq.check(model, layers=write(content), profile="profile.json")
    assert found.listing is not None and found.listing.milliseconds == 3.75
    assert [found.listing.time_of(node) for node in ("conv1", "conv2", "conv3", "head")] == [1, 2, 0.5, None]
    table = found.table()
    assert "3.750 ms in all layers, by profile.json" in table
    assert table.index("conv2") < table.index("conv1 and 1 more")
    totals = [{"name": layer["Name"], "timeMs": 8.0} for layer in reversed(content["Layers"])]
    write([{"count": 4}, *totals], "profile.json")
    again = onnxfq.check(model, layers="layers.json", profile="profile.json")
    assert again.listing is not None and [layer.ms for layer in again.listing.layers] == [2.0] * 4


def test_times_by_module(model: Path) -> None:
    """Time goes to the modules that torch's exporter notes of the nodes."""
    proto = onnx.load(model)
    for node in proto.graph.node:
        if node.name in ("conv1", "conv2", "conv3"):
            scopes = f"['', 'body.{node.name}', '{node.name}']"
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    profile = write(profile_of(classic(), [0.25, 1.0, 2.0, 0.5]), "profile.json")
    found = onnxfq.check(proto, layers=write(classic()), profile=profile)
    assert found.listing is not None
    assert found.listing.by_module() == {"body.conv2": 2.0, "body.conv1": 1.0, "body.conv3": 0.5}
    assert "body.conv2" in found.table()


def test_wrong_files(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Files that are none of this, of another engine or of another model: one line that says what to give."""
    good = classic()
    other = copy.deepcopy(good)
    for number, layer in enumerate(other["Layers"]):
        layer |= {"Metadata": f"[ONNX Layer: n{number}]", "Name": f"n{number}"}
    broken, untyped = copy.deepcopy(good), copy.deepcopy(good)
    del broken["Layers"][2]["LayerType"]
    untyped["Layers"][3]["Inputs"][0]["Format/Datatype"] = "N/A due to dynamic shapes"
    for content, words in [
        ([], "must be a mapping of fields, got []: no layers of an engine; give what"),
        ({"Layers": []}, "Layers: Tuple should have at least 1 item"),
        (good | {"Layers": [good["Layers"][0] | {"Constants": 3}]}, "Layers.0.Constants: "),
        (
            {"Layers": ["conv1", "conv2"]},
            "names of layers only, without types; build the engine with --profiling",
        ),
        (broken, "Layers.2.LayerType: Field required"),
        (untyped, "no types of layer 'conv3', because its shapes are open; give what `trtexec --export"),
        (other, "names no node of q.onnx; give the model that the engine was built from"),
    ]:
        write(content)
        assert main(["check", "q.onnx", "--layers", "layers.json"]) == 1
        error = capfd.readouterr().err
        assert words in error and error.count("\n") == 1, error
    write(good)
    for times, words in [
        ({"a": 1}, "rows: Input should be a valid list"),
        ([{"count": 3}], "holds no times of layers"),
        (profile_of(other, [1, 1, 1, 1]), "names none of the engine's layers"),
    ]:
        write(times, "profile.json")
        assert main(["check", "q.onnx", "--layers", "layers.json", "--profile", "profile.json"]) == 1
        assert words in capfd.readouterr().err
    Path("layers.json").write_text("{")
    with pytest.raises(DataError, match=r"layers.json is not valid json"):
        onnxfq.check("q.onnx", layers="layers.json")
    with pytest.raises(RecipeError, match="no engines are read of target 'openvino'"):
        onnxfq.check("q.onnx", "openvino", layers="layers.json")
    assert main(["check", "q.onnx", "--profile", "profile.json"]) == 2
    assert main(["check", "q.onnx", "--build", "--layers", "layers.json"]) == 2


ODD = (None, True, -1, 0.5, float("inf"), 10**30, "", "abc", "N/A", [], {}, [None], {"a": 1}, "[ONNX Layer: ")
"""Values in place of those that an exported file has."""


def places_in(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value of parsed JSON, the outer ones first."""
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield (*place, key)
        yield from places_in(content[key], (*place, key))


@pytest.mark.parametrize("of_times", [False, True])
def test_damaged_values(of_times: bool, tmp_path: Path) -> None:
    """An odd value at any place of an exported file is read, or refused in one line."""
    layers, refused = classic(), 0
    base: Any = profile_of(layers, [0.25, 1.0, 2.0, 0.5]) if of_times else layers
    path, names = tmp_path / "file.json", [layer["Name"] for layer in layers["Layers"]]
    for place in places_in(base):
        for value in ODD:
            content = copy.deepcopy(base)
            inner = content
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            path.write_text(json.dumps(content))
            try:
                assert len(read_times(path, names) if of_times else read_layers(path)) > 0
            except DataError as error:
                assert len(str(error).replace(str(path), "")) < 260
                refused += 1
    assert of_times or refused > 5  # a row without a time is left out
    path.write_text('{"Layers": [{"Name": "\\ud800"}]}')
    with pytest.raises(DataError, match="is not valid json"):
        read_layers(path)


def test_beside_the_noise(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The page of a result has precision and time of each layer of the engine; another engine is refused."""
    onnx.save(BUILDERS["two_branch"](), "m.onnx")
    np.savez("d.npz", x=np.concatenate([feed_for(BUILDERS["two_branch"](), seed)["x"] for seed in range(3)]))
    assert main("quantize m.onnx --data d.npz -o q.onnx --artifacts kept -q".split()) == 0
    write(profile_of(classic(), [0.25, 1.0, 2.0, 0.5]), "profile.json")
    write(classic())
    capfd.readouterr()
    assert main("check q.onnx --layers layers.json --profile profile.json --json".split()) == 0
    Path("ran.json").write_text(capfd.readouterr().out)
    result = next(Path("kept").glob("*.result.json"))
    assert main(["report", str(result), "--engine", "ran.json", "-o", "page.html", "--json"]) == 0
    rows = {row["node"]: row for row in json.loads(capfd.readouterr().out)[0]["layers"]}
    assert {name: (row["ran"], row["engine_ms"]) for name, row in rows.items() if row["ran"]} == {
        "conv1": ("low", 1.0),
        "conv2": ("low", 2.0),
        "conv3": ("low", 0.5),
        "add": ("low", None),  # the convolution has the time
    }
    assert '"engine_ms"' in Path("page.html").read_text()
    other = json.loads(Path("ran.json").read_text())
    write({**other, "engine": []}, "ran.json")
    assert main(["report", str(result), "--engine", "ran.json", "-o", "page.html"]) == 1
    assert "names no layer of these results" in capfd.readouterr().err


def test_json(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The record holds layers, nodes and times, and reads back as it was."""
    write(classic())
    assert main(["check", "q.onnx", "--layers", "layers.json", "--json"]) == 0
    text = capfd.readouterr().out
    assert onnxfq.CheckResult.model_validate_json(text) == onnxfq.check("q.onnx", layers="layers.json")
    assert np.isclose(sum(len(layer["nodes"]) for layer in json.loads(text)["listing"]["layers"]), 7)


def test_brackets_cost_no_time(model: Path) -> None:
    """Names with thousands of brackets are read in a time that grows with their length alone."""
    listing = classic()
    begins = ("Reformatting CopyNode" + "(" * 50_000, "[ONNX Layer: " * 50_000, "PWN(" * 50_000)
    for begin in begins:
        listing["Layers"][0] |= {"Name": begin, "Metadata": begin}
        write(listing)
        began = time.process_time()
        read_layers("layers.json")
        assert time.process_time() - began < 2.0  # a quadratic reader takes minutes


@pytest.mark.parametrize("number", [10**400, float("nan"), float("inf"), -1.0, "2", None, True, [1]])
def test_numbers_of_a_profile(number: object, model: Path) -> None:
    """Only finite numbers are times; None stands for a missing one, and all else is one line."""
    for row in ({"medianMs": number}, {"timeMs": number}, {"count": number}):
        write([{"count": 2}, {"name": "n", "averageMs": 1.0} | row], "profile.json")
        try:
            assert 0 <= (read_times("profile.json", ["n"])[0] or 0) < np.inf
        except DataError as fault:
            assert "profile.json: rows.1." in str(fault)
