"""Functions that multiply in a user's forward: quantized as the operators that they become, or reported."""

from __future__ import annotations

import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import exported_roles, made_of, prepared, recipe, roles
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import onnxfq
from onnxfq.targets.target import target_by_name
from onnxfq.tools.check import check
from onnxfq.torch import compute_encodings, export_torch, quantize_module, quantizers


class Functional(nn.Module):
    """Attention, convolution and products of all kinds, written as functions of parameters."""

    def __init__(self) -> None:
        """Give every function its own weight."""
        super().__init__()
        for i in range(4):
            self.register_parameter(f"w{i}", nn.Parameter(torch.randn(64, 64) / 8))
        self.b, self.k = nn.Parameter(torch.randn(64)), nn.Parameter(torch.randn(4, 4, 3))
        self.qkv, self.up = nn.Linear(64, 192), nn.ConvTranspose1d(4, 4, 3, padding=1)

    def forward(self, x):
        """x: [N, 4, 64]."""
        heads = self.qkv(x).reshape(x.shape[0], -1, 3, 2, 32).permute(2, 0, 3, 1, 4)
        q, k, v = heads[0], heads[1], heads[2]
        x = F.scaled_dot_product_attention(query=q, key=k, value=v).transpose(1, 2).flatten(2)
        x = F.conv1d(input=self.up(x), weight=self.k, padding=1)
        x = torch.matmul(x, other=self.w0)
        x = F.linear(x, self.w1, self.b)
        x = torch.einsum("bij,jk->bik", x, self.w2)
        return x + torch.addmm(self.b, x[:, 0], self.w3.t())[:, None]


@pytest.fixture(scope="module")
def exported():
    """Return the export of a float module, which every recipe is held against."""
    torch.manual_seed(0)
    return onnxfq.load(export_torch(Functional().eval(), torch.rand(2, 4, 64)))


@pytest.mark.parametrize("asked", ["tensorrt-int8", "tensorrt-int8-weights"])
def test_placement_is_that_of_the_onnx_side(asked, exported):
    """A recipe puts quantizers where make_plan does on the export; weights have a scale for each channel."""
    model, x = Functional().eval(), torch.rand(2, 4, 64)
    prepared(model, x, asked)
    recipe = onnxfq.load_recipe(asked)
    given = target_by_name(recipe.target).prepare(exported)
    assert exported_roles(model, x) == roles(onnxfq.make_plan(given, recipe), given)


