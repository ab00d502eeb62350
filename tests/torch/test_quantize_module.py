"""quantize_module: placement of the ONNX side, layers that compute as planned, nothing left afterwards."""

from __future__ import annotations

import copy
import functools
from collections import Counter

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper
from quantized_modules import exported_roles, made_of, prepared, recipe, roles, run

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from torch.nn import functional as F
from torch_networks import small_network

import onnxfq
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import ModelError, RecipeError
from onnxfq.targets.target import prepare_model
from onnxfq.torch import (
    calls,
    compute_encodings,
    export_torch,
    fake_quantize,
    freeze_batchnorm,
    learn_grids,
    plan_of,
    quantize_module,
    quantizers,
    remove_fake_quantize,
)


def digits(count: int = 3) -> torch.Tensor:
    """Return random pictures of 28 x 28."""
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(count))


def paired(model: nn.Module, x: torch.Tensor, asked: str) -> Counter[str]:
    """Quantize a module, and return how often its export has each operator.

    It has as many pairs as the ONNX road plans for the float export.
    """
    expected = onnxfq.make_plan(onnxfq.load(export_torch(model, (x,))), onnxfq.load_recipe(asked))
    prepared(model, x, asked)
    kinds = Counter(node.op_type for node in export_torch(model, (x,)).graph.node)
    assert kinds["QuantizeLinear"] == len(expected.activations)
    return kinds


@pytest.mark.parametrize(
    ("name", "asked"), [("depthwise_cnn", "tensorrt-int8"), ("transformer", "onnxruntime-int8")]
)
def test_placement_is_that_of_the_onnx_side(name, asked):
    """The same recipe puts quantizers on the multiplied inputs that make_plan does on the export.

    Except for equalized inputs, which modules do not have.
    """
    model, x = small_network(name), digits()
    plain = onnxfq.load(export_torch(model, (x,)))
    expected = onnxfq.make_plan(plain, onnxfq.load_recipe(asked).override(activations={"equalize": "none"}))
    prepared(model, x, asked)
    wanted = roles(expected, prepare_model(plain, expected.target))
    wanted = {at: spec for at, spec in wanted.items() if not spec.startswith("int32")}  # biases stay float
    assert exported_roles(model, x) == wanted


@pytest.mark.parametrize("name", ["residual_cnn", "transformer"])
def test_removal_leaves_nothing(name):
    """The same parameters under the same names all along; afterwards the same classes and bits."""
    model, x = small_network(name), digits()
    before, types = model(x), [type(part) for part in model.modules()]
    parameters = dict(model.named_parameters())
    prepared(model, x, "tensorrt-int8")
    assert all(dict(model.named_parameters())[n] is p for n, p in parameters.items())
    assert not torch.equal(model(x), before)
    remove_fake_quantize(model)
    assert torch.equal(model(x), before)
    assert [type(part) for part in model.modules()] == types
    assert {n: id(p) for n, p in model.named_parameters()} == {n: id(p) for n, p in parameters.items()}
    quantize_module(model)  # and again


def test_copies_are_independent():
    """copy.deepcopy of a quantized module is one, with its own quantizers and folded BatchNorm."""
    model, x = small_network("residual_cnn"), digits()
    prepared(model, x)
    other = copy.deepcopy(model)
    assert torch.equal(other(x), model(x))
    for quantizer in quantizers(other).values():
        quantizer.disable_fake_quant()
    other.stem[1].weight.data.mul_(3)
    assert not torch.equal(other(x), model(x))
    assert other.stem[0].folded_norm is other.stem[1]


