"""Encodings: exact through files, every broken rule in one line."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyword_numerics import fake_quantize

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.errors import PlanError, SpecError
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

INT8 = QuantSpec(qtype="int8")
PER_AXIS = QuantSpec(qtype="int8", axis=0)
UINT8 = QuantSpec(qtype="uint8", symmetric=False)
MX = QuantSpec(qtype="int8", axis=0, scale_type="e8m0")
NVFP4 = QuantSpec(qtype="float4e2m1", axis=0, scale_type="e4m3")
DYNAMIC = QuantSpec(qtype="int8", axis=0, dynamic=True)
FRACTIONAL = QuantSpec(qtype="uint8", symmetric=False, zero_point="fractional")


def f32(*values):
    """Values as a float32 array."""
    return np.asarray(values, np.float32)


def i32(*values):
    """Values as an int32 array."""
    return np.asarray(values, np.int32)


@given(
    st.lists(st.floats(np.finfo(np.float32).tiny, np.finfo(np.float32).max, width=32), min_size=1, max_size=9)
)
def test_scales_are_exact_through_json(scales):
    """A float32 scale comes back from text with the same bits."""
    encoding = Encoding.of("w", PER_AXIS, f32(*scales), i32(*[0] * len(scales)))
    again = Encoding.model_validate_json(encoding.model_dump_json())
    assert again == encoding
    assert again.scale.tobytes() == f32(*scales).tobytes()


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (INT8, ()),
        (PER_AXIS, (5,)),
        (QuantSpec(qtype="int4", axis=1, block_size=4), (3, 2)),
        (QuantSpec(qtype="uint16", symmetric=False, axis=0), (4,)),
        (QuantSpec(qtype="float8e4m3fn", axis=0), (4,)),
        (QuantSpec(qtype="int8[-127,127]", block_shape=(2, -1, 3), power_of_two=True), (2, 1, 3)),
    ],
    ids=str,
)
def test_files_are_exact(tmp_path, spec, shape):
    """Encodings, saved and loaded, are equal, arrays and shapes included."""
    rng = np.random.default_rng(1)
    low = -rng.random(shape) * (not spec.symmetric)
    arrays = choose_qparams(low, np.asarray(rng.random(shape) + 0.1), spec.qtype, spec.symmetric)
    encodings = Encodings(model_sha256="ab" * 32, encodings=(Encoding.of("a", spec, *arrays),))
    encodings.save(tmp_path / "e.json")
    loaded = Encodings.load(tmp_path / "e.json")
    assert loaded == encodings
    assert loaded["a"].scale.dtype == np.float32 and loaded["a"].zero_point.dtype == np.int32
    assert np.array_equal(loaded["a"].scale, arrays[0]) and loaded["a"].scale.shape == shape
    assert np.array_equal(loaded["a"].zero_point, arrays[1])


def test_range_is_that_of_fake_quantized_infinities():
    """The range ends where saturation starts: what far values are rounded to, in any group."""
    spec = QuantSpec(qtype="uint8", symmetric=False, axis=0)
    encoding = Encoding.of("x", spec, f32(0.5, 0.25), i32(10, 200))
    far = np.asarray([[-1e9, 1e9]] * 2, np.float32)
    reached = fake_quantize(far, encoding.scale, encoding.zero_point, qtype=spec.qtype, axis=0)
    assert (encoding.rmin, encoding.rmax) == (reached.min(), reached.max())


@pytest.mark.parametrize(
    ("spec", "scale", "zero_point", "words"),
    [
        pytest.param(
            INT8, f32(0.0).reshape(()), i32(0).reshape(()), "scale must be finite and positive", id="zero"
        ),
        pytest.param(PER_AXIS, f32(1, -1), i32(0, 0), "scale must be finite and positive", id="negative"),
        pytest.param(PER_AXIS, f32(1, np.nan), i32(0, 0), "scale must be finite and positive", id="nan"),
        pytest.param(PER_AXIS, f32(1, np.inf), i32(0, 0), "scale must be finite and positive", id="infinite"),
        pytest.param(
            UINT8, np.asarray(1e300), np.asarray(0), "scale must be finite and positive", id="beyond float32"
        ),
        pytest.param(UINT8, np.asarray(1e-60), np.asarray(0), "finite and positive", id="zero in float32"),
        pytest.param(
            UINT8,
            np.asarray(1.0),
            np.asarray(256),
            "every zero_point must lie in uint8 [0, 255]",
            id="zero point outside",
        ),
        pytest.param(
            INT8, np.asarray(1.0), np.asarray(1), "zero_point of a symmetric spec must be 0", id="symmetric"
        ),
        pytest.param(
            PER_AXIS, f32(1, 1), i32(0), "[2] wants 2 values, got 2 scales and 1 zero points", id="counts"
        ),
        pytest.param(
            INT8, f32(1), i32(0), "param_shape [1] does not fit per-tensor; its rank must be 0", id="rank"
        ),
        pytest.param(
            PER_AXIS,
            f32(1).reshape(1, 1),
            i32(0),
            "[1, 1] does not fit per-axis 0; its rank must be 1",
            id="rank 2",
        ),
        pytest.param(
            MX,
            f32(0.5, 0.75),
            i32(0, 0),
            "every scale must be a power of two, found 0.75; calibrate again",
            id="e8m0",
        ),
        pytest.param(
            NVFP4,
            f32(0.5, 0.75),
            i32(0, 0),
            "global_scale belongs to scale_type e4m3, found None with e4m3; calibrate again",
            id="no global scale",
        ),
        pytest.param(
            DYNAMIC,
            f32(0.5, 0.75),
            i32(0, 0),
            "has dynamic scales; leave param_shape, scale and zero_point empty",
            id="dynamic",
        ),
        pytest.param(
            FRACTIONAL,
            np.asarray(1.0),
            np.asarray(255.5),
            "every zero_point must lie in uint8 [0, 255]",
            id="fraction outside",
        ),
    ],
)
def test_broken_rules(spec, scale, zero_point, words):
    """Each broken rule names the tensor, the rule and what was found."""
    with pytest.raises(SpecError) as caught:
        Encoding.of("conv/w", spec, scale, zero_point)
    assert str(caught.value).startswith("tensor 'conv/w': ") and words in str(caught.value)


@pytest.mark.parametrize(
    ("scale", "shared", "words"),
    [
        (f32(0.5, 0.53), 0.5, "every scale must be an e4m3 number times 0.5, found 0.5299"),
        (f32(0.5, 0.75), 0.0, "every scale must be finite and positive"),
        (f32(0.5, 0.75), np.inf, "every scale must be finite and positive"),
    ],
)
def test_broken_global_scales(scale, shared, words):
    """The scales of NVFP4 are e4m3 numbers times one that is finite and positive."""
    with pytest.raises(SpecError) as caught:
        Encoding.of("w", NVFP4, scale, i32(0, 0), shared)
    assert words in str(caught.value)
    assert Encoding.of("w", NVFP4, f32(0.5, 0.75), i32(0, 0), 0.5).block_scales.tolist() == [1, 1.5]


def test_dynamic_encodings():
    """They hold no scales and no range; a global scale goes with scale_type e4m3."""
    one = Encoding.of_running_model("x", DYNAMIC)
    assert (one.scale.size, one.zero_point.size) == (0, 0)
    assert np.isnan(one.rmin) and np.isnan(one.rmax)
    both = NVFP4.model_copy(update={"dynamic": True})
    assert Encoding.of_running_model("x", both, 0.5).global_scale == 0.5


def test_fractional_zero_points_stay_what_they_are():
    """They are floats in the file and float32 as an array; integers stay integers."""
    one = Encoding.of("x", FRACTIONAL, np.asarray(1.0), np.asarray(3.5))
    assert one.zero_point == (3.5,) and one.zero_point.dtype == np.float32
    assert Encoding.model_validate_json(one.model_dump_json()) == one
    assert (one.rmin, one.rmax) == (-3.5, 251.5)
    plain = Encoding.of("x", UINT8, np.asarray(1.0), np.asarray(3))
    assert '"zero_point":[3]' in plain.model_dump_json()


def saved(tmp_path, change=None):
    """A file of one encoding, its content changed."""
    encodings = Encodings(
        model_sha256="ab" * 32, encodings=(Encoding.of("conv/in", INT8, np.asarray(0.5), np.asarray(0)),)
    )
    path = tmp_path / "e.json"
    encodings.save(path)
    content = json.loads(path.read_text())
    if change:
        change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(format="onnxfq.plan/1"), "format: is 'onnxfq.plan/1', wanted is"),
        (lambda c: c.pop("model_sha256"), "model_sha256: Field required"),
        (lambda c: c["encodings"][0].update(scale=[0.0]), "'conv/in': every scale must"),
        (
            lambda c: c["encodings"][0].update(scale=["x"]),
            "encodings.0.scale: must be a list of numbers, got ['x']",
        ),
        (lambda c: c["encodings"][0].update(param_shape=[-1, -1]), "does not fit per-tensor"),
        (
            lambda c: c["encodings"][0]["spec"].update(qtype="int99"),
            "encodings.0.spec.qtype: unknown qtype 'int99'",
        ),
        (
            lambda c: c["encodings"][0].update(zero_point=[0.5], spec={"qtype": "int8", "symmetric": False}),
            "every zero_point must be an integer, found 0.5; round it, or set zero_point: fractional",
        ),
    ],
)
def test_edited_files(tmp_path, change, words):
    """An edited file that breaks a rule is refused in one line with path and field."""
    path = saved(tmp_path, change)
    with pytest.raises(PlanError) as caught:
        Encodings.load(path)
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)


def test_no_such_tensor(tmp_path):
    """A tensor without encoding is refused with the nearest names."""
    encodings = Encodings.load(saved(tmp_path))
    assert encodings["conv/in"].tensor == "conv/in"
    assert "conv/in" in encodings and "conv/inn" not in encodings
    with pytest.raises(PlanError, match="no encoding for tensor 'conv/inn': calibrate .*; nearest: conv/in"):
        encodings["conv/inn"]


def test_a_tensor_is_encoded_once(tmp_path):
    """A file that encodes one tensor twice is refused with its name: which scale would win?"""
    encoding = json.loads(Encoding.of("a", INT8, f32(1.0)[0], i32(0)[0]).model_dump_json())
    content = {"model_sha256": "ab" * 32, "encodings": [encoding, encoding]}
    (tmp_path / "e.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match="tensor 'a' is encoded twice; keep one of the two"):
        Encodings.load(tmp_path / "e.json")


def test_encodings_compare_after_their_arrays_were_read():
    """Reading the arrays leaves nothing behind that equality would trip over."""
    one, two = (Encoding.of("a", PER_AXIS, f32(1, 2), i32(0, 0)) for _ in range(2))
    assert one.scale.tolist() == [1, 2] and one.zero_point.tolist() == [0, 0]
    assert one == two


def test_a_copy_with_other_encodings_finds_those():
    """The cache of one set of encodings does not serve the next."""
    first, second = (Encoding.of(name, INT8, f32(1).reshape(()), i32(0).reshape(())) for name in "ab")
    encodings = Encodings(model_sha256="ab" * 32, encodings=(first,))
    assert encodings["a"] is first
    other = encodings.model_copy(update={"encodings": (second,)})
    assert other["b"] is second and encodings["a"] is first and other != encodings
    with pytest.raises(PlanError, match="no encoding for tensor 'a'"):
        other["a"]


def test_arrays_are_their_own():
    """Nobody changes them: neither who gave them nor who reads them."""
    scale = f32(1, 2)
    one = Encoding.of("w", PER_AXIS, scale, i32(0, 0))
    scale[0] = 5
    assert one.scale.tolist() == [1, 2]
    for array in (one.scale, one.zero_point):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3


def test_equality_and_hash():
    """By all fields, scales to the bit; copies are checked as new ones are."""
    one = Encoding.of("w", PER_AXIS, f32(1, 2), i32(0, 0))
    same = one.model_copy(update={"scale": (1.0, 2.0), "zero_point": [0, 0]})
    assert same == one and hash(same) == hash(one) and len({one, same}) == 1
    assert one.model_copy(update={"scale": np.nextafter(one.scale, f32(9, 9))}) != one
    assert one.model_copy(update={"calibrator": "mse"}) != one != one.model_copy(update={"tensor": "v"})
    assert one.model_dump()["scale"] == (1.0, 2.0) and one.model_dump()["param_shape"] == (2,)
    with pytest.raises(SpecError, match="tensor 'w': every scale must be finite"):
        one.model_copy(update={"scale": f32(1, 0)})


def many():
    """Encodings of every kind, with more scales than a JSON holds."""
    rng = np.random.default_rng(0)
    both = NVFP4.model_copy(update={"dynamic": True})
    uint8 = QuantSpec(qtype="uint8", symmetric=False, axis=1, block_size=4)
    wide = QuantSpec(qtype="uint16", symmetric=False, axis=0, zero_point="fractional")
    scale = (rng.random((300, 400)) + 0.1).astype(np.float32)
    return Encodings(
        model_sha256="ab" * 32,
        encodings=(
            Encoding.of("x", UINT8, np.asarray(0.1), np.asarray(7)),
            Encoding.of("w", QuantSpec(qtype="int4", axis=1, block_size=4), scale, np.zeros(scale.shape)),
            Encoding.of_running_model("d", both, 0.5),
            Encoding.of("a", uint8, scale, rng.integers(0, 256, scale.shape)),
            Encoding.of("f", wide, scale[0], rng.random(400) * 65535),
            Encoding.of("n", NVFP4, f32(0.5, 0.75), i32(0, 0), 0.5).model_copy(update={"calibrator": "mse"}),
        ),
        source="a file",
    )


def test_many_scales_are_exact_through_an_array_file(tmp_path):
    """NumPy reads them apart from the JSON, which is small; loaded they are equal to the bit."""
    made, path = many(), tmp_path / "m.encodings.json"
    assert made.save(path) == (path, tmp_path / "m.encodings.npz")
    assert path.stat().st_size < 5_000 and sorted(tmp_path.iterdir()) == [path, tmp_path / "m.encodings.npz"]
    with np.load(tmp_path / "m.encodings.npz", allow_pickle=False) as arrays:
        scales = [e.scale.ravel() for e in made.encodings if e.param_shape]
        assert arrays["scale"].tobytes() == np.concatenate(scales).tobytes()
    loaded = Encodings.load(path)
    assert loaded == made and loaded["f"].zero_point.dtype == np.float32
    assert [e.scale.shape for e in loaded.encodings] == [e.scale.shape for e in made.encodings]
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.encodings.npz").read_bytes() == (tmp_path / "m.encodings.npz").read_bytes()


def rewrite(path, change):
    """Change the content of a JSON."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def resave(path, **arrays):
    """Write an array file and its hash in the JSON."""
    np.savez(path.with_name("m.encodings.npz"), **arrays)
    digest = hashlib.sha256(path.with_name("m.encodings.npz").read_bytes()).hexdigest()
    rewrite(path, lambda c: c["arrays"].update(sha256=digest))


