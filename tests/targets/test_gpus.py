"""`--gpu`: formats of GPUs by name, recipes that do not run there, and DLA, which runs int8 alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import feed_for, linear, plain_quantize, whole_recipe
from engines import needs_builder

import onnxfq
from onnxfq.cli.main import main
from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError, RecipeError
from onnxfq.stages.options import QuantizeOptions
from onnxfq.targets.profiles import profiles
from onnxfq.targets.recipes import RECIPES
from onnxfq.targets.target import BuildOptions, target_by_name
from onnxfq.targets.tensorrt.builder.jobs import Job, run_jobs
from onnxfq.targets.tensorrt.gpus import CAPABILITIES, FORMATS, find_cell, read_gpu
from onnxfq.targets.tensorrt.tools.gpu_fit import NEXT, judge_recipe, list_formats

BUILT = [75, 80, 86, 89, 120, 121]
FEEDS = [feed_for(linear(64, 64), seed) for seed in range(3)]
OURS = [name for name, recipe in RECIPES.items() if recipe.target == "tensorrt"]


def written(recipe: str | Recipe, path: Path | None = None, **options: object) -> onnx.ModelProto:
    """Return a Q/DQ model of one product."""
    return plain_quantize(linear(64, 64), FEEDS, path, recipe=recipe, **options).qdq


@needs_builder
@pytest.mark.parametrize("name", ["tensorrt-int8", "tensorrt-fp8", "tensorrt-int4", "tensorrt-nvfp4"])
def test_the_builder_agrees(name: str, tmp_path: Path) -> None:
    """The builder makes an engine of a recipe for exactly the architectures that the table gives it.

    The rest is in float16: for SM75 the builder has no product of float32.
    """
    half = QuantizeOptions(floats=FloatOptions("fp16"))
    made = written(whole_recipe(name), path=tmp_path / "q.onnx", options=half)
    assert any(node.op_type == "DequantizeLinear" for node in made.graph.node)
    shapes = profiles(made, {})
    reports = run_jobs([Job(tmp_path / "q.onnx", f"SM{sm}", shapes) for sm in BUILT], 600)
    assert [report.built for report in reports] == [judge_recipe(RECIPES[name], [str(sm)]) for sm in BUILT]


@pytest.mark.parametrize("name", CAPABILITIES)
def test_every_cell_has_a_source_or_is_unknown(name: str) -> None:
    """Nothing is said of a GPU without a source."""
    for key in FORMATS.values():
        cell = find_cell(key, read_gpu(name))
        assert cell.source and (
            cell.runs is not None or "no source" in cell.source or "in half" in cell.source
        )


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        *((text, 75) for text in ("75", "T4", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti")),
        *((text, 89) for text in ("l4", "L4", "8.9", "rtx4070-super", "l40s", "RTX 6000 Ada")),
        *(("A100 80GB PCIe", 80), ("A10G", 86), ("rtx3090", 86), ("Orin", 87), ("Jetson Orin Nano", 87)),
        *(("H200", 90), ("sm_100", 100), ("GB200", 100), ("SM120", 120), ("RTX 5090", 120), ("dla", 0)),
    ],
)
def test_names_and_numbers(text: str, capability: int) -> None:
    """GPUs have names and compute capabilities, in any case."""
    assert read_gpu(text).capability == capability
    assert QuantizeOptions(gpus=(text,)).capability == capability


@pytest.mark.parametrize("text", ["", "l5", "rtx", "8", "SM", "SM8.9.1", "-8.9"])
def test_unknown_gpus(text: str) -> None:
    """Other text is refused with the names that are near."""
    with pytest.raises(DataError, match=r"give its compute capability, such as 8.9 or SM89, or a name"):
        read_gpu(text)
    with pytest.raises(DataError):
        QuantizeOptions(gpus=("l4", text))


@pytest.mark.parametrize(
    ("text", "hint"),
    [("rtx60", ""), ("h1000", ""), ("oirn", "orin"), ("thro", "thor"), ("l40x", "l40, l40s")],
)
def test_hints_keep_the_number(text: str, hint: str) -> None:
    """A hint has the number of what was given: no other GPU is offered in its place."""
    with pytest.raises(DataError, match=rf"or orin{f'; nearest: {hint}' if hint else ''}$"):
        read_gpu(text)


@pytest.mark.parametrize("text", ["V100", "Tesla P100", "xavier", "agx-xavier", "GTX 1080 Ti", "SM70", "6.1"])
def test_old_gpus_are_refused(text: str) -> None:
    """TensorRT 10 has no kernels for them; the line says so, without a newer GPU in their place."""
    with pytest.raises(DataError, match=r"is older than SM75, where .* begins; quantize for another runtime"):
        read_gpu(text)


@pytest.mark.grid
@pytest.mark.parametrize("recipe", OURS)
@pytest.mark.parametrize("gpus", [("a100",), ("l4", "orin"), ("rtx50",), ("b200", "thor"), ("75",)], ids=str)
def test_recipes_run_or_name_the_nearest(recipe: str, gpus: tuple[str, ...]) -> None:
    """A recipe that is refused names one that runs on all of the GPUs, and one that is not runs."""
    hardware = target_by_name("tensorrt").hardware
    assert hardware is not None and list_formats(RECIPES[recipe])
    if judge_recipe(RECIPES[recipe], gpus) is not False:
        hardware.refuse(RECIPES[recipe], gpus)
        return
    with pytest.raises(RecipeError, match=f"recipe {recipe}: .* has no products of") as caught:
        hardware.refuse(RECIPES[recipe], gpus)
    other = str(caught.value).rpartition(" ")[2]
    assert judge_recipe(RECIPES[other], gpus) is True and other in NEXT.values()


@pytest.mark.sample
def test_several_gpus_have_what_all_have() -> None:
    """float8 runs on L4 and H100, and not on L4 and A100."""
    fp8 = RECIPES["tensorrt-fp8"]
    assert judge_recipe(fp8, ["l4", "h100"]) is True
    assert judge_recipe(fp8, ["l4", "a100"]) is False
    assert judge_recipe(RECIPES["tensorrt-mxfp8"], ["thor"]) is None
    assert QuantizeOptions(gpus=("l4", "a100")).capability == 80


def test_a_refused_recipe_writes_nothing(tmp_path: Path) -> None:
    """`quantize` refuses before it reads the data."""
    proto, path = linear(64, 64), tmp_path / "q.onnx"
    options = QuantizeOptions(gpus=("orin",))
    with pytest.raises(RecipeError, match="orin .SM87. has no products of float8e4m3fn .*is tensorrt-int8$"):
        onnxfq.quantize(proto, "no.npz", path, recipe="tensorrt-fp8", options=options)
    assert not path.exists()
    outcomes = onnxfq.quantize(
        proto, FEEDS, tmp_path, recipe=["tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8"], options=options
    )
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]


def test_models_are_checked() -> None:
    """`check` refuses the formats of a model that a GPU lacks, one finding for each GPU."""
    model = written(whole_recipe("tensorrt-fp8"))
    assert onnxfq.check(model, gpus=["l4", "h100"]).passed
    found = onnxfq.check(model, gpus=["l4", "a100", "orin"])
    messages = [finding.message for finding in found.findings if finding.rule == "gpu"]
    assert [message.split()[0] for message in messages] == ["a100", "orin"] and not found.passed
    with pytest.raises(RecipeError, match="target onnxruntime has no GPUs by name"):
        onnxfq.check(model, "onnxruntime", gpus=["l4"])


@needs_builder
def test_builds_are_for_the_gpus(tmp_path: Path) -> None:
    """`--build` is for the GPUs that are given, and a warning names one without kernels there."""
    model = written("tensorrt-int8")
    for gpus, devices in ((["rtx50", "8.0"], {"SM120", "SM80"}), (["orin"], {"SM86", "SM89"})):
        found = onnxfq.check(model, build=BuildOptions(), gpus=gpus)
        assert {node.device for node in found.engine} == devices and found.passed
        told = [one.message for one in found.findings if "no kernels for orin (SM87)" in one.message]
        assert len(told) == (gpus == ["orin"]) and all("for SM86 and SM89" in message for message in told)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Every command with the option says what runs there, and refuses in one line."""
    monkeypatch.chdir(tmp_path)
    onnx.save(linear(64, 64), "m.onnx")
    np.savez("d.npz", **feed_for(linear(64, 64)))
    assert main("quantize m.onnx --data d.npz -o q.onnx --gpu l4 --gpu orin".split()) == 0
    text = capfd.readouterr().out
    assert "gpu        l4 (SM89): runs int8, int4 weights, float8; lacks NVFP4; unknown: MXFP8" in text
    assert "gpu        orin (SM87): runs int8, int4 weights; lacks float8, NVFP4; unknown: MXFP8" in text
    for line, code in (
        ("quantize m.onnx --data d.npz -o r.onnx --recipe tensorrt-fp8 --gpu orin", 1),
        ("plan m.onnx -o p.json --recipe tensorrt-nvfp4 --gpu l4", 1),
        ("plan m.onnx -o p.json --gpu l4", 0),
        ("check q.onnx --gpu rtx50", 0),
        ("handoff q.onnx -o kit --data d.npz --gpu h100", 0),
    ):
        assert main(line.split()) == code, line
        said = capfd.readouterr()
        assert said.err.count("the nearest recipe that runs there is tensorrt-") == code, line
        assert code or "gpu        " in said.out
    assert not Path("r.onnx").exists()
    assert main("recipes --gpu a100 --gpu b200".split()) == 0
    rows = {line.split()[0]: line.split()[-1] for line in capfd.readouterr().out.splitlines() if line}
    assert (rows["tensorrt-int8"], rows["tensorrt-fp8"], rows["tensorrt-int4"]) == ("yes", "no", "yes")
    assert main("check q.onnx --gpu dla --json".split()) == 0
    assert "int8 alone, by Q/DQ from TensorRT 11.4.1 on, on Orin; for its" in capfd.readouterr().err
    known = {name for name in OURS if judge_recipe(RECIPES[name], ["dla"])}
    assert known == {"tensorrt-int8", "tensorrt-int8-weights"}


def test_json_of_recipes_is_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    """The option adds a column, and changes no recipe."""
    assert main(["recipes", "--json"]) == 0
    plain = json.loads(capfd.readouterr().out)
    assert main(["recipes", "--json", "--gpu", "l4"]) == 0
    assert json.loads(capfd.readouterr().out) == plain