LAYERS = {
    "Linear": (nn.Linear(6, 4), (5, 6), 0),
    "Conv1d": (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 9), 0),
    "Conv2d": (nn.Conv2d(3, 5, 3, stride=2, padding=1), (2, 3, 8, 8), 0),
    "Conv3d": (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 0),
    "padding mode": (nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular"), (2, 3, 8, 8), 0),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 6, 3), (2, 4, 9), 1),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5, 5), 1),
    "ConvTranspose3d": (nn.ConvTranspose3d(2, 3, 2), (1, 2, 3, 3, 3), 1),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_round_input_and_weight(name):
    """A layer computes what it computes on its rounded input and its weight rounded per output channel."""
    layer, shape, axis = LAYERS[name]
    layer, x = copy.deepcopy(layer), torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(layer)
    prepared(model, x, recipe("int4", "int4"))
    plain = copy.deepcopy(LAYERS[name][0])
    weight = plain.weight.detach()
    others = [d for d in range(weight.ndim) if d != axis]
    scale = torch.maximum(weight.double().amax(others) / 7, weight.double().amin(others) / -8)
    plain.weight.data = fake_quantize(weight, layer.weight_quantizer.scale, qtype="int4", axis=axis)
    assert torch.equal(layer.weight_quantizer.scale, scale.float())
    step = torch.maximum(x.double().max() / 7, x.double().min() / -8)
    expected = plain(fake_quantize(x, step.float(), qtype="int4"))
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    assert layer._parameters["weight"].grad is not None


@pytest.mark.parametrize(("kind", "layers"), [(nn.LSTM, 2), (nn.GRU, 1), (nn.RNN, 1)])
def test_recurrent_weights(kind, layers):
    """LSTM, GRU and RNN multiply rounded weights; their inputs and biases are float."""
    layer = kind(4, 5, num_layers=layers, bidirectional=True)
    model, x, plain = nn.ModuleDict({"layer": layer}), torch.randn(2, 2, 4), copy.deepcopy(layer)
    model.forward = lambda x: layer(x)[0]
    prepared(model, x, recipe("int8", "int4", granularity="blocked", block_size=2))
    for name, parameter in plain.named_parameters():
        if name.startswith("weight"):
            scale = quantizers(model)[f"layer.{name}_quantizer"].scale
            assert scale.shape == (parameter.shape[0], -(-parameter.shape[1] // 2))
            parameter.data = fake_quantize(parameter.data, scale, qtype="int4", axis=1, block_size=2)
    assert torch.equal(model(x), plain(x)[0])
    model(x).sum().backward()
    assert layer._parameters[f"weight_hh_l{layers - 1}_reverse"].grad is not None
    remove_fake_quantize(model)
    layer.to(torch.float64)
    assert layer(x.double())[0].dtype == torch.float64


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's exporter warns of itself
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_what_recurrent_layers_read_and_return_has_pairs(kind):
    """QNN's pairs are the ONNX road's beside a layer in float, the first state included."""
    layer = kind(6, 5, batch_first=True)
    parts = {"first": nn.Linear(4, 6), "layer": layer, "last": nn.Linear(5, 3)}
    model = made_of(lambda self, x: self.last(self.layer(self.first(x))[0]), **parts)
    kinds = paired(model, torch.randn(2, 3, 4), "qnn-int8")
    assert kinds[kind.__name__] == 1 and "layer.input_quantizer" in quantizers(model)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"kdim": 6, "vdim": 10, "add_bias_kv": True},
        {"bias": False, "dropout": 0.0, "add_zero_attn": True},
    ],
    ids=str,
)
def test_attention_taken_apart_is_attention(options):
    """With its quantizers off a MultiheadAttention gives torch's outputs and weights, masks and all.

    Sums of up to 8 terms in float32, in another order: within 1e-5 on values near 1.
    """
    layer = nn.MultiheadAttention(8, 2, **options).eval()
    key, value = torch.randn(4, 4, options.get("kdim", 8)), torch.randn(4, 4, options.get("vdim", 8))
    query = torch.randn(4, 4, 8)
    padding = torch.tensor([[False, False, False, True]] * 4)
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    cases = [
        {},
        {"key_padding_mask": padding},
        {"attn_mask": causal, "average_attn_weights": False},
        {"attn_mask": causal.expand(8, 4, 4), "key_padding_mask": padding, "need_weights": False},
    ]
    same = "kdim" not in options
    expected = [layer(query, query if same else key, query if same else value, **case) for case in cases]
    given = (query, query, query) if same else (query, key, value)
    plan = quantize_module(layer, recipe(), example_inputs=given)
    names = {"query", "scores_input", "context_input", "out_proj_weight"}
    assert {p.tensor for p in plan.placements} >= names
    for quantizer in quantizers(layer).values():
        quantizer.disable_fake_quant(), quantizer.disable_observer()
    for case, (y, weights) in zip(cases, expected, strict=True):
        found, found_weights = layer(query, query if same else key, query if same else value, **case)
        torch.testing.assert_close(found, y, rtol=0, atol=1e-5)
        assert (weights is None) == (found_weights is None)
        if weights is not None:
            torch.testing.assert_close(found_weights, weights, rtol=0, atol=1e-5)


def test_attention_is_quantized():
    """Its products read rounded tensors: the projected queries lie on the quantizer's grid."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    plan = prepared(model, x, recipe("int4", "int4"))
    # The keys and values of self-attention are the queries: one quantizer for all.
    assert "MultiheadAttention 1/1" in [str(row) for row in plan.coverage()]
    attention = model.self_attn
    assert "key_quantizer" not in attention._modules and attention.query_quantizer.is_initialized
    seen = []
    attention.scores_other_quantizer.register_forward_hook(lambda module, args, y: seen.append(y))
    with torch.no_grad():
        model(x)
    steps = seen[0] / attention.scores_other_quantizer.scale
    assert torch.equal(steps.round(), steps) and steps.abs().max() == 7
    remove_fake_quantize(model)
    assert model.activation_relu_or_gelu == 1


def sum_and_products(self, x):
    """Return [N, 2, 4, 3]: a product, a sum and a functional layer; the skip branch is the input."""
    y = F.dropout(self.conv(x) + x, 0.5, self.training)
    return F.linear(torch.matmul(y, y.transpose(2, 3)), self.weight)


def make_parts():
    """Return a module with them."""
    return made_of(sum_and_products, conv=nn.Conv2d(2, 2, 1), weight=nn.Parameter(torch.ones(3, 4)))


def test_operations_of_a_forward():
    """Products, functional layers and residual sums are rounded; what is taken out comes back."""
    model, x = make_parts(), torch.randn(2, 2, 4, 4)
    kind, plan = type(model), prepared(model, x, recipe(target="tensorrt"))
    assert {p.tensor for p in plan.placements} == {
        "conv.input", "conv.weight", "matmul_input", "matmul_other", "linear_input", "linear_weight",
    }  # fmt: skip
    assert not plan.skipped
    q = quantizers(model)
    y = model.conv(x) + q["conv.input_quantizer"](x)  # one tensor, one quantizer
    y = q["matmul_input_quantizer"](y) @ q["matmul_other_quantizer"](y.transpose(2, 3))
    y = q["linear_input_quantizer"](y)
    assert torch.equal(model(x), F.linear(y, q["linear_weight_quantizer"](model.weight)))
    assert (model.train()(x) != model(x)).any()  # dropout is random again
    remove_fake_quantize(model)
    assert type(model) is kind


def test_what_cannot_be_exported_is_told():
    """A module that torch's exporter refuses has quantizers in its layers, and the plan says so.

    No exporter follows a forward that asks for the values of a tensor.
    """
    model = nn.Sequential(nn.Linear(4, 4), made_of(lambda self, x: x @ x if x.sum() > 0 else x))
    plan = quantize_module(model, recipe(), example_inputs=torch.ones(4, 4))
    (skipped,) = plan.skipped
    assert (skipped.name, skipped.op_type) == ("Sequential", "forward")
    assert skipped.why.startswith("its operations stay in float, only its layers are quantized: the dynamo")
    assert {p.tensor for p in plan.placements} == {"0.input", "0.weight"}
    remove_fake_quantize(model)
    with pytest.raises(ModelError, match="the dynamo exporter refuses it"):
        quantize_module(model, recipe(), example_inputs=torch.ones(4, 4), strict=True)
    assert not quantizers(model)


def test_calls_that_vary_are_refused():
    """Calls that were not there when the plan was made have no place, and the error names them."""
    mode = made_of(lambda self, x: x @ x @ x if self.training else x @ x)
    model, x = nn.Sequential(nn.Linear(4, 4), mode).eval(), torch.ones(4, 4)
    prepared(model, x)
    model(x)
    with pytest.raises(ModelError, match="calls matmul 2 times, and 1 times where it was planned"):
        model.train()(x)


def test_calls_that_an_export_alone_has_are_told():
    """A product that another number of calls hides from the plan stays in float, and is named."""
    asking = made_of(lambda self, x: x @ x if torch.compiler.is_exporting() else x @ x @ x)
    model, x = nn.Sequential(nn.Linear(4, 4), asking).eval(), torch.ones(4, 4)
    plan = prepared(model, x)
    assert "Linear 1/1" in [str(row) for row in plan.coverage()]
    (skipped,) = plan.skipped
    assert skipped.name == "1.matmul"
    assert "calls matmul 1 times in an export and 2 times otherwise" in skipped.why
    model(x)


def test_calls_around_those_of_an_export_alone_are_quantized():
    """The calls before all differences and behind them are the same in a run."""

    def repeating(self, x):
        y = x @ x
        if torch.compiler.is_exporting():
            y = torch.relu(y @ y)
        return torch.softmax(y, -1) @ x

    model, x = made_of(repeating), torch.randn(4, 4)
    plan = prepared(model, x)
    (skipped,) = plan.skipped
    assert skipped.name == "matmul_1" and "3 times in an export and 2 times otherwise" in skipped.why
    assert [one.tensor for one in plan.activations] == ["matmul_input", "matmul_2_input"]
    first, last = quantizers(model).values()
    assert torch.equal(model(x), last(torch.softmax(first(x) @ first(x), -1)) @ first(x))
    pairs = export_torch(model, (x,), dynamic_batch=False).graph.node
    assert sum(node.op_type == "QuantizeLinear" for node in pairs) == 2


def test_both_of_two_equal_sums_are_quantized():
    """The exporter computes one of them; each has the quantizers in the module, and the export is joined.

    Attentions with positions compute such sums for queries and keys.
    """

    def attend(self, x):
        x = self.first(x)
        return self.query(x + self.positions) @ self.key(x + self.positions).transpose(1, 2)

    layers = {name: nn.Linear(4, 4) for name in ("first", "query", "key")}
    model = made_of(attend, **layers, positions=nn.Parameter(torch.randn(3, 4)))
    assert paired(model, torch.randn(2, 3, 4), "qnn-int8")["Add"] == 4


def test_outputs_by_name_are_quantized():
    """QNN's results have quantizers in dictionaries too, as many as in the plan of the exported model."""

    def named(self, x):  # as in transformers
        return {"first": self.first(x), "rest": [self.rest(x).relu()]}

    model, x = made_of(named, first=nn.Linear(4, 4), rest=nn.Linear(4, 4)), torch.randn(2, 4)
    assert paired(model, x, "qnn-int8")["QuantizeLinear"] == 3
    assert model(x).keys() == {"first", "rest"} and type(model(x)["rest"]) is list


