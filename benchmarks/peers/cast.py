"""Float16 models of `onnxfq.cast`, of ModelOpt's AutoCast and of onnxconverter-common's float16.

    python benchmarks/peers/cast.py FOLDER --modelopt PYTHON --converter PYTHON --out PAGE

FOLDER is the one for `real_models.py`. All tools keep inputs and outputs in float32. A model loads if ONNX
Runtime opens it, and builds if TensorRT for RTX makes an engine of it for SM86. The SQNR belongs to the worst
output over the first feeds, with each operator computed in float32 and its result rounded to its type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from job import CASES, Folder, float_model, job_folder, parse, run
from onnx import TensorProto
from timing import markdown_table, write_section

import onnxfq
from onnxfq.graph.normalize.shapes import with_shapes

NETWORKS = (
    "resnet20_op13_bn",
    "yolox_nano",
    "ultraface_rfb320_op9",
    "ppocrv3_det_op12",
    "ppocr_cls_op11",
    "dtln_1_op11",
    "minilm_l6 raised to float32",
    "espcn_x3_op10",
    "basic_pitch_op15",
    "stories260k_ts_op17",
)
FEEDS = 8
HEADER = ["network", "tool", "loads", "builds", "SQNR dB", "Casts", "nodes in float32"]
TEXT = "Networks with trained weights; AutoCast observes the first of the {} feeds, onnxfq all of them."


def cast_by_onnxfq(folder: Path, feeds: list[Any] | None) -> dict[str, Any]:
    """Write the float16 model of `onnxfq.cast`."""
    onnxfq.cast(folder / "model.onnx", feeds, folder / "onnxfq.onnx")
    return {"model": "onnxfq.onnx"}


def count_nodes(proto: onnx.ModelProto) -> tuple[int, int]:
    """Return the number of Cast nodes, and of other nodes that give float32."""
    shaped = with_shapes(proto)
    values = (*shaped.graph.value_info, *shaped.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    others = [node for node in shaped.graph.node if node.op_type not in ("Cast", "Constant")]
    wide = sum(any(types.get(name) == TensorProto.FLOAT for name in node.output) for node in others)
    return len(shaped.graph.node) - len(others) - _count(shaped, "Constant"), wide


def _count(proto: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in proto.graph.node)


def judge(source: Path, made: Path, feeds: list[Any]) -> list[str]:
    """Return the cells of one model."""
    before, proto = count_nodes(onnx.load(source))[0], onnx.load(made)
    casts, wide = count_nodes(proto)
    counts = [str(casts - before), str(wide)]
    try:
        onnxruntime.InferenceSession(str(made), providers=["CPUExecutionProvider"])
        loads = "yes"
    except Exception as error:  # onnxruntime has classes that share no other base
        loads = f"no: {str(error).strip().splitlines()[0][:90]}"
    try:
        found = onnxfq.check(made, build=onnxfq.BuildOptions())
        builds = "yes" if found.passed else f"no: {found.findings[0].message[:90]}"
        score = f"{onnxfq.evaluate(source, made, feeds).lowest_db:.1f}"
    except onnxfq.OnnxfqError as error:
        builds, score = "no", f"refused: {str(error)[:90]}"
    return [loads, builds, score, *counts]


def rows_of(
    name: str, model: onnx.ModelProto, feeds: list[Any], tools: dict[str, str | None]
) -> list[list[str]]:
    """Return a row for each tool."""
    with job_folder(model, feeds) as folder:
        made = {
            "onnxfq": cast_by_onnxfq(folder, feeds),
            "AutoCast": run(tools["modelopt"], "autocast", "cast", folder),
            "onnxconverter-common": run(tools["converter"], "converter", "cast", folder),
        }
        rows = [[name, "none: float32", *judge(folder / "model.onnx", folder / "model.onnx", feeds)]]
        for tool, result in made.items():
            if "error" in result:
                cells = ["", "", f"fails: {result['error'][:90]}", "", ""]
            else:
                cells = judge(folder / "model.onnx", folder / result["model"], feeds)
            rows.append([name, tool, *(cell.replace("|", "/").replace(str(folder), "") for cell in cells)])
    return rows


def main() -> None:
    """Cast all networks by all tools, and write the section."""
    arguments = parse(__doc__, "modelopt", "converter")
    folder, rows = Folder(arguments.folder), []
    for case in CASES:
        if case.name in NETWORKS:
            feeds = folder.feeds(case)[:FEEDS]
            rows += rows_of(case.name, float_model(folder, case), feeds, vars(arguments))
            print(*rows[-4:], sep="\n", flush=True)
    table = markdown_table(HEADER, rows)
    write_section(arguments.out, "Float16 models", "Ten networks", f"{TEXT.format(FEEDS)}\n\n{table}")


if __name__ == "__main__":
    main()
