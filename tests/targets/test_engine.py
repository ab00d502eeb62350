"""Reading the builder's list of layers."""

from __future__ import annotations

import pytest

from onnxfq.targets.tensorrt.builder.figures import count_layers
from onnxfq.targets.tensorrt.builder.layers import parse_layers, verdict


def line(name: str, kind: str, inputs: str, constants: str, nodes: str, outputs: str = "4,32:Float") -> str:
    """Return a line of the log; tensors as `4,64:Int8`, several of each with blanks between."""
    lists = []
    for text in (inputs, constants, outputs):
        pairs = [tensor.split(":") for tensor in text.split()]
        inside = ", ".join(f"{{ Name: t, Dimensions: [{d}], Format/Datatype: {t} }}" for d, t in pairs)
        lists.append(f"[{inside}]" if not inside else f"[ {inside} ]")
    metadata = "".join(f"[ONNX Layer: {node}]" for node in nodes.split(";"))
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: {lists[0]}, Constants: {lists[1]}, Outputs: {lists[2]}, "
        f"TacticName: t, StreamId: 0, Metadata: {metadata}"
    )


BODY = "only | yes (then_branch) | choose (If)"
TEXT = "\n".join(
    [
        "Layers:",
        line("mm_myl0_0", "gemm", "4,64:Int8", "64,32:Int8 :Float", "mm;wdq"),
        line("fused_myl0_1", "runtime_fusion", "-1,64:Half", "64,32:Int4", BODY),
        line("half_myl0_2", "runtime_fusion", "4,64:Int8", "64,32:Float", "half"),
        line("__myl_Cast_myl0_3", "kgen", "4,64:Int8", "4,64:Int8", "plain"),
        line("plain_myl0_4", "correlation", "4,64:Float", "", "plain"),
        line("signal_5", "signal", "", "", "s"),
        line("x_gemm_mha_v2_6", "kgen", "4,4:Int8 4,4:Int8 4,4:Half 4,4:Int8", "", "scores;mix"),
        line("y_gemm_mha_v2_8", "kgen", "4,4:Int8 4,4:Bool 4,4:Int8", "4,4:Int8", "learned"),
        line("pad_7", "runtime_function", "", "64,17:FP4E2M1 64,1:FP4E2M1", "odd"),
        line("odd_U9_8", "gemm", "16,64:FP4E2M1 64,18:FP4E2M1 1,4,32:FP8", "", "odd"),
        "",
        "Bindings:",
    ]
)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("mm", "low"),
        ("only", "weight-only"),
        ("half", "mixed"),
        ("plain", "float"),
        ("scores", "low"),
        ("mix", "low"),
        ("learned", "low"),
        ("odd", "low"),
        ("s", "missing"),
        ("other", "missing"),
    ],
)
def test_verdict(node: str, expected: str) -> None:
    """A node runs in the types of the layer that multiplies for it; scales and masks do not count."""
    assert verdict(parse_layers(TEXT), node) == expected


def test_layers_end_with_the_list() -> None:
    """Text after the list is not a layer, and an unknown format gives none."""
    assert [layer.kind for layer in parse_layers(TEXT)][-1] == "gemm" and len(parse_layers(TEXT)) == 10
    assert parse_layers("Layers:\nlayer 1: gemm") == ()


def test_counts() -> None:
    """Four bits are half a byte, an open size is one, and one kernel only quantizes."""
    lines = [
        line("a", "gemm", "4,64:Int8", "64,32:Int4", "mm", "-1,32:Half"),
        line("a", "kgen", "4,32:Half", "", "q", "4,32:Int8"),
        line("a", "signal", "", "", "s", ""),
    ]
    found = count_layers(
        parse_layers("\n".join(["Layers:", *lines])), {"mm": "MatMul", "q": "QuantizeLinear"}
    )
    expected = {"kernels": 2, "attentions": 0, "quantizing": 1, "written": 32 * 2 + 4 * 32, "weights": 1024}
    assert found.model_dump() == expected | {"floats": "float16"}