HIDDEN = torch.ones(5, 6, dtype=torch.bool).tril()
HIDDEN[2] = False  # a row that sees nothing


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"scale": 0.3, "is_causal": True},
        {"attn_mask": HIDDEN, "dropout_p": 0.0},
        {"attn_mask": torch.randn(2, 1, 5, 6), "enable_gqa": True},
    ],
    ids=lambda keywords: "-".join(keywords) or "plain",
)
def test_attention_taken_apart_is_torchs(keywords):
    """With quantizers that do not round, its output equals torch's own way of writing it out.

    1e-6: torch may leave a factor of 1 out, and sums in another order.
    """
    heads = 2 if keywords.get("enable_gqa") else 4
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, heads, 6, 8), torch.randn(2, heads, 6, 8)
    model = made_of(lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, **keywords))
    with sdpa_kernel(SDPBackend.MATH):
        expected = model(q, k, v)
    quantize_module(model, recipe(), example_inputs=(q, k, v))
    assert len(quantizers(model)) == 4
    for quantizer in quantizers(model).values():
        quantizer.disable_fake_quant(), quantizer.disable_observer()
    torch.testing.assert_close(model(q, k, v), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.sample
def test_attention_left_in_float_is_called_as_before():
    """If an override keeps both products in float, the rewritten forward has torch's fused call."""
    model = Functional().eval()
    x = torch.rand(2, 4, 64)
    expected = model(x)
    kept = {"nodes": ["scaled_dot_product_attention_*"], "keep_float": True}
    plan = quantize_module(model, recipe(overrides=[kept]), example_inputs=x)
    assert [s.name for s in plan.skipped] == [
        "scaled_dot_product_attention_scores",
        "scaled_dot_product_attention_context",
    ]
    for quantizer in quantizers(model).values():
        quantizer.disable_fake_quant(), quantizer.disable_observer()
    assert torch.equal(model(x), expected)


def test_training_moves_a_functional_weight_and_the_export_follows():
    """The exported scale belongs to the weight after the last step, though forward has not run since."""
    model, x = Functional().eval(), torch.rand(2, 4, 64)
    prepared(model, x)
    model.train()(x).square().mean().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert model.w1.grad.abs().sum() > 0
    export_torch(model, x)
    scale = quantizers(model)["linear_weight_quantizer"].scale
    weight = model.w1.detach().double()
    assert torch.equal(scale, torch.maximum(weight.amax(1) / 127, weight.amin(1) / -128).float())


def test_every_function_that_multiplies_is_quantized():
    """Products are quantized whatever function they come from; one that cannot be is named."""

    def multiply(self, x):
        x = self.layer(x)
        x = F.linear(x, self.w * 2) + torch.tensordot(x, self.w, dims=1) + torch.inner(x, self.w)
        return x + torch.linalg.multi_dot([x, x.t(), x]) + F.bilinear(x, x, self.w[None])

    model = made_of(multiply, layer=nn.Linear(4, 4), w=nn.Parameter(torch.randn(4, 4)))
    x = torch.rand(4, 4)
    plan = prepared(model, x, "onnxruntime-int8")
    rows = {str(row) for row in plan.coverage()}
    assert {"Linear 1/1"} <= rows and sum(row.total for row in plan.coverage()) >= 6
    left = {one.name: one.why for one in plan.skipped}
    assert set(left) == {"bilinear", "linalg_multi_dot"}  # of several products, with tensors between
    assert all("inside of one call of torch" in why for why in left.values())


def test_one_weight_of_two_readers():
    """A tied weight that a layer and a function read is quantized for each; the export is standard Q/DQ."""

    def tie(self, x):
        return F.linear(self.layer(self.embedding(x)), self.embedding.weight)

    model = made_of(tie, embedding=nn.Embedding(16, 8), layer=nn.Linear(8, 8))
    x = torch.randint(16, (3, 5))
    prepared(model, x)
    assert {"embedding.weight_quantizer", "linear_weight_quantizer"} <= set(quantizers(model))
    assert {n.domain for n in export_torch(model, x).graph.node} == {""}


@pytest.mark.parametrize("asked", ["tensorrt-int4", "tensorrt-int8-weights"])
def test_targets_reasons_hold_for_modules_too(asked):
    """Operations that TensorRT would run in float stay in float, as on the ONNX side, with its reason."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(1024, 256), nn.Linear(256, 100)).eval()
    float_model = onnxfq.load(export_torch(model, torch.rand(2, 3, 18, 18)))
    on_onnx = onnxfq.make_plan(float_model, onnxfq.load_recipe(asked))
    plan = quantize_module(model, asked, example_inputs=torch.rand(2, 3, 18, 18))
    told = {skipped.name: skipped.why for skipped in plan.skipped}
    assert told == {"0": "TensorRT multiplies in float where only the weight of a Conv is quantized"}
    assert told["0"] in [skipped.why for skipped in on_onnx.skipped]
    assert len(plan.placements) == len(on_onnx.placements) == 2


def test_transposed_convolutions_have_one_scale_for_tensorrt():
    """Its releases disagree on the channel axis of their weights, on the torch side too."""
    whole = onnxfq.load_recipe("tensorrt-int8").model_copy(update={"conv_transpose": "quantize"})
    plan = quantize_module(nn.Sequential(nn.ConvTranspose2d(4, 8, 3)), whole)
    (weight,) = (p.spec for p in plan.placements if p.role == "weight")
    assert weight.granularity.axis is None


def test_what_depends_on_shapes_is_told_by_check():
    """A module has no batch: the rules for a fixed batch of one apply to the export, by `check`."""
    model = nn.Sequential(nn.Linear(2048, 1024)).eval()
    prepared(model, torch.rand(1, 2048), "tensorrt-int8-weights")
    fixed = export_torch(model, torch.rand(1, 2048), dynamic_batch=False)
    assert "one-row" in {finding.rule for finding in check(fixed).findings}
    free = export_torch(model, torch.rand(2, 2048))
    assert "one-row" not in {finding.rule for finding in check(free).findings}


def test_overrides_name_operators():
    """An override by ONNX's operator reaches the functions that become it."""
    model = Functional()
    asked = recipe(overrides=[{"op_types": ["Einsum"], "keep_float": True}])
    plan = quantize_module(model, asked, example_inputs=torch.rand(2, 4, 64))
    assert [s.name for s in plan.skipped] == ["einsum"]
    with torch.no_grad(), compute_encodings(model):
        model(torch.rand(2, 4, 64))