def test_one_tensor_as_two_outputs_is_quantized():
    """An export names it twice, and what else reads it has its quantizer."""

    def forward(self, x):
        y = self.first(x).relu()
        return y, self.rest(y), y

    model, x = made_of(forward, first=nn.Linear(4, 4), rest=nn.Linear(4, 4)), torch.randn(2, 4)
    assert not prepared(model, x, "qnn-int8").skipped
    first, _, again = model(x)
    steps = first / quantizers(model)["rest.input_quantizer"].scale
    assert torch.equal(first, again) and torch.allclose(steps, steps.round(), atol=1e-3)


@pytest.mark.parametrize("weights", [True, False])
def test_each_step_of_an_attention_has_its_own_scale(weights):
    """The export has the scales of the ONNX road: torch attends otherwise where nobody wants the weights.

    A call that wants them, and was planned without, is refused; the other way round they are left out.
    """

    def attend(self, x):
        return self.attention(x, x, x, need_weights=weights)[0]

    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    model, x = made_of(attend, attention=attention), torch.randn(4, 3, 8)
    plain = onnxfq.load(export_torch(model, (x,)))
    plan = onnxfq.make_plan(plain, onnxfq.load_recipe("qnn-int8"))
    seen = onnxfq.collect_statistics(plain, plan, [{"x": x.numpy()}])
    road = onnxfq.insert_qdq(plain, plan, onnxfq.calibrate(plain, plan, seen))
    prepared(model, x, "qnn-int8")
    scales = [
        sorted(
            float(proto_scale(proto, node)) for node in proto.graph.node if node.op_type == "QuantizeLinear"
        )
        for proto in (road, export_torch(model, (x,)))
    ]
    # The ranges of sums that another order rounds, and of weights that are joined before or behind. Without
    # weights the ONNX road counts keys once more than queries in the one range of all projections.
    np.testing.assert_allclose(scales[0], scales[1], rtol=1e-5 if weights else 1e-3)
    if weights:
        expected = attention(x, x, x)[0]
        assert torch.equal(attention(x, x, x, need_weights=False)[0], expected)
    else:
        with pytest.raises(ModelError, match="planned without its weights"):
            attention(x, x, x)


def proto_scale(proto, node) -> np.ndarray:
    """Return the scale of a quantizer of a model."""
    return next(numpy_helper.to_array(one) for one in proto.graph.initializer if one.name == node.input[1])


def test_qnn_runs_every_operator_of_an_export():
    """Numbers, buffers and biases of norms have pairs too, though equal ones are one constant there.

    Tables of words have them too. The check of QNN misses none, and the module computes what its file does.
    """

    def forward(self, x):
        x = self.encoder(self.norm(x) * 0.5 + self.places + self.table(torch.arange(3)))
        return self.other(x - 1.5).relu()

    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = made_of(forward, encoder=encoder, norm=nn.LayerNorm(8), other=nn.LayerNorm(8))
    model.table = nn.Embedding(5, 8)
    model.register_buffer("places", torch.randn(3, 8))
    x = torch.randn(2, 3, 8)
    prepared(model, x, "qnn-int8")
    exported = export_torch(model, (x,), dynamic_batch=False)
    assert not [found for found in onnxfq.check(exported, "qnn").findings if found.rule == "node-unit"]
    # A sum in another order, or an int32 bias, may move a number by a step of 256.
    expected = model(x).detach().numpy()
    assert np.abs(run(exported, x) - expected).max() <= 2 / 255 * np.ptp(expected)


