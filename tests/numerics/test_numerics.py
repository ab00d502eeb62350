"""The NumPy arithmetic: ONNX's own vectors first, then properties, then the rules of the parameters."""

from __future__ import annotations

import functools
import warnings

import keyword_numerics as numerics
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loops import loop_over
from onnx import TensorProto, helper, numpy_helper

from onnxfq.errors import SpecError
from onnxfq.numerics import affine, qparams
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QTYPES, qtype_by_name


@functools.cache
def node_cases(prefix):
    """ONNX's node test cases whose quantized type is one of ours, by name; making them takes seconds."""
    with warnings.catch_warnings():  # building the other 1,800 cases divides by zero and casts NaN
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [c for c in collect_testcases(None) if c.name.startswith(f"test_{prefix}")]
    integers = {q.onnx_type for q in QTYPES.values()}
    ours = {}
    for case in cases:
        graph = case.model.graph
        values = graph.output if prefix == "quantizelinear" else graph.input
        if values[0].type.tensor_type.elem_type in integers:
            ours[case.name] = case
    return ours


def as_array(value):
    """A stored input or output as an array; 4-bit values come as TensorProto."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def node_arguments(case):
    """Inputs, expected output and the attributes axis (default 1) and block_size of a case."""
    inputs, outputs = case.data_sets[0]
    attributes = {a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute}
    where = {"axis": attributes.get("axis", 1), "block_size": attributes.get("block_size")}
    return [as_array(v) for v in inputs], as_array(outputs[0]), where


def test_quantize_gives_onnx_vectors():
    """Every QuantizeLinear vector of ONNX comes out to the bit; onnx 1.23 has 8 integer cases."""
    cases = node_cases("quantizelinear")
    assert len(cases) >= 8
    for name, case in cases.items():
        (x, scale, *zero_point), expected, where = node_arguments(case)
        kind = case.model.graph.output[0].type.tensor_type.elem_type
        qtype = next(q for q in QTYPES.values() if q.onnx_type == kind)
        actual = numerics.quantize(x, scale, *zero_point, qtype=qtype, **where)
        assert actual.dtype == qtype.dtype, name
        assert np.array_equal(actual.astype(np.int32), expected.astype(np.int32)), name


def test_dequantize_gives_onnx_vectors():
    """Every DequantizeLinear vector of ONNX comes out to the bit; onnx 1.23 has 7 integer cases."""
    cases = node_cases("dequantizelinear")
    assert len(cases) >= 7
    for name, case in cases.items():
        (q, scale, *zero_point), expected, where = node_arguments(case)
        actual = numerics.dequantize(q, scale, *zero_point, **where)
        assert actual.dtype == np.float32, name
        assert np.array_equal(actual.astype(expected.dtype), expected), name


@loop_over("rounding", numerics.ROUNDINGS)
@loop_over("qtype", ["int2", "uint3", "int4", "int8", "uint8", "int8[-127,127]", "int16", "float8e5m2"])
def test_fake_quantize_is_quantize_then_dequantize(qtype, rounding):
    """The formula without integers equals the two steps with them."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(-600, 600) / 2, rng.standard_normal(500) * 1e6]).astype(np.float32)
    kind = qtype_by_name(qtype)
    zero_point = 0 if kind.is_float else (kind.qmin + kind.qmax) // 3
    for scale in (1.0, 0.37, 1e-3):
        q = numerics.quantize(x, scale, zero_point, qtype=qtype, rounding=rounding)
        actual = numerics.fake_quantize(x, scale, zero_point, qtype=qtype, rounding=rounding)
        expected = numerics.dequantize(q, scale, zero_point)
        assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


values = st.floats(-(2.0**60), 2.0**60, width=32)
scales = st.floats(2.0**-20, 2.0**20, width=32)


@given(
    x=hnp.arrays(np.float32, 20, elements=values), scale=scales, qtype=st.sampled_from(list(QTYPES.values()))
)
def test_fake_quantize_twice_is_once(x, scale, qtype):
    """Points of the grid stay where they are, for every type up to 16 bits."""
    once = numerics.fake_quantize(x, scale, qtype=qtype)
    assert np.array_equal(numerics.fake_quantize(once, scale, qtype=qtype), once)


