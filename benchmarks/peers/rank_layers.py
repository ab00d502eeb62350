"""Layers damaged on purpose: who finds them, at what cost, and who keeps the accuracy.

    python benchmarks/peers/rank_layers.py FOLDER --aimet PYTHON --nncf PYTHON [--out PAGE.md]

The networks are those of `protection.py`: in resnet20 two random convolutions read a channel times 2000.
"""

from __future__ import annotations

from typing import Any

import onnx
from job import (
    Folder,
    count_float,
    find_case,
    float_model,
    job_folder,
    labelled,
    parse,
    run,
    score,
    write_section,
)
from protection import Pair, plant
from timing import machine, markdown_table

SEEDS = 3
BATCH, CALIBRATION, VALIDATION = 10, 10, 50
SAMPLES = 2
MAX_DROP = 0.005
RANKING = (
    ("onnxfq, noise of 2 feeds", "onnxfq", {"metric": "sqnr", "samples": SAMPLES}),
    ("onnxfq, top-1 of 50 images", "onnxfq", {"metric": "top1", "samples": SAMPLES}),
    ("AIMET, each layer alone, noise of 2 feeds", "aimet", {"metric": "sqnr", "samples": SAMPLES}),
    ("AIMET, each layer alone, top-1 of 50 images", "aimet", {"metric": "top1", "samples": CALIBRATION // 2}),
    ("AIMET, each layer left out, noise of 2 feeds", "aimet", {"alone": False, "samples": SAMPLES}),
)


def damaged(graph: onnx.GraphProto, pair: Pair) -> set[str]:
    """Return the nodes through which the damaged tensor of a pair goes, from its writer to its reader."""
    writer, reader = pair
    makers = {name: node for node in graph.node for name in node.output}
    found, node = {reader.name, writer.name}, makers[reader.input[0]]
    while node.name != writer.name:
        found.add(node.name)
        node = makers[node.input[0]]
    return found


def places(ranking: list[list[str]], graph: onnx.GraphProto, pairs: list[Pair], readers: bool) -> list[int]:
    """Return the place of the first entry for each pair.

    Tools that quantize outputs name the writers of the tensor, onnxfq the node that reads it (`readers`).
    """
    wanted = [{pair[1].name} if readers else damaged(graph, pair) for pair in pairs]
    return sorted(
        next((at for at, nodes in enumerate(ranking, 1) if names & set(nodes)), 0) for names in wanted
    )


def rank(folder: Folder, pythons: dict[str, str | None]) -> list[list[str]]:
    """Return the rows of the rankings."""
    case = find_case("resnet20_dynamo_op20_ext")
    proto = float_model(folder, case)
    feeds, labels = labelled(folder, case, BATCH)
    rows = []
    for label, tool, options in RANKING:
        if tool != "onnxfq" and not pythons.get(tool):
            continue
        found: list[dict[str, Any]] = []
        cells: list[str] = []
        for seed in range(SEEDS):
            made, pairs = plant(proto, seed)
            with job_folder(made, feeds[:CALIBRATION], labels[: CALIBRATION * BATCH]) as work:
                result = run(pythons.get(tool), tool, "analyze", work, **options)
            if "error" in result:
                cells.append(result["error"])
                continue
            found.append(result)
            at = places(result["ranking"], made.graph, pairs, readers=tool == "onnxfq")
            cells.append(f"{at} of {len(result['ranking'])}")
        rows.append([label, "; ".join(cells), *_costs(found)])
    return rows


def control(folder: Folder, pythons: dict[str, str | None]) -> list[list[str]]:
    """Return the rows of the promised accuracy."""
    case = find_case("resnet20_dynamo_op20_ext")
    proto = float_model(folder, case)
    feeds, labels = labelled(folder, case, BATCH)
    rows = [["float", f"{score(folder, case, None)[0]:.4f}", "", "", ""]]
    for tool in ("onnxfq", "nncf"):
        if tool != "onnxfq" and not pythons.get(tool):
            continue
        found, tops, kept = [], [], []
        for seed in range(SEEDS):
            with job_folder(plant(proto, seed)[0], feeds[:VALIDATION], labels[: VALIDATION * BATCH]) as work:
                result = run(pythons.get(tool), tool, "control", work, max_drop=MAX_DROP)
                if "error" in result:
                    tops.append(result["error"])
                    continue
                found.append(result)
                tops.append(f"{score(folder, case, work / result['model'])[0]:.4f}")
                kept.append("{} of {}".format(*count_float(work / result["model"])))
        name = {"onnxfq": "onnxfq, `--max-drop 0.5`", "nncf": "NNCF, quantize_with_accuracy_control"}[tool]
        rows.append([name, "; ".join(tops), "; ".join(kept), *_costs(found)])
    return rows


def _costs(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["", ""]
    means = [sum(one[key] for one in found) / len(found) for key in ("processor", "sessions")]
    return [f"{means[0]:.1f}", f"{means[1]:.0f}"]


def main() -> None:
    """Measure, and write the section."""
    arguments = parse(__doc__, "aimet", "nncf")
    folder = Folder(arguments.folder.resolve())
    pythons = {"aimet": arguments.aimet, "nncf": arguments.nncf}
    costs = ["processor s", "sessions"]
    ranking = markdown_table(["ranking by", "places of the 2 damaged layers", *costs], rank(folder, pythons))
    kept = markdown_table(
        ["promise of at most 0.5 points", "top-1", "layers in float", *costs], control(folder, pythons)
    )
    head = f"resnet20 with two damaged layers, {SEEDS} seeds, int8; one thread; {machine()}."
    images = VALIDATION * BATCH
    text = f"""{head}

Each ranking has {CALIBRATION * BATCH} images for calibration. The damaged tensor of each pair is expected at
places 1 and 2.

{ranking}

Promises are chosen and proven on {images} images, and scored on 2,000 others. One image is
{200 / images:g} points of the half that proves a promise of onnxfq, which warns that chance may decide, here
how many of the undamaged layers stay in float. Costs are means of a seed.

{kept}"""
    write_section(arguments.out, "Layers damaged on purpose", text)


if __name__ == "__main__":
    main()