BROKEN = {
    "missing": (
        lambda path: path.with_name("m.encodings.npz").unlink(),
        "no such file: {folder}/m.encodings.npz, which holds the scales of m.encodings.json; copy",
    ),
    "another": (
        lambda path: path.with_name("m.encodings.npz").write_bytes(b"PK"),
        "{folder}/m.encodings.npz is not the file that m.encodings.json was saved with; copy both together",
    ),
    "pickled": (
        lambda path: resave(path, scale=np.asarray([{}], object)),
        "cannot read {folder}/m.encodings.npz: its header is damaged: it has no shape, or holds Python",
    ),
    "too few": (
        lambda path: resave(path, scale=f32(1), zero_point=f32(1)),
        "its shapes do not fit the scales in m.encodings.npz; save the encodings again",
    ),
    "no arrays": (lambda path: resave(path, other=f32(1)), "encodings.1.scale: Field required"),
    "no hash": (lambda path: rewrite(path, lambda c: c["arrays"].pop("sha256")), "arrays: sha256: Field"),
    "shape": (
        lambda path: rewrite(path, lambda c: c["encodings"][1].update(param_shape=[300, 401])),
        "its shapes do not fit the scales",
    ),
    "no list": (lambda path: rewrite(path, lambda c: c.update(encodings=3)), "encodings: "),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_array_files(tmp_path, name):
    """A missing, other or damaged array file is one line that names it and the remedy."""
    path = tmp_path / "m.encodings.json"
    many().save(path)
    change, words = BROKEN[name]
    change(path)
    with pytest.raises(PlanError) as caught:
        Encodings.load(path)
    assert words.format(folder=tmp_path) in str(caught.value)


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    """Neither file changes when the second cannot be written."""
    path = tmp_path / "m.encodings.json"
    many().save(path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(json, "dumps", lambda *args, **keywords: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        many().model_copy(update={"source": "another"}).save(path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
