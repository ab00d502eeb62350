"""export_torch: the model computes what the module computes, is named as asked, and tells nothing else."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

# Not importorskip("torch"): this folder itself looks like an empty package of that name to Python.
nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from quantized_modules import Function

from onnxfq.errors import DataError, ModelError, OutputError
from onnxfq.graph.node_notes import module_paths
from onnxfq.torch import export_torch
from onnxfq.torch.exporters import EXPORTERS

both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


class Network(nn.Module):
    """A convolution with BatchNorm, Dropout and a linear layer: [N, 2, 6, 6] -> [N, 3]."""

    def __init__(self):
        """Give BatchNorm statistics that matter."""
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.drop, self.linear = nn.Dropout(0.5), nn.Linear(4, 3)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, picture):
        """Return three scores per picture."""
        x = torch.relu(self.norm(self.convolution(picture)))
        return self.linear(self.drop(x.mean((2, 3))))


def pictures(count: int) -> torch.Tensor:
    """Return `count` random pictures for Network."""
    return torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(count))


def run(model: onnx.ModelProto, *inputs: torch.Tensor) -> list[np.ndarray]:
    """Return the model's outputs in ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})


def names(values) -> list[str]:
    """Return the names of graph inputs or outputs."""
    return [value.name for value in values]


def shape(value) -> list[str | int]:
    """Return the dimensions of a graph input or output, by name or size."""
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.grid
@both
@pytest.mark.parametrize("example", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_outputs_equal_torch_at_any_batch(exporter, example, count):
    """The model computes the module in evaluation mode, whatever the batch of the example was.

    BatchNorm is part of the convolution there, and Dropout is gone. Inputs are named after forward's
    parameters, outputs as asked, and axis 0 of both is the batch.
    """
    module = Network()
    model = export_torch(module, (pictures(example),), output_names=["scores"], exporter=exporter)
    assert (names(model.graph.input), names(model.graph.output)) == (["picture"], ["scores"])
    assert shape(model.graph.input[0]) == ["batch", 2, 6, 6] and shape(model.graph.output[0]) == ["batch", 3]
    assert not {node.op_type for node in model.graph.node} & {"BatchNormalization", "Dropout"}
    (found,) = run(model, pictures(count))
    expected = module.eval()(pictures(count)).detach().numpy()
    # Not exact: BatchNorm is folded into the weights, and sums of up to 18 terms run in another order. That
    # is less than 100 roundings of 2^-24 each, on values below 10: under 1e-4 in all.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@both
def test_own_input_names_and_fixed_batch(exporter):
    """input_names replaces the default, and dynamic_batch=False keeps the shape of the example.

    An input keeps its name where a parameter of the module has the same one.
    """
    options = {"input_names": ["x"], "dynamic_batch": False, "exporter": exporter}
    module = Network()
    model = export_torch(module, pictures(2), **options)
    assert names(model.graph.input) == ["x"]
    assert shape(model.graph.input[0]) == [2, 2, 6, 6]
    module.picture = nn.Parameter(torch.ones(1))
    module.forward = lambda picture: picture * module.picture
    model = export_torch(module, (torch.ones(2, 3),), exporter=exporter)
    assert names(model.graph.input) == ["picture"]


ONE, FIVE, THREE = torch.ones(2, 3), torch.ones(5, 3), torch.tensor(3.0)
FORMS = [
    (lambda a, b, scale: (a + b) * scale, (ONE, ONE, torch.tensor(2.0)), {}, (FIVE, FIVE, THREE), 6.0),
    (lambda *parts: 3 * parts[0] - parts[1], (ONE, ONE), {}, (FIVE, FIVE), 2.0),
    (lambda a, b=None, c=None: a + c if b is None else b, (), {"c": ONE, "a": ONE}, (FIVE, FIVE), 2.0),
]
NAMES = [["a", "b", "scale"], ["parts_0", "parts_1"], ["a", "c"]]


@both
@pytest.mark.parametrize("form", range(len(FORMS)))
def test_forms_of_inputs(exporter, form):
    """Every input with an axis shares the batch; a scalar stays one, and tensors of *parts are numbered.

    Both exporters take inputs by keyword, also with a default parameter left out between them.
    """
    function, inputs, kwargs, given, value = FORMS[form]
    model = export_torch(Function(function), inputs, kwargs=kwargs, exporter=exporter)
    assert names(model.graph.input) == NAMES[form]
    assert [shape(one) for one in model.graph.input] == [["batch", 3] if x.ndim else [] for x in given]
    np.testing.assert_array_equal(run(model, *given)[0], np.full((5, 3), value, np.float32))


class Masked(nn.Module):
    """Optional, keyword-only and further inputs: x and bias are needed."""

    def forward(self, x, mask=None, factor=None, *, bias, **more):
        """Return a tensor like x."""
        y = x + bias if mask is None else x * mask + bias
        return y if factor is None else y * factor


@pytest.mark.sample
def test_keyword_inputs():
    """Inputs by keyword stand in forward's order, with their axes, and the model computes forward of them."""
    x, kwargs = torch.randn(2, 5), {"bias": torch.randn(2, 5), "factor": torch.full((2, 1), 3.0)}
    model = export_torch(Masked(), x, kwargs=kwargs)
    assert names(model.graph.input) == ["x", "factor", "bias"]
    assert [shape(value) for value in model.graph.input] == [["batch", n] for n in (5, 1, 5)]
    x, factor, bias = (torch.cat([value, -value]) for value in (x, kwargs["factor"], kwargs["bias"]))
    (found,) = run(model, x, factor, bias)
    np.testing.assert_array_equal(found, Masked()(x, factor=factor, bias=bias).numpy())


@pytest.mark.parametrize(
    "asked",
    [
        {"x": {0: "n", 1: torch.export.Dim("length", min=2)}, "mask": {1: "length"}},
        ({0: "n", 1: "length"}, (None, "length", None)),
        {"mask": {1: "length"}, "x": ["n", "length", 4]},
    ],
)
def test_dynamic_shapes(asked):
    """Axes are dynamic as torch.onnx.export takes them: names or Dims, by parameter or in order."""
    module = Function(lambda x, mask: x * mask)
    model = export_torch(module, (torch.ones(2, 5, 4), torch.ones(1, 5, 1)), dynamic_shapes=asked)
    inputs = [shape(value) for value in model.graph.input]
    assert inputs == [["n", "length", 4], [1, "length", 1]]
    (found,) = run(model, torch.ones(3, 7, 4), torch.full((1, 7, 1), 2.0))
    np.testing.assert_array_equal(found, np.full((3, 7, 4), 2.0))


def test_dynamic_shapes_of_a_part():
    """Parameters that are left out keep their shape, whatever dynamic_batch is; *parts have an entry each.

    Torch gives equal axes one name; its warning that another is not used reaches the user.
    """
    model = export_torch(Network(), (pictures(2),), dynamic_shapes={})
    assert shape(model.graph.input[0]) == [2, 2, 6, 6]
    module, asked = Function(lambda *parts: parts[0] * parts[1]), {"parts": ({0: "n"}, None)}
    model = export_torch(module, (torch.ones(2, 3), torch.ones(3)), dynamic_shapes=asked)
    assert [shape(value) for value in model.graph.input] == [["n", 3], [3]]
    with pytest.warns(UserWarning, match="The axis name: m will not be used"):
        export_torch(Function(lambda a, b: a + b), (ONE, ONE), dynamic_shapes={"a": {0: "n"}, "b": {0: "m"}})


@both
def test_nothing_is_changed_or_left(exporter, tmp_path):
    """Metadata are module paths alone: no source path or stack trace, and no weights lie outside the file.

    Each submodule is in the mode it was in before, also when the export fails, which leaves the file of an
    earlier one, and neither weights nor BatchNorm's statistics have moved.
    """
    path, module = tmp_path / "model.onnx", Network().train()
    module.linear.eval()
    modes = [part.training for part in module.modules()]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    path.write_bytes(b"earlier")
    with pytest.raises(ModelError):
        export_torch(module, (pictures(2),), path, opset=3, exporter=exporter)
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]
    assert [part.training for part in module.modules()] == modes
    model = export_torch(module, (pictures(2),), path, exporter=exporter)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    content, folders = path.read_bytes(), (str(Path(__file__).parent), str(Path.home()))
    for trace in (".py", "stack", "pkg.torch.onnx.fx", "class_hierarchy", *folders):
        assert trace.encode() not in content
    assert list(tmp_path.iterdir()) == [path]
    assert onnx.load(path) == model
    if exporter == "dynamo":
        paths = set(module_paths(model.graph).values())
        assert paths and paths <= {name for name, _ in Network().named_modules()}


