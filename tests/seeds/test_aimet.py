"""AIMET's quantizers, against what aimet-torch 2.42 computed (write_aimet_vectors.py): equal to the bit."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from aimet_cases import CASES, FLOATS, call_float, network, results, train

import onnxfq.torch.compat.aimet as Q
from onnxfq import errors
from onnxfq.torch import compute_encodings, export_torch, kernels

QUANTIZE, QDQ, FLOAT = Q.affine.Quantize, Q.affine.QuantizeDequantize, Q.float.FloatQuantizeDequantize
GROUPED = Q.affine.GroupedBlockQuantizeDequantize
VECTORS = json.loads(Path(__file__).with_name("aimet_vectors.json").read_text(encoding="utf-8"))


def plain(x):
    """Return a tensor without an encoding and without a gradient."""
    return x.detach().as_subclass(torch.Tensor)


def ranged(low=-1.0, high=1.0, shape=(), bits=8, symmetric=False, **others):
    """Return a quantizer with a range."""
    made = QDQ(shape, bits, symmetric, **others)
    made.set_range(low, high)
    return made


@pytest.mark.parametrize("number", range(len(CASES)))
def test_results_are_aimets(number):
    """Values, gradients, ranges and encodings of each case, with two batches: AIMET's."""
    found = results(Q, CASES[number], number)
    for name, expected in VECTORS["cases"][number].items():
        assert np.array_equal(found[name], expected, equal_nan=True), name


@pytest.mark.parametrize("number", range(len(FLOATS)))
def test_floats_are_aimets(number):
    """Free widths and torch's float types, also subnormal numbers, without and with data: AIMET's."""
    for found, expected in zip(call_float(Q, FLOATS[number]), VECTORS["floats"][number], strict=True):
        assert np.array_equal(found, expected, equal_nan=True)


def test_one_value_has_numpys_edges():
    """A histogram of one value reaches half a unit to each side, as NumPy's."""
    seen = Q.encoding_analyzer.PercentileEncodingAnalyzer((), num_bins=8).update_stats(torch.full((5,), 2.0))
    counts, edges = np.histogram(np.full(5, 2.0), bins=8)
    assert np.array_equal(seen[0].bin_edges, edges) and np.array_equal(seen[0].histogram, counts)


def test_half_types_are_told_by_their_bits():
    """float16 and bfloat16 as torch.finfo has them; no other format is one of them."""
    made = {dtype: FLOAT(dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2)}
    assert [dtype for dtype, one in made.items() if one.is_float16()] == [torch.float16]
    assert [dtype for dtype, one in made.items() if one.is_bfloat16()] == [torch.bfloat16]
    assert all(float(one.maxval) == torch.finfo(dtype).max for dtype, one in made.items())


def test_state_dicts_are_aimets():
    """A network saves AIMET's keys, types and numbers, and loads AIMET's state into an uncalibrated one."""
    made = network(Q, Q.nn)
    state = made.state_dict()
    assert list(state) == list(VECTORS["state"])
    given = {}
    for name, stored in VECTORS["state"].items():
        kept = stored if isinstance(stored, dict) else {"": stored}
        own = state[name] if isinstance(stored, dict) else {"": state[name]}
        assert {key: str(one.dtype) for key, one in own.items()} == {
            key: dtype for key, (dtype, _) in kept.items()
        }
        # Torch's kernels of another processor sum in another order.
        for key, (_, values) in kept.items():
            np.testing.assert_allclose(own[key].double(), values, rtol=3e-7, atol=1e-30, err_msg=name)
        tensors = {
            key: torch.tensor(values, dtype=getattr(torch, dtype.removeprefix("torch.")))
            for key, (dtype, values) in kept.items()
        }
        given[name] = tensors if isinstance(stored, dict) else tensors[""]
    file = io.BytesIO()
    torch.save(given, file)
    file.seek(0)
    empty = network(Q, Q.nn)
    for quantizer in (empty[2], empty[0].param_quantizers["weight"]):
        quantizer.set_range(-9.0, 9.0)
    empty.load_state_dict(torch.load(file, weights_only=True))
    made.load_state_dict(given)
    x = torch.randn(3, 2, 4, 4)
    assert torch.equal(plain(empty(x)), plain(made(x)))


def test_training_is_aimets():
    """Ten steps of Adam over weights and ranges give AIMET's losses."""
    assert train(network(Q, Q.nn)) == VECTORS["trained"]


