"""MatMuls in a row with weights of any size, written to a data file without holding them in memory."""

from contextlib import closing
from pathlib import Path

from onnx import TensorProto, helper

from networks.external_weights import ExternalWeights

LAYERS = 4


def write_matmul_chain(folder: Path, gigabytes: float) -> tuple[Path, int]:
    """Write the chain as `m.onnx` with its weights in `m.onnx.data`; return its path and its width."""
    width = int((gigabytes * 1e9 / 4 / LAYERS) ** 0.5) // 128 * 128
    with closing(ExternalWeights(folder / "m.onnx.data")) as weights:
        tensors = [weights.add(f"w{layer}", width, width, width**-0.5) for layer in range(LAYERS)]
    nodes = [
        helper.make_node("MatMul", [f"h{layer}", f"w{layer}"], [f"h{layer + 1}"]) for layer in range(LAYERS)
    ]
    ends = [helper.make_tensor_value_info(f"h{n}", TensorProto.FLOAT, ["N", width]) for n in (0, LAYERS)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx", width
