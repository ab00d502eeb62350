"""torch.compile and torch.export take everything as one graph, and what they make computes the same bits.

Dynamo and autograd are captured here by the backend "aot_eager", which runs torch's own operators;
`test_functions.py` and `test_quantizer.py` go through the code generator.
"""

from __future__ import annotations

import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import made_of, normal, prepared

from onnxfq.errors import ModelError
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import (
    FakeQuantize,
    compute_encodings,
    fake_quantize,
    fake_quantize_lsq,
    fake_quantize_pact,
    fake_quantize_range,
    freeze_batchnorm,
    learn_grids,
    quantizers,
)

# torch's compiler and exporter warn of deprecations in themselves.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def forget():
    """Forget what was compiled before: torch compiles one function for a few cases only."""
    torch.compiler.reset()


FUNCTIONS = {
    "fixed": (lambda x, s: fake_quantize(x, s.detach(), qtype="int8"), [0.1]),
    "scale": (lambda x, s: fake_quantize(x, s, qtype="int4", rounding="half_up"), [0.1]),
    "zero point": (lambda x, s, z: fake_quantize(x, s, z, qtype="uint8"), [0.1, 3.0]),
    "float8": (lambda x, s: fake_quantize(x, s, qtype="float8e5m2", saturate=False), [0.1]),
    "LSQ": (lambda x, s: fake_quantize_lsq(x, s, qtype="int4"), [0.5]),
    "LSQ+": (lambda x, s, b: fake_quantize_lsq(x, s, b, qtype="uint4"), [0.5, -1.0]),
    "range": (lambda x, low, high: fake_quantize_range(x, low, high, qtype="uint8"), [-2.0, 3.0]),
    "PACT": (lambda x, a: fake_quantize_pact(x, a, qtype="uint4"), [2.0]),
}


def results(function, x: torch.Tensor, numbers: list[float]) -> list[torch.Tensor | None]:
    """Return y and the gradients of x and of the learned numbers."""
    leaves = [x.clone().requires_grad_(), *(torch.tensor(n, requires_grad=True) for n in numbers)]
    y = function(*leaves)
    y.backward(torch.ones_like(y))
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def same(found, expected) -> None:
    """Check y and the gradient of x to the bit, and sums over 256 elements to their order."""
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    for a, b in zip(found[2:], expected[2:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


CASES = [(torch.float32, list(FUNCTIONS)), (torch.bfloat16, ["fixed", "range"]), (torch.float16, ["LSQ+"])]


@pytest.mark.parametrize(("dtype", "names"), CASES, ids=str)
def test_functions_compile_whole(dtype, names):
    """The functions are one graph, learned parameters and inputs of 16 bits too."""
    x = (normal(8, 32) * 2).to(dtype)

    def run(inputs, numbers):
        parts = zip(names, inputs, numbers, strict=True)
        return [FUNCTIONS[name][0](one, *given) for name, one, given in parts]

    found = []
    for function in (torch.compile(run, fullgraph=True, backend="aot_eager"), run):
        inputs = [x.clone().requires_grad_() for _ in names]
        numbers = [[torch.tensor(n, requires_grad=True) for n in FUNCTIONS[name][1]] for name in names]
        made = function(inputs, numbers)
        torch.autograd.backward(made, [torch.ones_like(y) for y in made])
        assert {y.dtype for y in made} == {dtype}
        parts = zip(made, inputs, numbers, strict=True)
        found.append([[y.detach(), one.grad, *(n.grad for n in given)] for y, one, given in parts])
    for ours, plain in zip(*found, strict=True):
        same(ours, plain)


@pytest.mark.parametrize(
    ("learned", "blocks"),
    [
        ("nothing", {"axis": 1}),
        ("scale", {"axis": 1, "block_size": 8}),
        ("scale_zero_point", {"axis": 1}),
        ("range", {"axis": 1, "block_size": 8}),
    ],
)
def test_modules_compile_whole(learned, blocks):
    """The module compiles too, whatever it learns and however its scales lie; torch.export takes it."""
    one = FakeQuantize(QuantSpec(qtype="uint4", symmetric=False, **blocks))
    x = normal(8, 32)
    with compute_encodings(one):
        one(x)
    one.learn(learned)
    compiled = torch.compile(one, fullgraph=True, backend="aot_eager")
    same(results(compiled, x, []), results(one, x, []))
    program = torch.export.export(one.eval(), (x,))
    assert torch.equal(program.module()(x), one(x))


def test_networks_compile_and_export_whole():
    """A quantized network trains as one graph, folded BatchNorm and attention in it, and can be exported.

    Its forward computes the plain module's numbers except for the order of sums: one step of 8 bits at most.
    """

    def forward(self, x):
        y = (self.norm(self.conv(x)) + x).reshape(-1, 4, 8)
        return self.head(self.attention(y, y, y, need_weights=False)[0])

    torch.manual_seed(0)
    layers = {"conv": nn.Conv2d(2, 2, 3, padding=1), "norm": nn.BatchNorm2d(2), "head": nn.Linear(8, 3)}
    layers["attention"] = nn.MultiheadAttention(8, 2, batch_first=True)
    model, x = made_of(forward, **layers), normal(3, 2, 4, 4)
    prepared(model, x, "tensorrt-int8")
    learn_grids(model, "scale")
    freeze_batchnorm(model.train())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    torch.testing.assert_close(y, model(x), rtol=0, atol=0.05)
    y.sum().backward()
    trained = [p for n, p in model.named_parameters() if "norm.weight" not in n]
    assert all(p.grad is not None for p in trained)
    exported = torch.export.export(model.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), model(x), rtol=0, atol=0.05)


def test_parted_tensors_compile():
    """Products of parts are quantized under torch.compile as without, whose tracer lacks these methods."""

    def part(self, x):
        a, b = self.layer(x).split(4, -1)
        return a.unflatten(-1, (2, 2)) @ b.unflatten(-1, (2, 2))

    model, x = made_of(part, layer=nn.Linear(8, 8)), normal(3, 8)
    prepared(model, x, "onnxruntime-int8")
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


def test_torch_fx_traces_operators_and_methods():
    """symbolic_trace has each quantizer as a node, and the bits of the module; steps of calls are refused."""

    def forward(self, x):
        q, k = (layer(x).reshape(-1, 3, 2, 4).transpose(1, 2) for layer in (self.first, self.second))
        y = (q @ k.transpose(-1, -2) / 2).softmax(-1).matmul(q).flatten(2).mean(1, keepdim=True)
        x = 1 - self.first(x).relu_() * 2
        x += self.last(y)
        return {"sum": nn.functional.relu(x, inplace=True), "first": x[:, 0]}

    for recipe in ("tensorrt-int8", "qnn-int8"):
        model = made_of(forward, first=nn.Linear(8, 8), second=nn.Linear(8, 8), last=nn.Linear(12, 8))
        prepared(model, normal(2, 3, 8), recipe)
        traced = torch.fx.symbolic_trace(model)
        held = {node.target for node in traced.graph.nodes if node.op == "call_module"}
        assert {name for name in quantizers(model) if "." not in name} <= held
        found, wanted = traced(normal(2, 3, 8)), model(normal(2, 3, 8))
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)

    def attend(self, x):
        return nn.functional.scaled_dot_product_attention(*(self.first(x),) * 3)

    attends = made_of(attend, first=nn.Linear(8, 8))
    prepared(attends, normal(2, 3, 8), "tensorrt-int8")
    with pytest.raises(
        ModelError, match="cannot trace scaled_dot_product_attention.*; trace the float module"
    ):
        torch.fx.symbolic_trace(attends)