def test_states_carry_the_grid():
    """A state brings its own grid; without AIMET's extra state, `min` and `max` are a range by themselves."""
    quantizer = ranged(-2.0, 1.0, (2, 2), 4, False, block_size=(1, 3))
    other = QDQ((2, 2), 8, True)
    other.load_state_dict(quantizer.state_dict())
    assert other.get_legacy_encodings() == quantizer.get_legacy_encodings()
    assert (other.bitwidth, other.symmetric, other.block_size) == (4, False, (1, 3))
    bare = nn.Sequential(QDQ((2,), 8, True))
    bare.load_state_dict({"0.min": -torch.ones(2), "0.max": torch.ones(2)})
    assert bare[0].is_initialized() and bare[0].get_scale().tolist() == [torch.tensor(2 / 255).item()] * 2
    fresh = QDQ((2,), 8, True)
    bare[0].load_state_dict(fresh.state_dict())
    assert not bare[0].is_initialized()
    bare[0].load_state_dict({"min": -torch.ones(3), "max": torch.ones(3)}, strict=False)
    assert bare[0].shape == (3,)


def test_min_and_max_stay_parameters():
    """They are the same objects under the same names after inputs, training and calibration."""
    for shape in ((1,), (4, 1), (4, 1, 1, 1)):
        quantizer = ranged(shape=shape)
        held = dict(quantizer.named_parameters())
        assert list(held) == ["min", "max"] and held["min"].shape == shape
        x = torch.randn(4, 6, *(1,) * (len(shape) - 2))
        quantizer(x).sum().backward()
        torch.optim.SGD(quantizer.parameters(), 0.1).step()
        with quantizer.compute_encodings():
            quantizer(x)
        assert all(param is held[name] for name, param in quantizer.named_parameters())
        assert quantizer.min.grad is not None


def test_a_range_is_known_once_it_is_set():
    """In place, by assignment, by data or by a state dict, one end after the other; also in copies."""
    quantizer = QDQ((2,), 8, True)
    assert quantizer.get_scale() is quantizer.get_encodings() is quantizer.get_min() is None
    with pytest.raises(RuntimeError, match="has no range yet; run data"):
        quantizer(torch.ones(2))
    assert not copy.deepcopy(quantizer).is_initialized()
    with torch.no_grad():
        quantizer.min.mul_(1.0)
    assert not quantizer.is_initialized()
    assert not pickle.loads(pickle.dumps(quantizer)).is_initialized()
    quantizer.max = nn.Parameter(torch.ones(2))
    for one in (quantizer, copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert one.is_initialized() and torch.equal(one.max, torch.ones(2))
    assert quantizer(torch.zeros(0, 2)).shape == (0, 2)


def test_calibrating_without_data_keeps_the_range():
    """No data, an exception, or a range that may not be overwritten change nothing."""
    quantizer = ranged()
    with quantizer.compute_encodings():
        pass
    with pytest.raises(KeyError), quantizer.compute_encodings():
        quantizer(torch.randn(9) * 50)
        raise KeyError
    quantizer.allow_overwrite(max=False)
    with quantizer.compute_encodings():
        quantizer(torch.tensor([-5.0, 5.0]))
    assert (quantizer.min.item(), quantizer.max.item()) == (-5.0, 1.0)
    assert quantizer.is_overwrite_allowed("min") and not quantizer.is_overwrite_allowed("max")
    quantizer.freeze_encodings()
    with quantizer.compute_encodings():
        quantizer(torch.tensor([-9.0, 9.0]))
    assert quantizer.min.item() == -5.0 and not quantizer.min.requires_grad
    with pytest.raises(errors.SpecError, match="no range 'low'"):
        quantizer.allow_overwrite(low=True)


def test_grids_have_their_forms():
    """Limits and widths, by position or by name, and setters that keep sign or width."""
    forms = [QUANTIZE((), -8, 7, True), QUANTIZE((), qmin=-8, qmax=7, symmetric=True)]
    forms += [QUANTIZE((), 4, True), QUANTIZE((), bitwidth=4, symmetric=True)]
    assert {(q.qmin, q.qmax, q.bitwidth, q.signed, q.symmetric) for q in forms} == {(-8, 7, 4, True, True)}
    quantizer = forms[0]
    quantizer.bitwidth = 5.0
    assert (quantizer.qmin, quantizer.qmax) == (-16, 15)
    quantizer.signed = False
    assert (quantizer.qmin, quantizer.qmax) == (0, 31)
    quantizer.qmax = 30
    with pytest.raises(RuntimeError, match=r"bitwidth of Quantize needs a grid .* found \[0, 30\]"):
        _ = quantizer.bitwidth
    x, scale = torch.linspace(-1, 1, 9), torch.tensor(1 / 15)
    calls = [{"bitwidth": 4}, {"num_steps": 15}, {"qmin": 0, "qmax": 15}]
    made = [Q.affine.quantize_dequantize(x, scale, torch.tensor(-7.0), **call) for call in calls]
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])