def test_metadata_in_branches_is_cleared():
    """The bodies of control flow are cleared too: they are graphs inside an attribute."""

    def forward(x):
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))

    model = export_torch(Function(forward), (torch.ones(2, 3),))
    assert "If" in {node.op_type for node in model.graph.node}
    assert b".py" not in model.SerializeToString()
    np.testing.assert_array_equal(run(model, -torch.ones(1, 3))[0], np.full((1, 3), -2, np.float32))


@both
def test_is_quiet(exporter, tmp_path, monkeypatch, capfd):
    """Nothing is printed, logged, warned about or left in the folder; logging works afterwards."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_torch(Network(), (pictures(2),), exporter=exporter)
        with pytest.raises(ModelError):
            export_torch(EIGENVALUES, MATRICES, exporter=exporter)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert logging.root.manager.disable == logging.NOTSET


def test_warning_about_a_traced_constant_is_kept():
    """Tracing a decision that depends on the data freezes it; torch's warning must reach the user."""
    module = Function(lambda x: x if x.sum() > 0 else -x)
    with pytest.warns(torch.jit.TracerWarning, match="Python boolean"):
        export_torch(module, (torch.ones(2, 3),), exporter="torchscript")


@pytest.mark.grid
@both
@pytest.mark.parametrize("opset", [18, 20])
def test_opset(exporter, opset):
    """The model has the opset asked for."""
    model = export_torch(Network(), (pictures(2),), opset=opset, exporter=exporter)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]