@given(x=hnp.arrays(np.float32, 20, elements=values), scale=scales)
def test_error_is_half_a_step_inside_and_saturates_outside(x, scale):
    """Inside the grid no value moves by more than half a step; outside it lands on the end."""
    y = numerics.fake_quantize(x, scale, qtype="int8").astype(np.float64)
    steps = x.astype(np.float64) / scale
    inside = (steps >= -128) & (steps <= 127)
    # Two float32 roundings, of the quotient and of the product, each 2^-24 of at most 128 steps.
    assert (np.abs(y - x)[inside] <= (0.5 + 2**-16) * scale).all()
    assert (y[steps > 127] == np.float32(scale) * 127).all()
    assert (y[steps < -128] == np.float32(scale) * -128).all()


def test_halves():
    """half_even goes to the even neighbour, half_up always up, -0 becomes +0."""
    x = np.array([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5], np.float32)
    even = numerics.fake_quantize(x, 1, qtype="int8")
    up = numerics.fake_quantize(x, 1, qtype="int8", rounding="half_up")
    assert even.tolist() == [-2, -2, 0, 0, 0, 2, 2]
    assert up.tolist() == [-2, -1, 0, 0, 1, 2, 3]
    assert not np.signbit(even[2:5]).any() and not np.signbit(up[2:4]).any()


def test_special_values():
    """Infinities saturate, NaN stays NaN; as an integer NaN is the zero point."""
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert numerics.fake_quantize(x, 0.5, 10, qtype="uint8").tolist()[:2] == [122.5, -5]
    assert np.isnan(numerics.fake_quantize(x, 0.5, 10, qtype="uint8")[2])
    assert numerics.quantize(x, 0.5, 10, qtype="uint8").tolist() == [255, 0, 10]