WRONG = [
    (TypeError, "missing", lambda: QUANTIZE((1,))),
    (TypeError, "symmetric", lambda: QUANTIZE((1,), -8, 7)),
    (TypeError, "foo", lambda: QUANTIZE((1,), 8, True, foo=1)),
    (ValueError, "qmin < qmax, found 7 and -8", lambda: QUANTIZE((), 7, -8, True)),
    (ValueError, "from 1 to 32, found 0", lambda: QUANTIZE((), 0, True)),
    (ValueError, "from 1 to 32, found 33", lambda: QUANTIZE((), 33, True)),
    (TypeError, "whole number, found 7.5", lambda: QUANTIZE((), 7.5, True)),
    (ValueError, "must be 0 or 0.5", lambda: ranged(zero_point_shift=0.3)),
    (RuntimeError, "no zero_point_shift", lambda: QUANTIZE((), 4, True, None, None, 0.5)),
    (ValueError, "num_bins", lambda: Q.PercentileEncodingAnalyzer((), num_bins=0)),
    (ValueError, "50 to 100, found 49", lambda: Q.PercentileEncodingAnalyzer((), percentile=49)),
    (ValueError, "at least 1", lambda: Q.SqnrEncodingAnalyzer((), histogram_growth_limit=0.5)),
    (
        *(RuntimeError, r"MinMaxEncodingAnalyzer \[3\] does not fit \[4\]"),
        lambda: ranged(shape=(4,), encoding_analyzer=Q.MinMaxEncodingAnalyzer((3,))),
    ),
    (RuntimeError, r"str has no update_stats\(\)", lambda: ranged(encoding_analyzer="minmax")),
    (RuntimeError, "symmetric=False", lambda: GROUPED((2,), 4, False, 8)),
    (RuntimeError, r"groups of \[3\] blocks", lambda: GROUPED((2,), 4, True, 8, block_grouping=(3,))),
    (RuntimeError, "at least 4, found 3", lambda: GROUPED((2,), 4, True, 3)),
    (RuntimeError, "3 blocks of 2", lambda: ranged(shape=(3,), block_size=(2,))(torch.ones(5))),
    (RuntimeError, "do not broadcast", lambda: ranged(shape=(3,))(torch.ones(4))),
    (RuntimeError, "must broadcast", lambda: ranged(shape=(3,)).set_range(torch.ones(2), 1.0)),
    (RuntimeError, "must be float16", lambda: ranged()(torch.arange(4))),
    (
        *(RuntimeError, "does not hold the integers 0 to 65535"),
        lambda: Q.affine.quantize(torch.ones(2).half(), torch.ones(()), torch.zeros(()), 16),
    ),
    (ValueError, "give dtype, or exponent_bits", lambda: FLOAT(4, 3, dtype=torch.float16)),
    (ValueError, "1 to 8 exponent", lambda: FLOAT(0, 3)),
    (ValueError, "dtype must be one of", lambda: FLOAT(dtype=torch.float32)),
    (ValueError, "1 to 8 exponent", lambda: FLOAT(11, 52)),
    (RuntimeError, "takes AffineEncoding, found str", lambda: QDQ.from_encodings("int8")),
    (RuntimeError, "takes 1 entries, found 0", lambda: ranged().set_legacy_encodings([])),
    (RuntimeError, "needs 'bitwidth'", lambda: ranged().set_legacy_encodings([{"min": 0}])),
    (RuntimeError, "no setting 'bit_width'; nearest: bitwidth", lambda: setattr(ranged(), "bit_width", 3)),
    (RuntimeError, "shape of QuantizeDequantize is read only", lambda: setattr(ranged(), "shape", (2,))),
    (RuntimeError, r"min has shape \[\]", lambda: setattr(ranged(), "min", torch.ones(2))),
    (RuntimeError, "must be of a float type", lambda: Q.QuantizedTensor(torch.arange(3))),
    (RuntimeError, "has no encoding", lambda: Q.QuantizedTensor(torch.ones(3)).dequantize()),
    (RuntimeError, "Mine has no quantized form", lambda: Q.QuantizationMixin.from_module(Mine(3, 2))),
]


class Mine(nn.Linear):
    """A layer that is not known."""


@pytest.mark.parametrize(("kind", "text", "call"), WRONG)
def test_wrong_arguments_are_one_line(kind, text, call):
    """The error is one of onnxfq's, in one line, and the one that AIMET raises."""
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, errors.OnnxfqError)


