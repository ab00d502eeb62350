"""Files next to the model for a machine with TensorRT: commands, samples, a README.

Options of trtexec and Polygraphy follow NVIDIA's reference of trtexec and its migration guide from TensorRT
10 to 11: from 11 on every network is strongly typed, and --stronglyTyped, needed for 10, has no effect.
Precision flags are never given: under strong typing the graph defines the precision. Polygraphy as of 0.53.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

from onnxfq.graph.signature import boundaries
from onnxfq.interchange.polygraphy_json import inputs_json, outputs_json
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.profiles import ENDS, Profile, name_sizes
from onnxfq.targets.target import Kit, Samples
from onnxfq.targets.tensorrt.tools.scripts import LAYERS_FILE, LIST_COMMAND, LIST_LAYERS, PROFILE_FILE, script

RELEASES = (10, 11)
"""Major versions of TensorRT that commands are written for."""

COSINE = 0.99
"""Usual least cosine with the expected outputs: fused kernels round at other places than single operators."""

TENSORS_FILE = "tensorrt.json"
"""File of the tensors that TensorRT computed."""


def cosine_limits(agreements: Mapping[str, float]) -> dict[str, float]:
    """Return the least cosine for each output that needs less than `COSINE`.

    An engine may differ from the expected outputs by twice the angle by which two ways of rounding differ in
    ONNX Runtime: cos 2t = 2 cos^2 t - 1.

    Args:
        agreements: cosine of both ways by output.
    """
    doubled = {name: max(0.0, 2 * cosine * cosine - 1) for name, cosine in agreements.items()}
    return {name: math.floor(limit * 1e4) / 1e4 for name, limit in doubled.items() if limit < COSINE}


def trtexec(
    release: int,
    profiles: Mapping[str, Profile],
    first: Mapping[str, tuple[int, ...]],
    files: Mapping[str, str],
) -> list[str]:
    """Return the command that builds `model.onnx`, reports each layer and times it on the first sample.

    Args:
        release: major version of TensorRT.
        profiles: optimization profiles by input.
        first: shapes of the first sample by input.
        files: names of the raw files of the first sample by input.
    """
    words = ["trtexec", "--onnx=model.onnx", "--saveEngine=model.plan"]
    words += ["--stronglyTyped"] if release < 11 else []
    for number, end in enumerate(ENDS):
        shapes = [f"{_quote_name(name)}:{name_sizes(profile[number])}" for name, profile in profiles.items()]
        words += [f"--{end}Shapes={','.join(shapes)}"] if shapes else []
    open_inputs = [f"{_quote_name(name)}:{name_sizes(first[name])}" for name in profiles]
    words += [f"--shapes={','.join(open_inputs)}"] if open_inputs else []
    given = [f"{_quote_name(name)}:raw/{file}" for name, file in files.items()]
    words.append(f"--loadInputs={','.join(given)}")
    words += ["--profilingVerbosity=detailed", "--dumpLayerInfo", f"--exportLayerInfo={LAYERS_FILE}"]
    return [*words, "--dumpProfile", f"--exportProfile={PROFILE_FILE}", "--separateProfileRun"]


def build_engine(release: int, profiles: Mapping[str, Profile]) -> list[str]:
    """Return Polygraphy's command that builds `model.plan` with the names of its layers, without trtexec."""
    words = ["polygraphy", "convert", "model.onnx", "--convert-to", "trt", "-o", "model.plan"]
    words += ["--profiling-verbosity", "detailed"]
    return words + _typing(release) + _end_shapes(profiles)


def polygraphy(
    release: int, profiles: Mapping[str, Profile], expected: bool, limits: Mapping[str, float]
) -> list[str]:
    """Return the command that builds `model.onnx`, runs all samples and compares the outputs.

    Args:
        release: major version of TensorRT.
        profiles: optimization profiles by input.
        expected: whether there are outputs to compare with.
        limits: least cosine of outputs with another one than `COSINE`.
    """
    words = _polygraphy_run(release, profiles)
    if expected:
        words += ["--load-outputs", "outputs.json", "--compare", "cosine_similarity"]
        words += ["--cosine-similarity-threshold", str(COSINE)]
        words += [f"{name}:{limit:.4f}" for name, limit in limits.items()]
    return [*words, "--validate"]


def polygraphy_tensors(release: int, profiles: Mapping[str, Profile], tensors: Sequence[str]) -> list[str]:
    """Return the command that builds `model.onnx` with `tensors` as outputs and saves their values.

    An engine with more outputs fuses less than the one without.
    """
    return [*_polygraphy_run(release, profiles), "--trt-outputs", *tensors, "--save-outputs", TENSORS_FILE]


def _polygraphy_run(release: int, profiles: Mapping[str, Profile]) -> list[str]:
    words = ["polygraphy", "run", "model.onnx", "--trt", *_typing(release), *_end_shapes(profiles)]
    return [*words, "--load-inputs", "inputs.json"]


def _typing(release: int) -> list[str]:
    return ["--strongly-typed"] if release < 11 else []