@pytest.mark.parametrize(
    ("shape", "params", "axis", "block_size"),
    [
        ((4, 6), (), None, None),
        ((4, 6), (1, 1), None, None),
        ((4, 6), (6,), 1, None),
        ((4, 6), (4,), -2, None),
        ((4, 6), (4, 3), None, None),
        ((4, 7), (4, 3), 1, 3),
        ((4, 7), (4, 2), 1, 5),
        ((5, 7), (2, 3), None, None),
        ((7,), (3,), None, None),
        ((2, 0, 3), (2, 1, 3), None, None),
    ],
    ids=str,
)
def test_expand_params_follows_the_index_formula(shape, params, axis, block_size):
    """Element j uses the parameter at floor(j_d / B_d), spelled out element by element."""
    param = np.arange(1, np.prod(params, dtype=int) + 1, dtype=np.float32).reshape(params)
    expanded = numerics.expand_params(param, shape, axis=axis, block_size=block_size)
    assert expanded.shape == shape
    for index in np.ndindex(shape):
        if param.size == 1:
            expected = param.reshape(())
        elif param.ndim == 1 and len(shape) > 1:
            expected = param[index[axis]]
        else:
            blocks = [-(-n // p) for n, p in zip(shape, params, strict=True)]
            if block_size:
                blocks[axis] = block_size
            expected = param[tuple(j // b for j, b in zip(index, blocks, strict=True))]
        assert expanded[index] == expected


@pytest.mark.parametrize(
    ("params", "axis", "block_size", "words"),
    [
        ((3,), None, None, ["[3]", "[4, 6]", "axis"]),
        ((3,), 1, None, ["[3]", "[4, 6]", "axis 1", "give 6"]),
        ((6,), 2, None, ["axis 2", "rank 2"]),
        ((4, 4), None, None, ["[4, 4]", "dimension 1", "blocks of 2", "needs 3"]),
        ((4, 3), 1, 4, ["dimension 1", "blocks of 4", "needs 2"]),
        ((1, 4, 6), None, None, ["[1, 4, 6]", "as many dimensions"]),
    ],
    ids=str,
)
def test_expand_params_refuses_shapes_that_do_not_fit(params, axis, block_size, words):
    """The message names both shapes and what would fit."""
    with pytest.raises(SpecError) as caught:
        numerics.expand_params(np.ones(params), (4, 6), axis=axis, block_size=block_size)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be finite and positive"),
        ({"scale": -1.0}, "scale must be finite and positive in float32, found -1.0"),
        ({"scale": np.nan}, "found nan"),
        ({"scale": np.inf}, "found inf"),
        ({"scale": 1e-60}, "found 1e-60"),
        ({"scale": 1e-40, "arithmetic": "reciprocal"}, "finite reciprocal"),
        ({"scale": 1, "zero_point": 128}, r"in \[-128, 127\] for int8, found 128"),
        ({"scale": 1, "zero_point": 0.5}, "found 0.5"),
        ({"scale": 1, "rounding": "half_evn"}, "unknown rounding 'half_evn'; nearest: half_even"),
        ({"scale": 1, "arithmetic": "divid"}, "nearest: divide"),
        ({"scale": 1, "qtype": "int17"}, "unknown qtype 'int17'"),
    ],
)
def test_parameters_must_keep_their_rules(options, message):
    """A broken parameter is named before anything is computed."""
    options = {"qtype": "int8", **options}
    scale = options.pop("scale")
    fractions_are_fine = options.get("zero_point") == 0.5
    for function in (numerics.quantize, *([] if fractions_are_fine else [numerics.fake_quantize])):
        with pytest.raises(SpecError, match=message):
            function(np.zeros(3, np.float32), scale, **options)


def test_x_must_be_float32():
    """A float64 tensor would round twice."""
    with pytest.raises(SpecError, match="float32, float16 or bfloat16, got float64"):
        numerics.quantize(np.zeros(3), 1, qtype="int8")


@given(data=st.data())
def test_quantize_takes_the_blocks_of_fake_quantize(data):
    """For N-D blocks the integers of `quantize` less the zero point, times the scale, are fake_quantize."""
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    blocks = [data.draw(st.sampled_from([-1, 1, 2, 3, 7])) for _ in shape]
    counts = Layout(Granularity(block_shape=tuple(blocks)), shape).scale_shape
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.normal(size=shape).astype(np.float32)
    scale = rng.uniform(0.01, 0.1, counts).astype(np.float32)
    zero_point = data.draw(st.sampled_from([0, rng.integers(-5, 5, counts)]))
    options = {"qtype": "int8", "block_shape": blocks}
    q = numerics.quantize(x, scale, zero_point, **options)
    spread = [
        numerics.expand_params(np.broadcast_to(p, counts), shape, block_shape=blocks)
        for p in (scale, zero_point)
    ]
    expected = (q.astype(np.float32) - spread[1].astype(np.float32)) * spread[0]
    np.testing.assert_array_equal(numerics.fake_quantize(x, scale, zero_point, **options), expected)


NO_NUMBERS = ["a", None, [[1, 2], [3]], object(), {"a": 1}, [None], 1j, np.datetime64("2020"), ["x"]]
ARRAYS = {"x": np.ones((4, 4), np.float32), "scale": 1.0, "zero_point": 0, "qtype": "int8"}
RANGE = {"rmin": -1.0, "rmax": 1.0, "qtype": "int8", "symmetric": True}
ARITHMETIC = [
    (affine.quantize, {**ARRAYS, "rounding": "half_even", "arithmetic": "divide"}),
    (affine.fake_quantize, {**ARRAYS, "rounding": "half_even", "arithmetic": "divide"}),
    (affine.dequantize, {"q": np.ones(3, np.int8), "scale": 1.0, "zero_point": 0}),
    (qparams.choose_qparams, RANGE),
    (qparams.adjust_min_max, RANGE),
]


@loop_over(("function", "sound"), ARITHMETIC)
@loop_over("wrong", NO_NUMBERS)
def test_what_is_no_number_is_a_spec_error(function, sound, wrong):
    """An argument that is not what it has to be is named in one line, whatever it is."""
    function(**sound)
    for name in sound.keys() - {"symmetric"}:
        with pytest.raises(SpecError) as caught:
            function(**{**sound, name: wrong})
        assert name in str(caught.value)