SENSELESS = [None, "oops", 3.5, -1, object(), [], {}]


def calls():
    """Return public calls with right arguments."""
    x, one, zero = torch.ones(3, 2), torch.ones(2), torch.zeros(2)
    quantizer, analyzer = ranged(shape=(2,)), Q.MinMaxEncodingAnalyzer((2,))
    analyzer.update_stats(x)
    encoding = quantizer.get_encodings()
    return {
        "QuantizeDequantize": (QDQ, ((2,), 8, True, None, None, 0.0)),
        "Grouped": (GROUPED, ((2, 2), 4, True, 8, None, (1, 1), (1, 2))),
        "FloatQuantizeDequantize": (FLOAT, (4, 3, None, None, None, (), None, None)),
        "forward": (quantizer, (x,)),
        "set_range": (quantizer.set_range, (-1.0, 1.0)),
        "get_scale": (quantizer.get_scale, (torch.float32,)),
        "set_legacy_encodings": (quantizer.set_legacy_encodings, (quantizer.get_legacy_encodings(),)),
        "is_overwrite_allowed": (quantizer.is_overwrite_allowed, ("min",)),
        "min": (lambda value: setattr(quantizer, "min", value), (nn.Parameter(one),)),
        "quantize": (Q.affine.quantize, (x, one, zero, 8, False, None)),
        "dequantize": (Q.affine.dequantize, (x, one, zero, None)),
        "quantize_dequantize": (Q.affine.quantize_dequantize, (x, one, zero, 8, False, None)),
        "AffineEncoding": (Q.AffineEncoding, (one, zero, 8, True, True, None, 0.0)),
        "AffineEncoding.quantize": (encoding.quantize, (x,)),
        "FloatEncoding": (Q.FloatEncoding, (3, 4, False, False, one, None)),
        "Percentile": (Q.PercentileEncodingAnalyzer, ((2,), 16, 99)),
        "update_stats": (analyzer.update_stats, (x,)),
        "compute_encodings": (analyzer.compute_encodings, (255, True)),
        "from_module": (Q.QuantizationMixin.from_module, (nn.Linear(2, 2),)),
    }


@pytest.mark.parametrize("name", calls())
def test_senseless_arguments_are_errors_of_ours(name):
    """Any value in place of any argument works or is one line of ours, never an error of Python's alone."""
    function, right = calls()[name]
    for place in range(len(right)):
        for wrong in SENSELESS:
            try:
                function(*right[:place], wrong, *right[place + 1 :])
            except errors.OnnxfqError as error:
                assert str(error)


class Halved(Q.EncodingAnalyzer):
    """A user's analyzer: half of the range that the last tensor had."""

    def __init__(self):
        self.seen = None

    def update_stats(self, input_tensor):
        """Keep the largest magnitude."""
        self.seen = input_tensor.abs().max()
        return self.seen

    def reset_stats(self):
        """Forget it."""
        self.seen = None

    def compute_encodings(self, num_steps, is_symmetric):
        """Return half of it."""
        return self.compute_encodings_from_stats(self.seen, num_steps, is_symmetric)

    def compute_encodings_from_stats(self, stats, num_steps, is_symmetric):
        """Return half of the statistics."""
        return -stats / 2, stats / 2


def test_an_own_analyzer_works_by_its_methods():
    """A subclass of EncodingAnalyzer computes what its methods say; one without them cannot be made."""
    quantizer = QDQ((), 8, False, Halved())
    with quantizer.compute_encodings():
        inside = quantizer(torch.tensor([-4.0, 1.0]))
    assert (quantizer.min.item(), quantizer.max.item()) == (-2.0, 2.0)
    assert plain(inside).min().item() == pytest.approx(-2.0, abs=0.01)  # a step of the grid

    class Empty(Q.EncodingAnalyzer):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Empty(None)


def test_analyzers_work_alone():
    """update_stats, compute_encodings, compute_dynamic_encodings and reset_stats; no data is an error."""
    alone = Q.MinMaxEncodingAnalyzer(()), Q.TfEnhancedEncodingAnalyzer(())
    for analyzer in (*alone, Q.PercentileEncodingAnalyzer((), 16), Q.SqnrEncodingAnalyzer((), 16)):
        with pytest.raises(RuntimeError, match="saw no data"):
            analyzer.compute_encodings(255, False)
        x = torch.linspace(-1, 3, 50)
        dynamic = analyzer.compute_dynamic_encodings(x, 255, False)
        with pytest.raises(RuntimeError, match="saw no data"):
            analyzer.compute_encodings(255, False)
        analyzer.update_stats(x)
        assert torch.equal(torch.stack(analyzer.compute_encodings(255, False)), torch.stack(dynamic))
        with pytest.raises(ValueError, match="positive number of steps"):
            analyzer.compute_encodings(0, False)
        analyzer.reset_stats()
        with pytest.raises(RuntimeError, match="saw no data"):
            analyzer.compute_encodings(255, False)