def _end_shapes(profiles: Mapping[str, Profile]) -> list[str]:
    words: list[str] = []
    for number, end in enumerate(ENDS):
        shapes = [f"{name}:[{','.join(map(str, profile[number]))}]" for name, profile in profiles.items()]
        words += [f"--trt-{end}-shapes", *shapes] if shapes else []
    return words


_LONGEST = 200
"""Most bytes of a file name without extension."""


def raw_files(tensors: Iterable[str]) -> dict[str, str]:
    """Return a file name for each of `tensors`; all but letters, digits, dots and dashes become underscores.

    A long name, or one that another tensor has in upper or lower case, keeps its beginning and gets a hash:
    file systems allow 255 bytes, and some do not distinguish a from A.
    """
    names, taken = {}, set[str]()
    for tensor in tensors:
        name = "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in tensor)
        if len(name.encode()) > _LONGEST or name.casefold() in taken:
            name = f"{name[: _LONGEST // 4]}-{hashlib.sha256(tensor.encode()).hexdigest()[:16]}"
        taken.add(name.casefold())
        names[tensor] = f"{name}.bin"
    return names


def _quote_name(tensor: str) -> str:
    """Return a tensor's name as trtexec reads it: in quotes if it has a colon or a comma."""
    return f"'{tensor}'" if set(tensor) & set(":,") else tensor


def write_texts(samples: Samples) -> dict[str, str]:
    """Return samples as Polygraphy reads them, and scripts for each release, by file name."""
    shapes, expected = samples.profiles, bool(samples.results)
    limits, files = cosine_limits(samples.agreements), raw_files(samples.first)
    made = {"inputs.json": inputs_json(samples.feeds)}
    made |= {"outputs.json": outputs_json(samples.results)} if expected else {}
    made["layers.py"] = LIST_LAYERS
    for release in RELEASES:
        lines = [
            trtexec(release, shapes, samples.first, files),
            polygraphy(release, shapes, expected, limits),
        ]
        made[f"tensorrt{release}.sh"] = script(lines, [build_engine(release, shapes), LIST_COMMAND])
        layers = polygraphy_tensors(release, shapes, boundaries(samples.proto))
        made[f"layers{release}.sh"] = script([layers])
    return made


def write_readme(found: CheckResult, notes: Sequence[str], samples: Samples) -> str:
    """Return the README: the files of the folder, the limits of the comparison, and the findings."""
    expected, limits = bool(samples.results), cosine_limits(samples.agreements)
    lines = ["# Hand-over to TensorRT", ""]
    lines += [f"- {note}" for note in notes] + ([""] if notes else [])
    lines += ["| file | content |", "|---|---|"]
    rows = [
        ("model.onnx", "the model, with Q/DQ and all weights inside"),
        (
            "tensorrt10.sh, tensorrt11.sh",
            "build, time and compare with trtexec and Polygraphy of that release; without trtexec, which "
            "TensorRT's container, .deb and .tar packages have and its pip package lacks, Polygraphy builds",
        ),
        ("layers.py", f"lists the layers of the engine in {LAYERS_FILE} where trtexec is missing"),
        (
            "layers10.sh, layers11.sh",
            f"save TensorRT's tensors in front of every QuantizeLinear into {TENSORS_FILE}",
        ),
        ("profiles.json", "smallest, most frequent and largest shape of inputs with open dimensions"),
        ("inputs.json" + (", outputs.json" if expected else ""), "samples for Polygraphy (0.53 or later)"),
        ("inputs/" + (", outputs/" if expected else ""), "the same as .npz files"),
        ("raw/", "the first sample raw, for trtexec"),
        ("findings.json", "what `onnxfq check` found"),
    ]
    lines += [f"| {name} | {what} |" for name, what in rows]
    if expected:
        lines += [
            "",
            "Expected outputs are ONNX Runtime's without optimisation: each operator computes in float32, "
            "and its result is rounded to the type that the model has there. The scripts want a cosine of at "
            "least "
            f"{COSINE} with them for every output of every sample.",
        ]
        lines += [
            f"Output `{name}` needs only {limit:.4f}: where ONNX Runtime itself rounds at other places, it "
            f"comes to {samples.agreements[name]:.4f}, and an engine may turn it by twice that angle."
            for name, limit in limits.items()
        ]
    lines += ["", "## Findings", "", "```text", found.table(), "```", ""]
    lines += [
        "## What the engine runs",
        "",
        f"The scripts write {LAYERS_FILE}, and trtexec {PROFILE_FILE} too. Bring both back:",
        "",
        "```sh",
        f"onnxfq check model.onnx --layers {LAYERS_FILE} --profile {PROFILE_FILE}",
        "```",
        "",
        "names the operators above that run in low precision there, what is fused, and where time goes.",
    ]
    lines += ["", "## Find where TensorRT differs", "", "```sh", "sh layers11.sh"]
    lines += [f"onnxfq compare model.onnx --data inputs --batch 0 --candidate {TENSORS_FILE}", "```"]
    return "\n".join(lines) + "\n"


KIT = Kit(write_texts, raw_files, write_readme)