@pytest.mark.parametrize("asked", ["tensorrt-int8", "qnn-int8"])
def test_parameters_of_equal_numbers_have_quantizers_of_their_own(asked):
    """An export joins zeros of two layers, and ones of two norms; they go apart in training. One is tied.

    A layer that is read twice learns its scale too.
    """

    def forward(self, x):
        x = self.norm(self.first(x) + x) * self.factor
        return self.again(self.tied(self.second(x) + x))

    torch.manual_seed(0)
    norms = {"norm": nn.LayerNorm(8), "again": nn.LayerNorm(8), "factor": nn.Parameter(torch.ones(8))}
    layers = {name: nn.Linear(8, 8) for name in ("first", "second", "tied")}
    layers["tied"].weight = layers["first"].weight
    model, x = made_of(forward, **layers, **norms), torch.randn(4, 8)
    for name in ("first", "second"):
        nn.init.zeros_(layers[name].weight)
    prepared(model, x, asked)
    own = ["first.weight", "second.weight", *["norm.weight", "again.weight"] * (asked == "qnn-int8")]
    held = [model.get_submodule(f"{name}_quantizer") for name in own]
    assert len({id(quantizer) for quantizer in held}) == len(own)
    assert layers["tied"].weight_quantizer is layers["first"].weight_quantizer
    nn.init.normal_(layers["first"].weight)
    learn_grids(model, "scale")
    optimizer = torch.optim.AdamW(model.train().parameters(), 1e-2)
    for _ in range(2):
        model(x).square().sum().backward()
        optimizer.step()
    exported, expected = export_torch(model.eval(), (x,)), model(x).detach().numpy()
    assert np.abs(run(exported, x) - expected).max() <= 2 / 255 * np.ptp(expected)


def test_constants_are_quantized_as_a_whole():
    """A quantizer stands behind what the exporter folds: inside of it, it would stop the folding."""

    def normed(self, x):  # as detectors freeze norms
        weight, bias, mean, variance = (buffer.reshape(1, -1, 1, 1) for buffer in self.buffers(recurse=False))
        scale = weight * (variance + 1e-5).rsqrt()
        return self.conv(x) * scale + (bias - mean * scale)

    model = made_of(normed, conv=nn.Conv2d(2, 4, 3))
    for name in ("weight", "bias", "mean", "variance"):
        model.register_buffer(name, torch.rand(4) + 0.5)
    kinds = paired(model, torch.randn(2, 2, 6, 6), "onnxruntime-int8")
    assert not {"Reciprocal", "Sqrt", "Sub"} & set(kinds)


def test_tensors_that_an_export_alone_moves_are_quantized():
    """They have the scale of the tensor that attention reads otherwise, and as many pairs as in the plan."""

    def grouped(self, x):  # keys and values have fewer heads, which it repeats itself only in an export
        parts = (layer(x) for layer in (self.queries, self.keys, self.values))
        q, k, v = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in parts)
        v = v + k
        is_exported = torch.compiler.is_exporting()
        if is_exported:
            k = k.index_select(1, torch.tensor([0, 0, 1, 1]))
            v = v[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=not is_exported)
        return y.transpose(1, 2).flatten(2)

    sizes, x = {"queries": 8, "keys": 4, "values": 4}, torch.randn(2, 3, 8)
    model = made_of(grouped, **{name: nn.Linear(8, size) for name, size in sizes.items()})
    kinds = paired(model, x, "qnn-int8")
    assert not plan_of(model).skipped and kinds["Gather"] == kinds["Expand"] == 1
    wanted, exported = model(x).detach().numpy(), export_torch(model, (x,)).SerializeToString()
    (found,) = onnxruntime.InferenceSession(exported).run(None, {"x": x.numpy()})
    # Sums in another order may round to the next of 256 numbers, in each of five steps.
    assert np.abs(found - wanted).max() <= 5 / 255 * np.ptp(wanted)


def test_calls_on_integers_have_no_place():
    """Sums of indices that an export alone has, as for masks, hide no sum of floats from the plan."""

    def indexing(self, x):
        first = torch.arange(4) + 1 if torch.compiler.is_exporting() else torch.arange(1, 5)
        return (x + x) + x[:, first % 4]

    model, x = nn.Sequential(nn.Linear(4, 4), made_of(indexing)).eval(), torch.ones(4, 4)
    plan = prepared(model, x, "qnn-int8")
    assert "Add 2/2" in [str(row) for row in plan.coverage()]
    model(x)


@pytest.mark.sample
def test_the_first_batch_completes_the_plan():
    """Until then it names what waits; afterwards it equals the plan by example inputs."""
    x, plans, names = torch.randn(2, 2, 4, 4), [], []
    for inputs in (None, (x,), {"x": x}):
        model = make_parts()
        plan = quantize_module(model, recipe(target="tensorrt"), example_inputs=inputs)
        if inputs is None:
            assert "planned with the first batch" in plan.skipped[0].why
            assert {p.tensor for p in plan.placements} == {"conv.input", "conv.weight"}
            assert plan_of(model) == plan
        held = model.conv.input_quantizer
        with torch.no_grad(), compute_encodings(model):
            model(x)
        assert model.conv.input_quantizer is held and held.is_initialized
        plans.append(plan_of(model))
        names.append(list(quantizers(model)))
    assert plans[0] == plans[1] == plans[2] and names[0] == names[1] == names[2]
    with pytest.raises(ModelError, match="call quantize_module with it first"):
        plan_of(make_parts())


def test_a_layer_that_runs_twice_has_one_quantizer():
    """Its inputs are two tensors on one grid."""
    model = made_of(lambda self, x: self.layer(torch.relu(self.layer(x))), layer=nn.Linear(4, 4))
    x = torch.randn(3, 4)
    plan = prepared(model, x)
    assert [p.tensor for p in plan.placements] == ["layer.input", "layer.weight"]
    seen = model.layer.input_quantizer
    reached = torch.maximum(x.abs().max(), torch.relu(nn.functional.linear(x, model.layer.weight)).max())
    assert seen.scale > 0 and seen.scale * 127 >= x.abs().max() * 0.99 and reached > 0


