"""Ranges end where the values of a tensor can: at the ends of a Clip, a Relu or a Sigmoid."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import build_used, plain_quantize, weights
from onnx import parser
from onnx.numpy_helper import from_array, to_array

import onnxfq
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.graph.bounds import UNKNOWN
from onnxfq.graph.index import GraphIndex
from onnxfq.runtime.session import Session

ARRAYS = {"k0": weights(4, 4, 3, 3), "k1": weights(4, 4, 1, 1, seed=1), "three": np.float32(3)}
ARRAYS |= {"zero": np.float32(0), "six": np.float32(6), "from": np.int64([0]), "to": np.int64([1])}
LIMITED = {
    "Clip": ("b = Clip (a, zero, six)", {"b": (0, 6)}),
    "hard-swish": ("s = Add (a, three) c = Clip (s, zero, six) b = Mul (a, c)", {"c": (0, 6)}),
    "Relu": ("b = Relu (a)", {"b": (0, np.inf)}),
    "HardSigmoid": ("c = HardSigmoid (a) b = Mul (a, c)", {"c": (0, 1)}),
    "Softmax": ("b = Softmax (a)", {"b": (0, 1)}),
    "moved": (
        "c = Clip (a, zero, six) t = Transpose <perm = [0, 1, 3, 2]> (c) b = Slice (t, from, to)",
        {"c": (0, 6), "t": (0, 6), "b": (0, 6)},
    ),
    "joined": ("c = Clip (a, zero, six) d = Relu (a) b = Sub (c, d)", {"c": (0, 6), "d": (0, np.inf)}),
}  # fmt: skip


def read_range(encoding: Encoding) -> tuple[float, float]:
    """Return the least and the largest number of a grid of uint16."""
    scale, zero = float(encoding.scale), int(encoding.zero_point)
    return -zero * scale, (65535 - zero) * scale


def list_scales(encodings: Encodings) -> list[float]:
    """Return the different scales of uint16."""
    return sorted({float(one.scale) for one in encodings.encodings if one.spec.qtype.name == "uint16"})


@pytest.mark.sample
@pytest.mark.parametrize("name", LIMITED)
def test_no_range_passes_what_an_operator_returns(name: str) -> None:
    """In 16 bits ranges are four times as wide as the data, up to the ends; QNN's rules find nothing then.

    ONNX Runtime computes from inputs a thousand times as large nothing beyond these ends.
    """
    text, ends = LIMITED[name]
    nodes = f"a = Conv (x, k0) {text} y = Conv (b, k1)"
    proto = build_used(f"g (float[1,4,9,9] x) => (float[1,4,7,7] y) {{ {nodes} }}", ARRAYS)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 4, 9, 9)).astype(np.float32)} for _ in range(8)]
    made = plain_quantize(onnx.shape_inference.infer_shapes(proto), feeds, recipe="qnn-a16w8")
    assert not onnxfq.check(made.qdq, "qnn").findings
    shown = onnx.ModelProto.FromString(proto.SerializeToString())
    shown.graph.output.extend(onnx.ValueInfoProto(name=tensor) for tensor in ends)
    (_, *wide) = Session(shown, 1).run({"x": 1000 * feeds[0]["x"]})
    seen = Session(shown, 1).run(feeds[0])[1:]
    bounds = onnxfq.load(proto).index.bounds
    for (tensor, limits), far, near in zip(ends.items(), wide, seen, strict=True):
        assert bounds[tensor] == limits
        assert limits[0] <= far.min() and far.max() <= limits[1]
        low, high = read_range(made.encodings[tensor])
        assert low >= limits[0] and high <= limits[1] * (1 + 1e-6) and high >= near.max()


def test_constants_have_bounds_and_inputs_have_none() -> None:
    """A limit that is computed, and an operator of unknown bounds, leave them open."""
    nodes = "m = Max (z, three) c = Clip (x, , m) e = Exp (c) y = Add (e, six)"
    text = f"g (float[2,3] x, float z) => (float[2,3] y) {{ {nodes} }}"
    found = onnxfq.load(build_used(text, ARRAYS)).index.bounds
    assert (found["m"], found["c"], found["y"]) == ((3.0, np.inf), UNKNOWN, (6.0, np.inf))


def test_numbers_from_outside_have_no_bounds() -> None:
    """ONNX Runtime's Resize of a Clip gives the number for places beyond the tensor, which no end holds."""
    given = 'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"'
    nodes = f"c = Clip (x, zero, six) y = Resize <{given}, extrapolation_value = 100.0> (c, roi, , sizes)"
    arrays = ARRAYS | {"roi": np.float32([0, 0, 0, 0, 1, 1, 2, 2]), "sizes": np.int64([1, 1, 5, 5])}
    proto = build_used(f"g (float[1,1,4,4] x) => (float[1,1,5,5] y) {{ {nodes} }}", arrays)
    assert Session(proto, 1).run({"x": np.zeros((1, 1, 4, 4), np.float32)})[0].max() == 100.0
    assert onnxfq.load(proto).index.bounds["y"] == UNKNOWN


def test_modules_of_torch_get_the_same_ends() -> None:
    """Both roads have the ranges of one histogram within the same ends."""
    torch, roads = pytest.importorskip("torch"), pytest.importorskip("onnxfq.torch")
    nn, functional = torch.nn, torch.nn.functional

    class Limited(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.c(functional.relu6(self.b(functional.hardtanh(self.a(x)))).reshape(-1, 8).sigmoid())

    torch.manual_seed(0)
    module, x = Limited().eval(), torch.randn(16, 8)
    plain = onnxfq.load(roads.export_torch(module, (x,)))
    plan = onnxfq.make_plan(plain, onnxfq.load_recipe("qnn-a16w8"))
    (given,) = plain.proto.graph.input
    seen = onnxfq.collect_statistics(plain, plan, [{given.name: x.numpy()}])
    wanted = list_scales(onnxfq.calibrate(plain, plan, seen))
    roads.quantize_module(module, "qnn-a16w8", example_inputs=x)
    with torch.no_grad(), roads.compute_encodings(module):
        module(x)
    found = list_scales(roads.get_encodings(module))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert any(np.isclose(one * 65535, 2.0) for one in found)  # the ends of hardtanh


def test_a_large_constant_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of words may have gigabytes: its ends are not sought, and what reads it has no bounds."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (int64[n] i) => (float[n, 8] y)
        <float lo = {-1}, float hi = {2}> { e = Gather (table, i) y = Clip (e, lo, hi) }"""
    )
    proto.graph.initializer.append(from_array(np.ones((1 << 14, 8), np.float32), "table"))
    read: list[str] = []

    def note(tensor: onnx.TensorProto) -> np.ndarray:
        read.append(tensor.name)
        return to_array(tensor)

    monkeypatch.setattr("onnxfq.graph.index.tensor_array", note)
    bounds = GraphIndex.of_model(proto).bounds
    assert bounds["y"] == (-1.0, 2.0) and bounds["e"] == UNKNOWN and sorted(read) == ["hi", "lo"]
