"""Files next to the model for a machine with TensorRT: commands, samples, a README."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfq.graph.signature import boundaries
from onnxfq.interchange.polygraphy_json import inputs_json, outputs_json
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.target import Kit, Samples
from onnxfq.targets.tensorrt.tools import commands
from onnxfq.targets.tensorrt.tools.commands import TENSORS_FILE


def write_texts(samples: Samples) -> dict[str, str]:
    """Return samples as Polygraphy reads them, and scripts for each release, by file name."""
    shapes, expected = samples.profiles, bool(samples.results)
    limits, files = commands.cosine_limits(samples.agreements), commands.raw_files(samples.first)
    made = {"inputs.json": inputs_json(samples.feeds)}
    made |= {"outputs.json": outputs_json(samples.results)} if expected else {}
    for release in commands.RELEASES:
        lines = [
            commands.trtexec(release, shapes, samples.first, files),
            commands.polygraphy(release, shapes, expected, limits),
        ]
        made[f"tensorrt{release}.sh"] = commands.script(lines)
        layers = commands.polygraphy_tensors(release, shapes, boundaries(samples.proto))
        made[f"layers{release}.sh"] = commands.script([layers])
    return made


def write_readme(found: CheckResult, notes: Sequence[str], samples: Samples) -> str:
    """Return the README: the files of the folder, the limits of the comparison, and the findings."""
    expected, limits = bool(samples.results), commands.cosine_limits(samples.agreements)
    lines = ["# Hand-over to TensorRT", ""]
    lines += [f"- {note}" for note in notes] + ([""] if notes else [])
    lines += ["| file | content |", "|---|---|"]
    rows = [
        ("model.onnx", "the model, with Q/DQ and all weights inside"),
        (
            "tensorrt10.sh, tensorrt11.sh",
            "build, time and compare with trtexec and Polygraphy of that release",
        ),
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
            f"{commands.COSINE} with them for every output of every sample.",
        ]
        lines += [
            f"Output `{name}` needs only {limit:.4f}: where ONNX Runtime itself rounds at other places, it "
            f"comes to {samples.agreements[name]:.4f}, and an engine may turn it by twice that angle."
            for name, limit in limits.items()
        ]
    lines += ["", "## Findings", "", "```text", found.table(), "```", ""]
    lines.append(
        "A layer that should run in low precision and shows Float or Half in `layers.json` was not fused; "
        "compare its name with the coverage above."
    )
    lines += ["", "## Find where TensorRT differs", "", "```sh", "sh layers11.sh"]
    lines += [f"onnxfq compare model.onnx --data inputs --batch 0 --b {TENSORS_FILE}", "```"]
    return "\n".join(lines) + "\n"


KIT = Kit(write_texts, commands.raw_files, write_readme)