@pytest.mark.parametrize("mode", [True, False])
def test_folded_batchnorm_computes_the_same(mode):
    """Without rounding, folding changes nothing but the order of rounding, in training and in evaluation.

    The statistics move as before. 1e-5: a few roundings of 2^-24 on values near 5; rsqrt and division for
    one.
    """
    plain = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU()).train(mode)
    plain[1].running_var.uniform_(0.5, 2), plain[1].weight.data.uniform_(-1, 1)
    folded, x = copy.deepcopy(plain), torch.randn(4, 3, 8, 8)
    quantize_module(folded, recipe())
    for quantizer in quantizers(folded).values():
        quantizer.disable_fake_quant(), quantizer.disable_observer()
    a, b = plain(x), folded(x)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain[1].running_var, folded[1].running_var, rtol=1e-5, atol=1e-5)
    a.square().sum().backward(), b.square().sum().backward()
    torch.testing.assert_close(
        plain[0].weight.grad, folded[0]._parameters["weight"].grad, rtol=1e-3, atol=1e-3
    )


def test_frozen_batchnorm_is_one_convolution():
    """Frozen, the convolution has the folded weight and bias, and the BatchNorm's statistics stand."""
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)), torch.randn(4, 3, 8, 8)
    model(x)
    prepared(model.eval(), x)
    before = model(x)
    freeze_batchnorm(model.train())
    count = model[1].num_batches_tracked.clone()
    # The inputs are rounded alike, so only the order of sums differs.
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
    assert torch.equal(model[1].num_batches_tracked, count) and model[1](x[:, [0, 1, 2, 0, 1]]) is not None
    freeze_batchnorm(model, frozen=False)
    model(x)
    assert model[1].num_batches_tracked == count + 1


def test_overrides_by_name_glob_and_type():
    """Overrides leave layers in float and change widths, by path, by glob, by torch's and by ONNX's type."""
    model = small_network("residual_cnn")
    plan = quantize_module(
        model,
        recipe(
            overrides=[
                {"nodes": ["stem.0"], "keep_float": True},
                {"nodes": ["stages.1.*"], "weights": {"qtype": "int4"}},
                {"op_types": ["Gemm"], "activations": {"qtype": "uint8", "symmetric": False}},
                {"tensors": ["stages.2.conv1.weight"], "weights": {"granularity": "per_tensor"}},
            ]
        ),
    )
    spec = {p.tensor: str(p.spec) for p in plan.placements}
    assert "stem.0.weight" not in spec and "override of recipe test" in plan.skipped[0].why
    assert spec["stages.1.conv1.weight"] == "int4 symmetric per-axis 0"
    assert spec["head.input"] == "uint8 asymmetric per-tensor"
    assert spec["stages.2.conv1.weight"] == "int8 symmetric per-tensor"
    assert "Conv2d 9/10" in [str(row) for row in plan.coverage()]


def multiply_in_all_ways(self, x):
    """[L, N] of int64 to [L, N, N]: one of each kind of layer and operation that is quantized."""
    y = self.gru(self.lstm(self.words(x))[0])[0]
    y = y + self.linear(self.attention(y, y, y)[0])
    z = torch.bmm(y, y.transpose(1, 2))
    return z.matmul(torch.matmul(z, z @ z))


def make_everything():
    """Return a module with them."""
    layers = {"words": nn.Embedding(9, 8), "lstm": nn.LSTM(8, 8), "gru": nn.GRU(8, 8)}
    layers |= {"attention": nn.MultiheadAttention(8, 2), "linear": nn.Linear(8, 8)}
    return made_of(multiply_in_all_ways, **layers)


KINDS = {
    "words": ({"words.weight"}, "Embedding"),
    "lstm": ({"lstm.weight_ih_l0", "lstm.weight_hh_l0"}, "LSTM"),
    "gru": ({"gru.weight_ih_l0", "gru.weight_hh_l0"}, "GRU"),
    "attention": (
        {f"attention.{n}" for n in ("query", "in_proj_weight", "linear_1_input", "out_proj_weight")}
        | {f"attention.{n}_{end}" for n in ("scores", "context") for end in ("input", "other")},
        "MultiheadAttention",
    ),
    "linear": ({"linear.input", "linear.weight"}, "Linear"),
    "bmm": ({"bmm_input", "bmm_other"}, None),
    "matmul": ({"matmul_input", "matmul_other"}, None),
    "matmul_1": ({"matmul_1_input", "matmul_1_other"}, None),
    "matmul_2": ({"matmul_2_input", "matmul_2_other"}, None),
}
PRODUCTS = {"bmm", "matmul", "matmul_1", "matmul_2"}
IDS = torch.zeros(2, 3, dtype=torch.int64)
ONCE = {"matmul_other", "matmul_1_input", "matmul_2_input"}


def test_every_kind_is_placed():
    """Each kind of layer and operation has quantizers on what it multiplies; one tensor has one."""
    found = {p.tensor for p in quantize_module(make_everything(), recipe(), example_inputs=IDS).placements}
    own = set().union(*(tensors for tensors, _ in KINDS.values()))
    assert found == own - ONCE


@pytest.mark.grid
@pytest.mark.parametrize("how", ["name", "glob", "type", "tensors"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in PRODUCTS])
def test_every_kind_of_layer_is_reached(kind, how):
    """By its name, a glob, its type or its tensors an override takes a kind out, and nothing else."""
    tensors, type_name = KINDS[kind]
    override = {
        "name": {"nodes": [kind]},
        "glob": {"nodes": [f"{kind[:-1]}[{kind[-1]}]"]},
        "type": {"op_types": [type_name]},
        "tensors": {"tensors": sorted(tensors)},
    }[how]
    kept = recipe(overrides=[{**override, "keep_float": True}])
    given = IDS if kind == "attention" else None  # it is planned once it has run
    found = {p.tensor for p in quantize_module(make_everything(), kept, example_inputs=given).placements}
    for name in KINDS.keys() - PRODUCTS - (set() if kind == "attention" else {"attention"}):
        own, _ = KINDS[name]
        assert (not found & own) if name == kind else own <= found, name


