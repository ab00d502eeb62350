"""Forwards that look into their own tensors and children: writes through views, runs over containers."""

from __future__ import annotations

import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import numpy as np
import torch  # noqa: E402  only once it is known to be there
from quantized_modules import made_of, normal, prepared, run
from torch.nn import functional as F

import onnxfq
from onnxfq.torch import export_torch, plan_of

X = normal(2, 8, 16)


class Residual(nn.Sequential):
    """Block that holds its layers and the quantizers of its sum."""

    def forward(self, x):
        """Add what the layers make."""
        return x + super().forward(x)


class Listed(nn.ModuleList):
    """Layers in a list that runs itself, to the end and back."""

    def forward(self, x):
        """Add each result."""
        for layer in [*self, *self[::-1], self[-1]]:
            x = layer(x) / len(self) + x
        return x


class Named(nn.ModuleDict):
    """Layers by name, run by two of its methods."""

    def forward(self, x):
        """Add each result."""
        for name, layer in self.items():
            x = layer(x) + x if name in self else x
        for child in self.children():
            x = child(x) - x
        return x


def layers():
    """Return two layers."""
    return [nn.Linear(16, 16), nn.Linear(16, 16)]


@pytest.mark.sample
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(*layers()),
        lambda: nn.Sequential(Residual(*layers()), nn.ReLU(), Residual(*layers())),
        lambda: nn.Sequential(Listed(layers()), nn.Linear(16, 4)),
        lambda: nn.Sequential(Named(dict(zip("ab", layers(), strict=True))), nn.Linear(16, 4)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 4)), nn.Linear(16, 16), nn.PixelUnshuffle(2), nn.Linear(8, 4)
        ),
    ],
    ids=["output", "Sequential", "ModuleList", "ModuleDict", "inside of one call"],
)
def test_a_forward_over_its_children_meets_no_quantizer(make):
    """The export has the pairs of the plan for the float export, and ONNX Runtime gives the module's numbers.

    1e-5: sums in another order.
    """
    torch.manual_seed(0)
    model = make().eval()
    expected = onnxfq.make_plan(onnxfq.load(export_torch(model, X)), onnxfq.load_recipe("qnn-int8"))
    prepared(model, X, "qnn-int8")
    exported, found = export_torch(model, X), model(X)
    pairs = sum(node.op_type == "QuantizeLinear" for node in exported.graph.node)
    assert pairs == len({one.tensor for one in expected.activations})
    np.testing.assert_allclose(run(exported, X), found.detach().numpy(), rtol=0, atol=1e-5)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(X), found)


def write_between(self, x):
    """Let `write` change what the first layer made; what it returns is read too."""
    y = self.first(x)
    return self.second(y + self.write(y, x).sum())


def view_before(y, x):
    """Look, and write over what is looked at."""
    seen = y[:, :4].transpose(1, 2)
    y += 4 * x
    return seen


def add_to_slice(y, x):
    """Write through `+=` on a slice."""
    y[:, :4] += 4 * x[:, 4:]
    return y[0, 0]


def add_to_mask(y, x):
    """Write where a mask says."""
    y[x > 0] += 4.0
    return y[0, 0]


WRITES = {
    "slice": lambda y, x: y[:, 0].mul_(5.0),
    "slice +=": add_to_slice,
    "mask +=": add_to_mask,
    "transpose": lambda y, x: F.relu(y.transpose(1, 2), inplace=True),
    "view before": view_before,
    "chunk": lambda y, x: y.chunk(2, 1)[1].mul_(5.0),
    "unbind": lambda y, x: y.unbind(1)[0].add_(4 * x[:, 0]),
    "out": lambda y, x: torch.add(y, x, out=torch.empty_like(y)),
}


@pytest.mark.grid
@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_a_view_is_kept(name):
    """The module is near the float one, ONNX Runtime gives its numbers, and what stays float has a reason."""
    torch.manual_seed(0)
    first, second = layers()
    model = made_of(write_between, first=first, second=second, write=WRITES[name])
    with torch.no_grad():
        expected = model(X)
        prepared(model, X, "qnn-int8")
        found = model(X)
    assert (found - expected).norm() < 0.05 * expected.norm()
    np.testing.assert_allclose(run(export_torch(model, X), X), found.numpy(), rtol=0, atol=1e-4)
    plan = plan_of(model)
    left = sum(row.total - row.quantized for row in plan.coverage())
    assert left == len({one.name for one in plan.skipped})
    whys = [one.why for one in plan.skipped if "inside of one call" not in one.why]  # y[0, 0] is two steps
    assert bool(left) == bool(whys) and all("the forward writes over it" in why for why in whys)
    assert left or name == "out"