def test_histograms_of_later_channels_are_their_own():
    """A second batch is added to the histogram of its channel on any axis, as torch.histc counts both.

    AIMET mixes channels here unless they are the first axis.
    """
    analyzer = Q.PercentileEncodingAnalyzer((2,), num_bins=8)
    ends = torch.tensor([[-1.0, 0.0], [1.0, 10.0]])
    batches = [torch.cat([ends, torch.rand(20, 2) * torch.tensor([1.0, 10.0])]) for _ in range(2)]
    for batch in batches:
        analyzer.update_stats(batch)
    both = torch.cat(batches)
    for channel, stats in enumerate(analyzer.observer.get_stats()):
        low, high = ends[0, channel].item(), ends[1, channel].item()
        assert torch.equal(stats.histogram, torch.histc(both[:, channel], 8, low, high))


def test_bad_data_is_named():
    """A range with infinities or numbers near the largest float warns; a histogram needs a finite value."""
    quantizer = QDQ((), 8, True)
    with pytest.warns(UserWarning, match="Extreme values"), quantizer.compute_encodings():
        quantizer(torch.tensor([3.4e38, 0.0]))
    with pytest.warns(UserWarning, match="Infinite or NaN"), quantizer.compute_encodings():
        quantizer(torch.tensor([float("nan"), 0.0]))
    with pytest.raises(ValueError, match="needs a finite value"):
        Q.SqnrEncodingAnalyzer(()).update_stats(torch.tensor([float("inf")]))


def test_quantize_has_a_gradient():
    """The integers pass gradients to x, min and max, where AIMET's formula says so."""
    quantizer = QUANTIZE((), -8, 7, True)
    quantizer.set_range(-8.0, 7.0)
    x = torch.tensor([-20.0, 0.3, 20.0], requires_grad=True)
    quantizer(x).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]
    assert quantizer.max.grad.item() == pytest.approx(-0.3 / 15, rel=1e-6)  # -x / scale / steps, one division


@pytest.mark.parametrize("shift", [0, 0.5])
@pytest.mark.parametrize("shape", [(), (4, 1), (2, 2)], ids=str)
def test_the_kernel_has_the_bits_of_torchs_operations(shape, shift, monkeypatch):
    """Values and gradients of learned ranges are the same bits with and without the library."""
    blocks = {"block_size": (2, 3)} if shape == (2, 2) else {}
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))

    def run():
        given = x, torch.full(shape, 0.02), torch.full(shape, -9.0)
        tensors = [one.clone().requires_grad_() for one in given]
        y = Q.quantize_dequantize(*tensors, 8, True, zero_point_shift=shift, **blocks)
        return [y, *torch.autograd.grad(y, tensors, x)]

    found = run()
    monkeypatch.setattr(kernels, "library_loads", lambda: False)
    assert all(map(torch.equal, found, run()))


@pytest.mark.parametrize("function", [Q.quantize, Q.quantize_dequantize])
def test_functions_take_torch_func(function):
    """Learned ranges under vmap and grad of torch.func: the values and gradients that backward sees."""
    x, offset = torch.linspace(-2, 2, 12).reshape(3, 4), torch.tensor(-3.0)
    scale = torch.tensor(0.1, requires_grad=True)
    leaf = x.clone().requires_grad_()
    expected = function(leaf, scale, offset, 4, True)
    expected.sum().backward()
    assert torch.equal(torch.vmap(lambda row: function(row, scale, offset, 4, True))(x), expected)
    found = torch.func.grad(lambda one: function(one, scale, offset, 4, True).sum())(x)
    assert torch.equal(found, leaf.grad)