def fix_batch(x):
    """Force a batch of two."""
    return x + torch.arange(2.0).reshape(2, 1)


NETWORK, TWO = Network(), pictures(2)
EIGENVALUES, MATRICES = Function(lambda x: torch.linalg.eigvals(x)), torch.ones(2, 3, 3)
FIXED, DIM = Function(lambda x: x + torch.arange(2.0).reshape(2, 1, 1)), torch.export.Dim("n")
UNUSED, TRACED = Function(lambda x, y: x * 2), {"exporter": "torchscript"}


@pytest.mark.parametrize(
    ("message", "module", "inputs", "kwargs"),
    [
        (r"inputs of Network must be .* \['ndarray'\]", NETWORK, (np.ones(3),), None),
        (r"must be a tuple of tensors, found \[\]", NETWORK, (), None),
        ("must be a tuple of tensors, found dict", NETWORK, {"picture": TWO}, None),
        (r"Network.forward\(picture\) does not take 2", NETWORK, (TWO, TWO), None),
        (r"forward fails on picture \[2, 5\]: .*takes", NETWORK, torch.ones(2, 5), None),
        (r"x \[4, 3\]: .*batch=False", Function(fix_batch), torch.ones(2, 3), None),
        ("input 'bias' of Masked must be a tensor, found float", Masked(), TWO, {"bias": 1.0}),
        (r"Masked.forward\(.*\) .* take 1 inputs and mask: missing .*'bias'", Masked(), TWO, {"mask": TWO}),
        ("'bais', by ..more, with fixed shapes; name", Masked(), TWO, {"bias": TWO, "bais": TWO}),
        (r"x \[2, 2, 6, 6\], bias \[5\]: .*; pass inputs", Masked(), TWO, {"bias": torch.ones(5)}),
    ],
)
def test_inputs_that_do_not_fit(message, module, inputs, kwargs):
    """Inputs that forward does not take are a DataError: one line with what was given and the remedy."""
    with pytest.raises(DataError, match=message):
        export_torch(module, inputs, kwargs=kwargs)