@pytest.mark.parametrize(
    ("override", "taken"),
    [
        ({"nodes": ["bmm"]}, {"bmm_input", "bmm_other"}),
        ({"nodes": ["matmu[l]"]}, {"matmul_input", "matmul_other"}),
        ({"tensors": ["bmm_other"]}, {"bmm_input", "bmm_other"}),
        (
            {"op_types": ["MatMul"]},  # by ONNX's name
            {"bmm_input", "bmm_other", "matmul_input", "matmul_other", "linear.input", "linear.weight"},
        ),
        ({"op_types": ["Linear"]}, {"linear.input", "linear.weight"}),
        ({"modules": ["linear"]}, {"linear.input", "linear.weight"}),
    ],
)
def test_every_product_is_reached(override, taken):
    """The same holds for the operations of a forward."""
    inputs = torch.ones(2, 4, 4), torch.ones(2, 4, 4)
    kept = recipe(overrides=[{**override, "keep_float": True}])
    every = {"bmm_input", "bmm_other", "matmul_input", "matmul_other", "linear.input", "linear.weight"}

    def multiply(self, x, y):
        return self.linear(torch.bmm(x, y)) + (x * 2) @ (y * 2)

    model = made_of(multiply, linear=nn.Linear(4, 4))
    if taken == every:
        with pytest.raises(ModelError, match="nothing to quantize"):
            quantize_module(model, kept, example_inputs=inputs)
        return
    plan = quantize_module(model, kept, example_inputs=inputs)
    assert {p.tensor for p in plan.placements} == every - taken
    assert all("kept in float by an override" in one.why for one in plan.skipped)


def make_sum():
    """Return a sum of two branches between convolutions."""
    return made_of(lambda self, x: self.conv(self.conv(x) + torch.relu(x)), conv=nn.Conv2d(2, 2, 1))


@pytest.mark.parametrize(
    "override", [{"nodes": ["add"]}, {"nodes": ["ad[d]"]}, {"op_types": ["Add"]}, {"tensors": ["add_other"]}]
)
def test_residual_sums_are_reached(override):
    """The same holds for the skip branch of a sum, for a target that quantizes it."""
    x = torch.ones(1, 2, 4, 4)
    plan = quantize_module(make_sum(), recipe(target="tensorrt"), example_inputs=x)
    assert "add_other" in {p.tensor for p in plan.placements}
    kept = recipe(target="tensorrt", overrides=[{**override, "keep_float": True}])
    rest = {p.tensor for p in quantize_module(make_sum(), kept, example_inputs=x).placements}
    assert rest == {p.tensor for p in plan.placements} - {"add_other"}


def test_calls_that_write_over_a_tensor_are_planned():
    """The forward reads on from the tensor, though marks and rounding have made another one."""

    def write(self, x):  # over the first branch, and turned, by calls whose results nobody takes
        y = self.conv(x)
        y.add_(torch.relu(x))
        y = self.conv(y)
        y.transpose_(2, 3)
        return y

    one, other, x = make_sum(), made_of(write, conv=nn.Conv2d(2, 2, 1)), torch.randn(1, 2, 4, 4)
    other.load_state_dict(one.state_dict())
    prepared(one, x, "qnn-int8")
    assert paired(other, x, "qnn-int8")["Add"] == 1
    assert torch.equal(other(x), one(x).transpose(2, 3))


def skip_behind(self, x):
    """Return [N, 2, H, W]: a convolution and a skip behind an activation."""
    z = self.activate(self.conv(x))
    return self.conv(z) + z


def skip_over(self, x):
    """Return the same by an activation that writes over its input."""
    y = self.conv(x)
    return self.conv(self.activate(y)) + y


@pytest.mark.parametrize(
    "make",
    [
        lambda inplace: nn.ReLU(inplace),
        lambda inplace: nn.LeakyReLU(0.1, inplace),
        lambda inplace: nn.SiLU(inplace),
        lambda inplace: functools.partial(F.hardswish, inplace=inplace),
        lambda inplace: lambda x: (torch.relu_ if inplace else torch.relu)(input=x),
    ],
    ids=["ReLU", "LeakyReLU", "SiLU", "hardswish", "relu_"],
)
def test_activations_write_over_what_the_caller_holds(make):
    """The skip reads the result of an activation in place, as in torch, and gradients run through it."""
    one, other = (
        made_of(forward, conv=nn.Conv2d(2, 2, 1), activate=make(inplace))
        for forward, inplace in ((skip_behind, False), (skip_over, True))
    )
    other.load_state_dict(one.state_dict())
    x = torch.randn(1, 2, 4, 4)
    plans = [prepared(model, x, "qnn-int8") for model in (one, other)]
    assert len(plans[0].placements) == len(plans[1].placements) and torch.equal(other(x), one(x))
    gradients = []
    for model in (one, other):
        model(x).square().sum().backward()
        gradients.append(model.conv.weight.grad)
    assert torch.allclose(*gradients)