def test_tensors_carry_their_encoding():
    """Casts and copies keep it, views keep one scale, operations in place lose it, others are plain."""
    y = ranged()(torch.randn(3, 4)).detach()
    assert isinstance(y, Q.DequantizedTensor)
    assert type(y.quantize()) is Q.QuantizedTensor and y.quantized_repr().dtype == torch.uint8
    assert torch.equal(plain(y.quantize().dequantize()), plain(y))
    copies = copy.deepcopy(y), pickle.loads(pickle.dumps(y))
    for kept in (y.half(), y.clone(), y.reshape(-1), y[0], y.T, *copies):
        assert type(kept) is Q.DequantizedTensor and kept.encoding is not None
        assert torch.equal(kept.encoding.scale, y.encoding.scale)
    assert y.half().dequantize().dtype == torch.float16
    for other in (y + 1, torch.relu(y), y.int(), torch.cat([y, y])):
        assert type(other) is torch.Tensor
    per_channel = ranged(shape=(3, 1))(torch.randn(3, 4)).detach()
    assert per_channel.clone().encoding is not None and per_channel.reshape(-1).encoding is None
    for write in (lambda x: x.mul_(0.3), lambda x: x.__setitem__(0, 0.3), lambda x: torch.add(y, 1, out=x)):
        other = y.clone()
        write(other)
        assert other.encoding is None
    y.mul_(0.3)
    with pytest.raises(Q.EncodingError, match="has no encoding"):
        y.quantize()


def test_encodings_have_all_properties():
    """Both signatures of an AffineEncoding, its properties, and quantizers made from encodings."""
    scale, offset = torch.tensor([[0.5], [0.25]]), torch.zeros(2, 1)
    encoding = Q.AffineEncoding(scale, offset, 8, signed=True, symmetry=True)
    same = Q.AffineEncoding(scale, offset, qmin=-128, qmax=127, symmetry=True)
    assert (encoding.qmin, encoding.qmax, encoding.num_steps, encoding.bitwidth) == (-128, 127, 255, 8)
    assert (encoding.dtype, encoding.mapping, encoding.granularity) == (torch.int8, "affine", "perchannel")
    assert encoding.min.tolist() == [[-64.0], [-32.0]] and encoding.max.tolist() == [[63.5], [31.75]]
    assert encoding.signed and encoding.symmetry and encoding.block_size is None
    half = same.to(torch.float16)
    assert half.scale.dtype == half.offset.dtype == torch.float16 and same.to("cpu") is same
    with pytest.raises(RuntimeError, match="has a float type"):
        same.to(torch.int8)
    x = torch.tensor([[0.6, -3.1], [1.0, 9.0]])
    assert same.quantize(x).tolist() == [[1.0, -6.0], [4.0, 36.0]]
    assert same.quantize_dequantize(x).tolist() == [[0.5, -3.0], [1.0, 9.0]]
    made = Q.affine.QuantizeDequantize.from_encodings(encoding)
    assert torch.equal(made.get_scale(), scale) and made.get_scale(torch.float16).dtype == torch.float16
    again = QDQ((2, 1), 4, False)
    again.set_legacy_encodings(made.get_legacy_encodings())
    assert torch.equal(plain(again(x)), plain(made(x))) and again.symmetric
    for quantizer in (
        FLOAT(dtype=torch.float8_e4m3fn),
        GROUPED((2, 2), 4, True, 8, block_size=(1, 1), block_grouping=(1, 2)),
    ):
        with quantizer.compute_encodings():
            quantizer(x)
        copied = type(quantizer).from_encodings(quantizer.get_encodings())
        assert torch.equal(plain(copied(x)), plain(quantizer(x)))
    assert quantizer.get_per_block_integer_scale().max().item() == 16
    assert Q.affine.QuantizeDequantize.__mro__[1] is Q.AffineQuantizerBase


def test_missing_names_are_listed():
    """docs/migrating.md names everything public of AIMET that is missing here, and nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
    table = page.split("Missing, each with what takes its place:")[1].split("AIMET's own tests")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {name for row in rows for name in re.findall("`([^`]+)`", row)}
    affine, float8 = ranged(), FLOAT(dtype=torch.float8_e5m2)
    made = (affine.get_encodings(), float8.get_encodings(), float8, affine)
    missing = {name for name in VECTORS["layers"] if not hasattr(Q.nn, name)} - {"QuantizedTensor"}
    missing |= {name for name in VECTORS["mixin"] if not hasattr(Q.nn.QuantizedLinear(1, 1), name)}
    for path in VECTORS["names"]:
        home, name, *member = path.split(".")
        held = getattr(getattr(Q, home), name, None)
        if held is None:
            missing.add(name)
        elif member and not hasattr(held, member[0]):
            one = next((one for one in made if isinstance(one, held) or issubclass(held, type(one))), affine)
            if not hasattr(one, member[0]):
                missing.add(member[0])
    assert missing == listed


def test_the_documents_example_runs():
    """The example of AIMET's page with parameters assigned by hand; the other one is the first case."""
    qdq = QDQ(shape=(5, 2), bitwidth=8, symmetric=False, block_size=(1, 5))
    assert not qdq.is_initialized()
    qdq.min, qdq.max = nn.Parameter(-torch.ones_like(qdq.min)), nn.Parameter(torch.ones_like(qdq.max))
    assert qdq.is_initialized()
    y = qdq(torch.randn(5, 10) * 3)
    assert isinstance(y, Q.DequantizedTensor) and "grad_fn=<AliasBackward0>" in repr(y)
    assert {round(float(plain(y).min()), 4), round(float(plain(y).max()), 4)} == {-0.9961, 1.0039}
    assert list(inspect.signature(FLOAT).parameters)[4] == "dtype"


