"""MatMuls in a row with weights of any size, written to a data file without holding them in memory."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

LAYERS = 4


def write_matmul_chain(folder: Path, gigabytes: float) -> tuple[Path, int]:
    """Write the chain as `m.onnx` with its weights in `m.onnx.data`; return its path and its width."""
    width = int((gigabytes * 1e9 / 4 / LAYERS) ** 0.5) // 128 * 128
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    with (folder / "m.onnx.data").open("wb") as stream:
        for layer in range(LAYERS):
            start = stream.tell()
            for _ in range(0, width, 128):
                rows = rng.standard_normal((128, width), dtype=np.float32) / np.float32(width**0.5)
                stream.write(rows.tobytes())
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            places = {"location": "m.onnx.data", "offset": start, "length": stream.tell() - start}
            for key, value in places.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"h{layer}", f"w{layer}"], [f"h{layer + 1}"]))
    ends = [helper.make_tensor_value_info(f"h{n}", TensorProto.FLOAT, ["N", width]) for n in (0, LAYERS)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx", width