@pytest.mark.parametrize(
    ("message", "module", "inputs", "options"),
    [
        ("takes a torch.nn.Module, not builtin", torch.relu, TWO, {}),
        ("'dynamite'; known: dynamo, torchscript", NETWORK, TWO, {"exporter": "dynamite"}),
        ("1 inputs need as many", NETWORK, TWO, {"input_names": ["a", "b"]}),
        ("'picture' twice", NETWORK, TWO, {"output_names": ["picture"]}),
        ("do not fit the 1 outputs", NETWORK, TWO, {"output_names": ["a", "b"]}),
        ("exporter gave opset .. for 99; leave", NETWORK, TWO, {"opset": 99}),
        ("opset version 99", NETWORK, TWO, {"opset": 99} | TRACED),
        ("No ONNX function.*linalg_eig.*'torchscript'", EIGENVALUES, MATRICES, {}),
        ("linalg_eigvals.*'dynamo'", EIGENVALUES, MATRICES, TRACED),
        ("is fixed to 2 by forward", FIXED, MATRICES, {"dynamic_shapes": {"x": {0: DIM}}}),
        ("static shape of 2.*change", FIXED, MATRICES, {"dynamic_shapes": {"x": {0: "n"}}}),
        ("'y' of forward, which has x;", FIXED, MATRICES, {"dynamic_shapes": {"y": None}}),
        ("names 3 of x, which has 0, 1, 2", FIXED, MATRICES, {"dynamic_shapes": {"x": {3: "n"}}}),
        (r"has \(\) for forward of 1 entries", FIXED, MATRICES, {"dynamic_shapes": ()}),
        ("has 'n' for x of 3 entries; give", FIXED, MATRICES, {"dynamic_shapes": {"x": "n"}}),
        ("needs exporter='dynamo'", FIXED, MATRICES, {"dynamic_shapes": {}} | TRACED),
        ("dropped 'y', which is not used", UNUSED, (MATRICES, MATRICES), TRACED),
    ],
)
def test_exports_that_cannot_be(message, module, inputs, options):
    """A module that cannot be exported is a ModelError: one line with torch's reason and the remedy."""
    with pytest.raises(ModelError, match=message):
        export_torch(module, inputs, **options)


def test_what_never_reaches_the_user(monkeypatch, tmp_path):
    """The result of an exporter is checked: a model that breaks ONNX's rules is refused.

    A file in place of a folder is found before the export, with the path in the message.
    """
    (tmp_path / "taken").touch()
    with pytest.raises(OutputError, match="taken is a file"):
        export_torch(Network(), (pictures(2),), tmp_path / "taken" / "model.onnx")
    broken = export_torch(Network(), TWO)
    broken.graph.node[0].input[0] = "nowhere"
    monkeypatch.setitem(EXPORTERS, "dynamo", lambda model, request: broken)
    with pytest.raises(ModelError, match="made an invalid model: .*nowhere.*try the other exporter"):
        export_torch(Network(), TWO)


@pytest.mark.grid
@pytest.mark.parametrize("size", [None, torch.export.Dim("n")], ids=["fixed", "open"])
@pytest.mark.parametrize("as_module", [False, True])
def test_what_torch_export_made(size, as_module):
    """A program, or its module, is the same model; its sizes of axis 0 stay as they were exported."""
    model, x = Network().eval(), torch.rand(4, 2, 6, 6)
    shapes = None if size is None else {"picture": {0: size}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    exported = export_torch(program.module() if as_module else program, (x,))
    batch = exported.graph.input[0].type.tensor_type.shape.dim[0]
    assert (batch.dim_value, batch.dim_param) == ((4, "") if size is None else (0, "batch"))
    (found,) = run(exported, x)
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-5)
