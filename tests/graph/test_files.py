"""Models on disk: reading them with their data, writing them whole and always alike."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, constants, conv_relu, linear, weights

from onnxfq.errors import ModelError, OnnxfqError, OutputError
from onnxfq.graph.external import sizes
from onnxfq.graph.io.data_paths import check_model_output, data_files
from onnxfq.graph.io.load import load
from onnxfq.graph.io.save import save
from onnxfq.quantizing.pipeline import quantize
from onnxfq.support.files import check_output
from onnxfq.tools.inspect import inspect_model


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weights lie in a file next to it."""
    path = tmp_path / "model.onnx"
    onnx.save(conv_relu(), path, save_as_external_data=True, location="model.data", size_threshold=0)
    return path


def test_external_data_counts_in_the_hash(external: Path) -> None:
    """Another weight in the data file makes another model."""
    before = load(external).sha256
    data = external.parent / "model.data"
    content = bytearray(data.read_bytes())
    content[3] ^= 1
    data.write_bytes(bytes(content))
    assert load(external).sha256 != before


def test_proto_without_its_external_data_is_refused(external: Path) -> None:
    """A proto that points to a file nobody named is refused, not read from the working folder."""
    with pytest.raises(ModelError, match="holds 'w' in an external file; give its path"):
        load(onnx.load(external, load_external_data=False))


def test_saving_is_all_or_nothing(tmp_path: Path) -> None:
    """When verifying fails, the old file stays as it was and no temporary file is left."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def refuse(temporary: Path, data: Path | None) -> None:
        assert onnx.load(temporary).graph.node
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        save(conv_relu(), path, refuse)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_invalid_models_are_not_written(tmp_path: Path) -> None:
    """A model that onnx's checker refuses never reaches the disk."""
    broken = build("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match="is not valid"):
        save(broken, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spelling", ["model.onnx", "./model.onnx", "folder/../model.onnx", "link.onnx"])
def test_the_input_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    """Output and input are compared as files, however they are spelled."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    Path("model.onnx").write_bytes(b"x")
    Path("link.onnx").symlink_to("model.onnx")
    with pytest.raises(OutputError, match="is another file of this command"):
        check_output(spelling, conv_relu(), "model.onnx")


def test_the_data_of_the_input_is_not_overwritten(external: Path) -> None:
    """A data file is an input as much as the model that refers to it, given as path or as what was loaded."""
    before = (external.parent / "model.data").read_bytes()
    for given in (external, str(external)):
        with pytest.raises(OutputError, match="model.data is another file of this command"):
            quantize(given, None, external.parent / "model.data", recipe="tensorrt-int8-weights")
    assert (external.parent / "model.data").read_bytes() == before


def test_a_damaged_reference_is_no_warning(external: Path) -> None:
    """Looking for data files says nothing of a field that is none: reading the model does, in one line."""
    proto = onnx.load(external, load_external_data=False)
    proto.graph.initializer[0].external_data[0].key = "locatmon"
    external.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="has the field 'locatmon', which ONNX does not define"):
        quantize(external, None, external.parent / "q.onnx", recipe="tensorrt-int8-weights")


def test_data_that_a_written_model_left_is_not_removed_under_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing a model ends the data of the former one, so the model that reads those cannot be the input."""
    monkeypatch.setattr(sizes, "LIMIT", 0)
    save(linear(64, 64), tmp_path / "model.onnx")
    (tmp_path / "model.onnx").rename(tmp_path / "moved.onnx")
    with pytest.raises(OutputError, match="would replace model.onnx.*data, which holds weights"):
        check_model_output(tmp_path / "model.onnx", tmp_path / "moved.onnx")
    check_model_output(tmp_path / "other.onnx", tmp_path / "moved.onnx")


def test_links_of_a_cache_are_followed(external: Path, tmp_path: Path) -> None:
    """Caches keep a model and its data under other names and link to both: read, as by ONNX Runtime."""
    cache, shown = tmp_path / "blobs", tmp_path / "snapshot"
    cache.mkdir()
    shown.mkdir()
    external.rename(cache / "1234")
    (tmp_path / "model.data").rename(cache / "5678")
    (shown / "model.onnx").symlink_to("../blobs/1234")
    (shown / "model.data").symlink_to("../blobs/5678")
    np.testing.assert_array_equal(constants(load(shown / "model.onnx").proto)["w"], weights(4, 3, 3, 3))
    onnxruntime.InferenceSession(shown / "model.onnx", providers=["CPUExecutionProvider"])
    assert data_files(shown / "model.onnx") == [cache / "5678"]


def test_links_that_leave_the_folder_are_refused(external: Path, tmp_path: Path) -> None:
    """A model is not trusted with files elsewhere; the message says where the link leads."""
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    for folder, name in ((own, "model.onnx"), (elsewhere, "model.data")):
        folder.mkdir()
        (tmp_path / name).rename(folder / name)
    (own / "model.data").symlink_to("../elsewhere/model.data")
    with pytest.raises(ModelError, match="not a path inside the folder .* it leads to .*elsewhere"):
        load(own / "model.onnx")


def test_a_link_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target of an output link is replaced, the link stays; with data, which would be missed: refused."""
    (tmp_path / "far").mkdir()
    (tmp_path / "out.onnx").symlink_to("far/model.onnx")
    save(conv_relu(), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").is_symlink() and onnx.load(tmp_path / "far" / "model.onnx") == conv_relu()
    monkeypatch.setattr(sizes, "LIMIT", 0)
    with pytest.raises(OutputError, match="is a link, and .* look for its data next to it; give its target"):
        save(conv_relu(), tmp_path / "out.onnx")


@pytest.mark.whole
def test_any_flipped_byte_is_survived(tmp_path: Path) -> None:
    """Whatever single byte of a file is wrong, all stages go on or end in one line, in no other fault."""
    small = build("g (float[N,2] x) => (float[N,2] y) { [a] y = MatMul (x, w) }", {"w": weights(2, 2)})
    content, path, refused = small.SerializeToString(), tmp_path / "model.onnx", 0
    for position, flip in itertools.product(range(len(content)), (0x01, 0x80)):
        damaged = bytearray(content)
        damaged[position] ^= flip
        path.write_bytes(damaged)
        try:
            inspect_model(path)
            quantize(path, [{"x": np.ones((1, 2), np.float32)}])
        except OnnxfqError:
            refused += 1
    assert refused > len(content) // 2