def test_ranges_known_from_mathematics():
    """Outputs of Softmax, Sigmoid and Tanh get their range, not the data's, as on the ONNX side."""

    def ranged(self, x):
        y = self.two(self.drop(torch.sigmoid(self.one(x))))
        return self.tail(F.softmax(y, -1) @ y)

    layers = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4), "drop": nn.Dropout()}
    tail = nn.Sequential(nn.Tanh(), nn.Dropout(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    names = ["Softmax", "Sigmoid", "Tanh"]
    content = {"name": "test", "target": "simulation", "weights": {"qtype": "int8"}}
    content["activations"] = {"qtype": "int8", "calibrator": "minmax", "known_ranges": names}
    asked, model = Recipe.model_validate(content), made_of(ranged, **layers, tail=tail)
    x = torch.randn(2, 4, 4)
    plain = onnxfq.load(export_torch(model, (x,)))
    plan = prepared(model, x, asked)
    known = {p.tensor: p.calibrator for p in plan.placements if p.calibrator != "minmax"}
    assert known == {
        "two.input": "known:Sigmoid",
        "matmul_input": "known:Softmax",
        "tail.2.input": "known:Tanh",
    }
    for name in known:
        assert quantizers(model)[f"{name}_quantizer"].scale == torch.tensor(1 / 127)
    onnx_plan = onnxfq.make_plan(plain, asked)
    assert sorted(str(p.calibrator) for p in onnx_plan.placements) == sorted(
        str(p.calibrator) for p in plan.placements
    )
    (why,) = (p.why for p in plan.placements if p.tensor == "matmul_input")
    assert why.endswith("every output of Softmax lies in [0, 1]")


def attend_by_hand(self, x, mask):
    """[N, 4, 16] to [N, 4, 4], as it is often written: a factor, a mask, Softmax, dropout, a layer."""
    scores = (torch.bmm(x, x.transpose(1, 2)) / 4).masked_fill(mask, -1e9)
    return self.head(torch.matmul(self.drop(self.soft(scores)), x))


@pytest.mark.grid
@pytest.mark.parametrize(("kept", "other"), [("bmm", "matmul"), ("matmul", "bmm")])
@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime"])
def test_attention_is_quantized_as_a_whole_or_not_at_all(kept, other, target):
    """If one product is kept in float, TensorRT's plan keeps the other too and says why, as on ONNX."""
    asked = recipe(target=target, overrides=[{"nodes": [kept], "keep_float": True}])
    inputs = torch.ones(2, 4, 16), torch.zeros(2, 4, 4, dtype=torch.bool)
    model = made_of(attend_by_hand, drop=nn.Dropout(), soft=nn.Softmax(-1), head=nn.Linear(16, 4))
    plan = quantize_module(model, asked, example_inputs=inputs)
    placed = {p.tensor for p in plan.placements}
    reasons = {s.name: s.why for s in plan.skipped}
    if target == "onnxruntime":
        assert f"{other}_input" in placed and other not in reasons
    else:
        assert f"{other}_input" not in placed
        assert reasons[other].startswith(f"half of an attention: '{kept}' stays in float")


def test_a_plan_is_made_without_notes(capfd, caplog):
    """Notes of torch's optimizer reach neither a log nor the screen."""
    model = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()  # no other test records this one
    with caplog.at_level("INFO"):
        quantize_module(model, example_inputs=torch.randn(2, 5, 8))
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_softmax_of_attention_has_the_scale_tensorrt_wants():
    """With tensorrt-fp8 the probabilities of MultiheadAttention have the scale 1/448, whatever was seen."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    prepared(model, torch.randn(2, 5, 8), "tensorrt-fp8")
    assert model.self_attn.context_input_quantizer.scale == torch.tensor(1 / 448)


FUNCTION = made_of(lambda self, x: F.conv2d(x, self.k, groups=4), k=nn.Parameter(torch.ones(4, 1, 3, 3)))
"""Depthwise convolution as a function."""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dynamic": True}, "dynamic scales"),
        (
            {"dynamic": True, "granularity": "blocked", "block_size": 32, "scale_type": "e8m0"},
            "dynamic scales",
        ),
        ({"granularity": "per_axis"}, "granularity per_axis of activations"),
        ({"granularity": "blocked", "block_size": 2}, "granularity blocked of activations"),
        ({"symmetric": False, "zero_point": "fractional"}, "fractional zero points"),
    ],
)
def test_what_a_module_has_not(fields, message):
    """Scales that a rule makes and fractional zero points are refused in one line with the remedy.

    A product in a forward is refused as a layer is, and the module stays as it was.
    """
    content = {"name": "test", "target": "simulation", "weights": {"qtype": "int8"}}
    content["activations"] = {"qtype": "int8", **fields}
    model = nn.Sequential(nn.Linear(4, 4))
    for one, inputs in ((model, None), (FUNCTION, torch.ones(2, 4, 5, 5))):
        kind = type(one)
        with pytest.raises(RecipeError, match=f"test asks for {message}.*quantize the exported ONNX"):
            quantize_module(one, Recipe.model_validate(content), example_inputs=inputs)
        assert type(one) is kind and not quantizers(one)
    with pytest.raises(RecipeError, match="mxint8 asks for dynamic scales"):
        quantize_module(model, "mxint8")


@pytest.mark.parametrize("depthwise", [nn.Conv2d(4, 4, 3, groups=4), FUNCTION])
def test_rewrites_of_onnx_models_are_named(depthwise):
    """The plan says which parts of a recipe a module lacks; `depthwise: float` holds as in the export."""
    layers = nn.Conv2d(2, 4, 1), depthwise, nn.Flatten(), nn.Linear(16, 3)
    model, x = nn.Sequential(*layers).eval(), torch.ones(1, 2, 4, 4)
    base = onnxfq.load_recipe("tensorrt-int8").model_dump()
    kept = Recipe.model_validate(base | {"depthwise": "float"})
    expected = onnxfq.make_plan(onnxfq.load(export_torch(model, (x,))), kept)
    plan = quantize_module(model, kept, example_inputs=x)
    assert [s.why for s in plan.skipped if s.name.startswith("1")] == [
        s.why for s in expected.skipped if "depthwise" in s.why and s.kind == "node"
    ]
    remove_fake_quantize(model)
    asked = onnxfq.load_recipe("tensorrt-int8").override(weights={"rounding": "gptq"})
    plan = quantize_module(model, asked, example_inputs=x)
    assert [p.tensor for p in plan.placements if "equalize depthwise is for ONNX" in p.why] in (
        ["1.input"],
        ["1.conv2d_input"],
    )
    assert all("rounding gptq is for ONNX models" in p.why for p in plan.weights)
    for field in ("smooth", "rotate", "bias_correction"):
        with pytest.raises(RecipeError, match=rf"{field}: none.* or quantize the exported"):
            quantize_module(small_network("residual_cnn"), Recipe.model_validate(base | {field: "auto"}))


def test_weights_only():
    """A recipe without activations puts quantizers on weights alone."""
    model = small_network("transformer")
    asked = recipe(None, "int4", granularity="blocked", block_size=16)
    plan = quantize_module(model, asked, example_inputs=digits())
    assert {p.role for p in plan.placements} == {"weight"}
    assert all(p.spec.granularity.block_size == 16 for p in plan.placements)
    assert {s.why for s in plan.skipped} == {
        "recipe test quantizes weights only, and both inputs are computed"
    }


def test_embeddings_and_recurrent_layers_need_a_word():
    """For a target they stay float, with the reason, until an override of their weights names them."""
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "layer": nn.LSTM(4, 5), "head": nn.Linear(5, 2)})
    plan = quantize_module(model, recipe(target="onnxruntime"))
    assert {s.name for s in plan.skipped} == {"words", "layer", "ModuleDict"}
    assert all("an override with weights" in s.why for s in plan.skipped if s.op_type != "forward")
    remove_fake_quantize(model)
    override = {"op_types": ["Embedding"], "weights": {"qtype": "int4"}}
    plan = quantize_module(model, recipe(target="onnxruntime", overrides=[override]))
    assert {s.name for s in plan.skipped} == {"layer", "ModuleDict"}
    table = model["words"]
    assert model["words"](torch.tensor([3])).shape == (1, 4) and table.weight_quantizer.scale.shape == (9,)


def test_refusals():
    """Names that match nothing, quantizing twice, and nothing to quantize are errors of one line.

    So is what the target cannot take. The lines have the nearest names, and nothing is changed.
    """
    model = small_network("residual_cnn")
    for message, asked in (
        ("node 'steem.0', which the model lacks; nearest: stem.0", {"nodes": ["steem.0"]}),
        ("tensor 'head.weigth'.*nearest: head.weight", {"tensors": ["head.weigth"]}),
        ("op type 'Conv4d'.*nearest: Conv2d", {"op_types": ["Conv4d"]}),
    ):
        with pytest.raises(RecipeError, match=message):
            quantize_module(model, recipe(overrides=[{**asked, "keep_float": True}]))
        assert not quantizers(model)
    asked = recipe().model_copy(update={"small_shapes": "float"})  # a module has none before it runs
    with pytest.raises(RecipeError, match="test leaves small shapes in float.*remove small_shapes"):
        quantize_module(model, asked)
    with pytest.raises(RecipeError, match="node 'stem.0', tensor 'stem.0.input': TensorRT takes int4 only"):
        quantize_module(model, recipe("int4", target="tensorrt"))
    quantize_module(model)
    with pytest.raises(ModelError, match="quantized already; call remove_fake_quantize first"):
        quantize_module(model)
    with pytest.raises(ModelError, match="Sequential: .*nothing to quantize: it has no Conv"):
        quantize_module(nn.Sequential(nn.ReLU()), example_inputs=torch.ones(2, 2))


@pytest.mark.parametrize("learned", ["scale", "range"])
def test_training_with_learned_grids(learned):
    """A step of training moves weights and grids of every layer, and lowers the loss."""
    model, x = small_network("residual_cnn"), digits(8)
    target = torch.arange(8) % 10
    prepared(model, x, recipe("int4", "int4"))
    learn_grids(model, learned)
    freeze_batchnorm(model.train())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for n, p in model.named_parameters() if "norm" not in n)


def shift_windows(self, x):
    """Return [N, 2, 16, 8] of [N, 4, 4, 8], by a table of parameters, views in a row, a norm, and a stack."""
    y = torch.roll(x, (-1, 1), (1, 2)).view(-1, 2, 2, 4, 8).view(-1, 16, 8)
    y = self.proj(y).view(-1, 16, 8) + self.table[self.places][:, :8]
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1)
    return torch.stack([F.silu(F.normalize(y.sin(), dim=-1)), y.roll(3, 1)], 1) * 2


def make_windows():
    """Return a module with them."""
    made = made_of(shift_windows, proj=nn.Linear(8, 8), table=nn.Parameter(torch.randn(9, 16)))
    made.register_buffer("places", torch.arange(16) % 9)
    return made


@pytest.fixture(scope="module")
def windows():
    """Return the export of the float module, which every recipe is held against."""
    return onnxfq.load(export_torch(make_windows(), (torch.randn(2, 4, 4, 8),)))


@pytest.mark.parametrize("name", ["tensorrt-int8", "onnxruntime-int8", "openvino-int8", "qnn-int8"])
def test_calls_that_the_export_writes_out_or_joins(name, windows):
    """The export has the pairs of the ONNX road for joined and folded nodes, and for calls of several."""
    x, constants = torch.randn(2, 4, 4, 8), windows.constants
    wanted = onnxfq.make_plan(windows, onnxfq.load_recipe(name).override(activations={"equalize": "none"}))
    model = make_windows()
    quantize_module(model, name, example_inputs=x)
    with torch.no_grad(), compute_encodings(model):
        want = model(x)
    exported = export_torch(model, (x,))
    pairs = sum(node.op_type == "QuantizeLinear" for node in exported.graph.node)
    assert pairs == sum(placement.tensor not in constants for placement in wanted.activations)
    got = onnxruntime.InferenceSession(exported.SerializeToString()).run(None, {"x": x.numpy()})[0]
    assert np.abs(got - model(x).detach().numpy()).max() < 0.1  # a step or two
    remove_fake_quantize(model)
    torch.testing.assert_close(model(x), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", [(3, 1), ((-1, 2), (0, 2)), (2, -1), (5,), (0, 1), ((-4,), (1,))], ids=str)
def test_steps_of_calls_are_torch_s(given):
    """The steps give the results of the call."""
    x = torch.arange(24.0).reshape(2, 4, 3)
    assert torch.equal(calls.turn(x, *given), torch.roll(x, *given))
    for dim in (0, 2, -1):
        assert torch.equal(calls.pile([x, -x], dim), torch.stack([x, -x], dim))
    torch.testing.assert_close(calls.gate(x), F.silu(x))  # as the export: torch multiplies and divides once
    torch.testing.assert_close(calls.invert_root(x + 1), torch.rsqrt(x + 1))
