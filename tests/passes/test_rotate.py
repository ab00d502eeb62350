"""Rotations: where they are, and that ONNX Runtime computes the same with them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from builders import Arrays, build, constants, square, weights
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, numpy_helper
from random_graphs import random_feed, random_models
from transformer_families import FAMILIES, SIZE, WIDTH, WORDS, build_family, draw_feed

from onnxfq.graph.channels.rotations import Rotations, find_rotations
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.passes.rotate import ROTATED, Rotated, rotate
from onnxfq.runtime.session import Session
from onnxfq.runtime.type_inference import with_run_ranks

LAYERS = 2
POSTPONED = {
    "Gemma": "the gain of 'mul_48' is in front of Add 'add_49'",
    "Whisper": "the stream begins behind Mul 'mul_4', which nothing turns",
    "BERT": "the gain of 'layernormalization_2' is in front of Add 'add_24'",
}
"""Families without a stream that turns, and the first reason."""


def rotated(proto: onnx.ModelProto, feed: Arrays | None = None) -> tuple[Model, Rotations, Rotated]:
    """Return a model, what may turn in it, and the model with all of it turned; `feed` tells ranks."""
    model = load(proto)
    rotations = find_rotations(with_run_ranks(model, feed, everywhere=True) if feed else model)
    return model, rotations, rotate(model, rotations, rotations.places)


def assert_same(before: Model, after: Model, feed: Arrays, least: float = 0) -> None:
    """Compare outputs without fusions; sums in another order differ by 1e-5 of the largest value."""
    results = (Session(model.proto, 1, exact=True).run(feed) for model in (before, after))
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(np.abs(want).max(), least))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_function_stays(name: str) -> None:
    """The outputs stay on any input, no node is new, and every weight that turns has other values.

    A stream turns if no gain or Gelu stops it, the values of each head, and its queries without positions.
    """
    model, rotations, made = rotated(build_family(name, LAYERS), draw_feed(name))
    for seed in range(3):
        assert_same(model, made.model, draw_feed(name, seed))
    nodes = [[(node.op_type, *node.output) for node in one.proto.graph.node] for one in (model, made.model)]
    assert nodes[0] == nodes[1]
    arrays = [dict(one.constants) for one in (model, made.model)]
    changed = [name for name in arrays[0] if arrays[0][name].raw_data != arrays[1][name].raw_data]
    assert len(changed) >= LAYERS * 2
    family = FAMILIES[name]
    heads = LAYERS * family.key_heads * (1 if family.rotary else 2)
    streams = {} if name in POSTPONED else {WIDTH: 1}
    assert Counter(len(place.channels) for place in rotations.places) == {SIZE: heads, **streams}
    if streams:
        assert not rotations.blocked
        (stream,) = (place for place in rotations.places if len(place.channels) == WIDTH)
        assert stream.keeps_ones == family.norm.startswith("layer")
    else:
        assert next(iter(rotations.blocked.values())) == POSTPONED[name]


def test_a_table_that_is_a_product_too_becomes_two() -> None:
    """The last product takes the last gain up, and the table does not."""
    model, _, made = rotated(build_family("Llama", LAYERS))
    assert made.copied == 4 * WORDS * WIDTH
    assert len(made.model.constants) == len(model.constants) + 1
    assert any(name.endswith(ROTATED) for name in made.model.constants)


def test_a_large_channel_is_shared_out() -> None:
    """A norm of a stream with one channel of 40 times the others has almost nothing else."""
    proto = build_family("Phi3", LAYERS)
    (table,) = (one for one in proto.graph.initializer if list(one.dims) == [WORDS, WIDTH])
    values = numpy_helper.to_array(table).copy()
    values[:, 3] *= 40
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    model, rotations, made = rotated(proto)
    (stream,) = (place for place in rotations.places if len(place.channels) == WIDTH)
    read = next(node for node in model.proto.graph.node if node.name == stream.readers[0]).input[0]
    peaks = []
    for one in (model, made.model):
        shown = onnx.ModelProto()
        shown.CopyFrom(one.proto)
        shown.graph.output.append(onnx.helper.make_tensor_value_info(read, onnx.TensorProto.FLOAT, None))
        channels = np.abs(Session(shown, 1, exact=True).run(draw_feed("Phi3"))[-1]).max(axis=(0, 1))
        peaks.append(float(channels.max() / np.median(channels)))
    assert peaks[0] > 5 > 2 > peaks[1]


@pytest.mark.parametrize("name", ["Llama", "ViT"])
def test_half_weights_are_rounded_once(name: str) -> None:
    """Weights in float16 are what the model in float32 has, rounded."""
    kinds = {TensorProto.FLOAT16: np.float16, TensorProto.FLOAT: np.float32}
    protos = {kind: build_family(name, LAYERS) for kind in kinds}
    for kind, proto in protos.items():
        for tensor in proto.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                half = numpy_helper.to_array(tensor).astype(np.float16)
                tensor.CopyFrom(numpy_helper.from_array(half.astype(kinds[kind]), tensor.name))
    single, rotations, made = rotated(protos[TensorProto.FLOAT])
    halves = rotate(replace(single, proto=protos[TensorProto.FLOAT16]), rotations, rotations.places)
    want, found = constants(made.model.proto), constants(halves.model.proto)
    assert want.keys() == found.keys()
    for constant, values in found.items():
        if values.dtype == np.float16:
            off = np.abs(values - want[constant].astype(np.float64))
            step = np.spacing(np.abs(values)).astype(np.float64)
            assert (off <= 0.501 * step).all()  # float32 is rounded too


BLOCKERS = {
    "an activation": ("[a] h = MatMul (x, w) r = Relu (h) [b] y = MatMul (r, v)", False),
    "two products": ("[a] h = MatMul (x, w) [b] y = MatMul (h, v)", True),
    "a factor of each channel": ("[a] h = MatMul (x, w) g = Mul (h, s) [b] y = MatMul (g, v)", True),
    "a divisor of each channel": ("[a] h = MatMul (x, w) g = Div (h, s) [b] y = MatMul (g, v)", True),
    "a number": ("[a] h = MatMul (x, w) g = Mul (h, one) [b] y = MatMul (g, v)", True),
    "a number that is added": ("[a] h = MatMul (x, w) g = Add (h, one) [b] y = MatMul (g, v)", True),
    "a mean": (
        "[a] h = MatMul (x, w) m = ReduceMean <axes = [-1]> (h) d = Sub (h, m) [b] y = MatMul (d, v)",
        True,
    ),
    "an output": ("[a] h = MatMul (x, w) [b] z = MatMul (h, v) y = Add (z, h)", False),
    "a maximum": (
        "[a] h = MatMul (x, w) m = ReduceMax <axes = [-1]> (h) d = Sub (h, m) [b] y = MatMul (d, v)",
        False,
    ),
    "parts": (
        "[a] h = MatMul (x, w) p, q = Split <axis = 1> (h) r = Relu (p) c = Concat <axis = 1> (r, q) "
        "[b] y = MatMul (c, v)",
        True,
    ),
    "a square that something else reads": (
        "[a] h = MatMul (x, w) e = Mul (h, h) m = ReduceMean <axes = [-1]> (e) d = Div (h, m) "
        "[b] z = MatMul (d, v) y = Add (z, e)",
        False,
    ),
}
"""A chain between two products, and whether any of its channels may turn."""


@pytest.mark.parametrize("name", BLOCKERS)
def test_what_passes_a_rotation_on(name: str) -> None:
    """ONNX Runtime computes the same; what mixes channels otherwise keeps them as they are."""
    body, turns = BLOCKERS[name]
    more = {"v": weights(4, 4, seed=1), "s": np.float32([0.5, 2, 3, -1]), "one": np.float32(1.5)}
    model, rotations, made = rotated(square(body, more))
    assert bool(rotations.places) == turns
    assert_same(model, made.model, {"x": weights(5, 4, seed=2)})
    turned = made.model.constants
    assert not turns or any(turned[n].raw_data != one.raw_data for n, one in model.constants.items())


@pytest.mark.parametrize(("groups", "turns"), [(1, True), (2, False), (4, False)])
def test_convolutions_turn_all_channels_or_none(groups: int, turns: bool) -> None:
    """With groups a window sums over some channels, and those before and behind it stay as they are."""
    proto = build(
        f"""g (float[N,4,6,6] x) => (float[N,4,6,6] y) {{
            [a] h = Conv (x, u, b) [b] k = Conv <group = {groups}, pads = [1,1,1,1]> (h, v)
            [c] y = Conv (k, w) }}""",
        {"u": weights(4, 4, 1, 1), "w": weights(4, 4, 1, 1, seed=1), "b": weights(4)}
        | {"v": weights(4, 4 // groups, 3, 3)},
    )
    model, rotations, made = rotated(proto)
    assert [len(place.channels) for place in rotations.places] == [4, 4] * turns
    assert_same(model, made.model, {"x": weights(2, 4, 6, 6, seed=2)})


def test_small_gains_do_not_divide_a_shift() -> None:
    """A gain of almost 0 would make the shift behind the norm as large as it likes."""
    gain = np.ones(8, np.float32)
    gain[2], gain[3] = 1e-6, 2.0
    arrays = {"w": weights(4, 8), "g": gain, "b": weights(8), "v": weights(8, 4, seed=1)}
    body = "[a] h = MatMul (x, w) [n] l = LayerNormalization (h, g, b) [c] y = MatMul (l, v)"
    model, rotations, made = rotated(square(body, arrays))
    assert rotations.blocked == {"l": "gain 'g' is too small in a channel to divide the shift behind it"}
    assert_same(model, made.model, {"x": weights(5, 4, seed=2)})


@pytest.mark.whole
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_models())
def test_random_graphs_keep_their_function(proto: onnx.ModelProto) -> None:
    """Random graphs with bodies, shared weights and odd names compute the same with all places turned."""
    model, _, made = rotated(proto)
    feed = random_feed(proto, 1, True)
    assert_same(model, made.model, feed, least=1e-3)