@Q.QuantizationMixin.implements(nn.Bilinear)
class QuantizedProduct(Q.QuantizationMixin, nn.Bilinear):
    """A user's quantized module, with its own lists and forward."""

    def __quant_init__(self):
        super().__quant_init__()
        self.input_quantizers = nn.ModuleList([None, None])

    def forward(self, input1, input2):
        """Quantize both inputs, and the weight."""
        first, second = (
            x if quantizer is None else quantizer(x)
            for quantizer, x in zip(self.input_quantizers, (input1, input2), strict=True)
        )
        with self._patch_quantized_parameters():
            return nn.Bilinear.forward(self, plain(first), plain(second))


def test_quantized_modules():
    """Quantizers of inputs, parameters and outputs act; parameters stay the module's own."""
    layer = nn.Linear(4, 3)
    made = Q.QuantizationMixin.from_module(layer)
    assert type(made) is Q.nn.QuantizedLinear and made.weight is layer.weight
    x = torch.randn(5, 4)
    assert torch.equal(made(x), layer(x))
    made.param_quantizers["weight"] = QDQ((3, 1), 4, True)
    made.input_quantizers[0] = ranged(-2.0, 2.0)
    made.output_quantizers[0] = ranged(-4.0, 4.0, bits=16)
    weight = made.param_quantizers["weight"]
    y = made(x)
    given = plain(made.input_quantizers[0](x)), plain(weight(layer.weight))
    expected = nn.functional.linear(*given, layer.bias)
    assert torch.equal(plain(y), plain(made.output_quantizers[0](expected)))
    assert isinstance(y, Q.DequantizedTensor) and made.weight is layer.weight
    y.sum().backward()
    assert layer.weight.grad is not None and weight.min.grad is not None
    bilinear = Q.QuantizationMixin.from_module(nn.Bilinear(2, 2, 1))
    assert type(bilinear) is QuantizedProduct
    bilinear.input_quantizers[1] = ranged(bits=1)
    assert bilinear(torch.ones(1, 2), torch.ones(1, 2)).shape == (1, 1)
    again = pickle.loads(pickle.dumps(made))
    assert torch.equal(plain(again(x)), plain(y))
    nn.utils.prune.random_unstructured(again, "weight", 0.5)
    assert again(x).shape == (5, 3) and not torch.equal(plain(again(x)), plain(y))


def test_modules_export():
    """A calibrated network exports to Q/DQ, without its tensors' types; ONNX Runtime gives its numbers."""
    import onnxruntime

    made = network(Q, Q.nn)[:5]
    x = torch.randn(3, 2, 4, 4)
    model = export_torch(made, (x,))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("QuantizeLinear") == 3 and kinds.count("DequantizeLinear") == 5
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    # A sum that lies between two steps may round to either; none does here.
    assert np.allclose(found, plain(made(x)).numpy(), atol=1e-6)
    unset = nn.Sequential(QDQ((), 8, True))
    with pytest.raises(errors.StatisticsError, match="quantizer '0': it has no range yet"):
        export_torch(unset, (x,))
    with pytest.raises(errors.SpecError, match="Quantize alone cannot be exported"):
        export_torch(nn.Sequential(Q.affine.Quantize.from_encodings(made[2].get_encodings())), (x,))
    with compute_encodings(unset):
        unset(x)
    assert unset[0].is_initialized() and "frozen" not in dict(unset[0].named_modules())


def test_habits_of_torch():
    """torch.export, torch.fx, functional_call, copies of DataParallel, autocast and averages work."""
    made, x = network(Q, Q.nn).eval(), torch.randn(3, 2, 4, 4)
    expected = plain(made(x))
    assert torch.equal(plain(torch.export.export(made, (x,)).module()(x)), expected)
    assert torch.equal(plain(torch.fx.symbolic_trace(nn.Sequential(made[2]))(x)), plain(made[2](x)))
    assert torch.equal(plain(torch.optim.swa_utils.AveragedModel(made)(x)), expected)
    quantizer = ranged()
    halved = {"min": torch.tensor(-0.5), "max": torch.tensor(0.5)}
    largest = torch.func.functional_call(quantizer, halved, (x * 9,)).max().item()
    assert largest == pytest.approx(0.5, abs=0.01)
    replica = quantizer._replicate_for_data_parallel()
    replica.min, replica.max = quantizer.min * 1, quantizer.max * 1
    assert torch.equal(plain(replica(x)), plain(quantizer(x)))
    with torch.autocast("cpu", torch.bfloat16):
        assert made[4](torch.randn(2, 8)).dtype == torch.bfloat16
    with pytest.raises(errors.ModelError, match="torch.jit.script cannot compile"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script is deprecated itself
        torch.jit.script(quantizer)


def test_compiled_quantizers_are_the_same():
    """torch.compile(fullgraph=True) gives the numbers and gradients of the quantizer."""
    quantizer, x = ranged(shape=(4, 1)), torch.randn(4, 6)
    quantizer(x).sum().backward()
    expected = quantizer.min.grad.clone()
    quantizer.zero_grad()
    with warnings.catch_warnings():
        # torch's compiler makes an instance of autograd.Function itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = torch.compile(quantizer, fullgraph=True, backend="eager")
        y = compiled(x)
    assert torch.equal(plain(y), plain(quantizer(x)))
    y.sum().backward()
    assert torch.equal(quantizer.min.grad, expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_product_with_a_number_keeps_its_encoding(symmetric):
    """As in AIMET, values times a number are on the grid whose scale is scaled; a sign mirrors the offset."""
    quantizer = QDQ((), 8, symmetric)
    quantizer.set_range(-1.0, 2.0)
    with torch.no_grad():
        values = quantizer(torch.linspace(-1.5, 2.5, 41))
    scale = quantizer.get_scale().detach()
    ways = {2.0: values * 2, 3.0: 3 * values, 0.3: torch.mul(values, 0.3), -0.5: values / -2}
    for factor, made in ways.items():
        if factor < 0 and symmetric:  # -128 has no mirror
            assert type(made) is torch.Tensor
            continue
        assert torch.equal(made.encoding.scale, scale / 2 if factor < 0 else scale * factor)
        torch.testing.assert_close(plain(made.quantize().dequantize()), plain(values) * factor)
    floored = torch.div(values, 2, rounding_mode="floor")
    for made in (values * 0, values * torch.tensor(2.0), values + 1, floored):
        assert type(made) is torch.Tensor


BLOCKS = [
    ((4,), (3,), (12,)),
    ((5, 2), (1, 5), (5, 10)),
    ((1, 2), (-1, 4), (3, 8)),
    ((2, 1, 2), (2, 3, 4), (4, 3, 8)),
    ((4, 2, 1, 1), (1, 2, 3, 3), (4, 4, 3, 3)),
    ((4, 2, 1, 1), (1, 2, -1, -1), (4, 4, 3, 3)),
    ((2, 2, 1, 2), (-1, -1, -1, -1), (4, 4, 3, 6)),
]
"""Shape of min and max, block sizes, and shape of the input."""


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("shape", "sizes", "input_shape"), BLOCKS)
def test_blocks_of_any_rank(shape, sizes, input_shape, symmetric, bits):
    """Element j has the scale and offset of block i_d = floor(j_d / B_d); -1 is what fits."""
    x = torch.randn(input_shape, generator=torch.Generator().manual_seed(0))
    quantizer = QDQ(shape, bits, symmetric, block_size=sizes)
    with quantizer.compute_encodings():
        quantizer(x)
    scale, offset = (end.detach().numpy() for end in (quantizer.get_scale(), quantizer.get_offset()))
    values, wanted = x.numpy(), np.empty(input_shape, np.float32)
    full = [n // m if size == -1 else size for n, m, size in zip(input_shape, shape, sizes, strict=True)]
    for j in np.ndindex(*input_shape):
        i = tuple(at // size for at, size in zip(j, full, strict=True))
        integer = np.clip(np.rint(values[j] / scale[i]) - offset[i], quantizer.qmin, quantizer.qmax)
        wanted[j] = (integer + offset[i]) * scale[i]
    found = plain(quantizer(x).dequantize()).numpy()
    assert np.array_equal(found, wanted)
    for block in np.ndindex(*shape):  # min and max are the least grid that holds the block and 0
        part = values[tuple(slice(i * size, (i + 1) * size) for i, size in zip(block, full, strict=True))]
        low, high = min(part.min(), 0), max(part.max(), 0)
        if symmetric:
            step = max(low / quantizer.qmin, high / quantizer.qmax)
            low, high = step * quantizer.qmin, step * quantizer.qmax
        ends = [float(end.detach()[block]) for end in (quantizer.min, quantizer.max)]
        assert ends == pytest.approx([low, high], rel=1e-6)  # float32
