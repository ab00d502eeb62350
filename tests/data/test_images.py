"""Images: files give what Pillow reads, in the input's layout, size and channels."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxfq.data import DataOptions, Feeds, InputSpec, images, sources
from onnxfq.data.preprocessor import read_preprocessor
from onnxfq.errors import DataError

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

PIXELS = np.random.default_rng(5).integers(0, 256, (16, 6, 9, 3)).astype(np.uint8)
FLOAT = np.dtype(np.float32)


def spec(*shape: int | None, dtype: np.dtype = FLOAT) -> tuple[InputSpec]:
    """The one input of a model."""
    return (InputSpec("x", dtype, shape),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """16 PNG files of 9 x 6, and one file that is none."""
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    (tmp_path / "labels.txt").write_text("no image", encoding="utf-8")
    return tmp_path


def read(data: Path, inputs: tuple[InputSpec], **options: object) -> np.ndarray:
    """All samples that the folder gives."""
    feeds = Feeds(data, inputs, 4, DataOptions(**({"scale": 1.0} | options)))
    return np.concatenate([feed["x"] for feed in feeds])


def test_images_are_the_arrays_that_they_hold(folder: Path) -> None:
    """A folder of PNG gives the feeds of the array, to the bit, with the same preparation; total is known."""
    prepared = DataOptions(scale=1 / 255, mean=(0.4, 0.5, 0.6), std=0.2)
    inputs = spec(None, 3, 6, 9)
    images, array = (Feeds(data, inputs, 4, prepared) for data in (folder, PIXELS.transpose(0, 3, 1, 2)))
    assert images.total == array.total == 16
    for one, other in zip(images, array, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"], strict=True)
    assert images.digest == array.digest


@pytest.mark.parametrize(
    ("inputs", "options", "axes"),
    [
        pytest.param(spec(None, 3, 6, 9), {}, (0, 3, 1, 2), id="nchw"),
        pytest.param(spec(None, 6, 9, 3), {}, (0, 1, 2, 3), id="nhwc"),
        pytest.param(spec(None, None, None, None), {}, (0, 3, 1, 2), id="open: nchw"),
        pytest.param(spec(None, None, None, None), {"layout": "nhwc"}, (0, 1, 2, 3), id="as asked"),
        pytest.param(spec(1, 3, 6, 9), {}, (0, 3, 1, 2), id="fixed batch"),
        pytest.param(spec(4, 3, 6, 9), {}, (0, 3, 1, 2), id="fixed batch of 4"),
    ],
)
def test_layouts(folder: Path, inputs, options, axes) -> None:
    """The input's shape tells the layout, else the option; a fixed batch is filled."""
    np.testing.assert_array_equal(read(folder, inputs, **options), PIXELS.transpose(axes))


def test_colors(folder: Path) -> None:
    """One channel is Pillow's gray, BGR is RGB turned round; bytes stay bytes for an input of bytes."""
    gray = np.stack([np.asarray(Image.fromarray(pixels).convert("L")) for pixels in PIXELS])
    np.testing.assert_array_equal(read(folder, spec(None, 1, 6, 9)), gray[:, np.newaxis])
    np.testing.assert_array_equal(read(folder, spec(None, None, 6, 9), color="gray"), gray[:, np.newaxis])
    np.testing.assert_array_equal(read(folder, spec(None, 6, 9, 3), color="bgr"), PIXELS[..., ::-1])
    raw = read(folder, spec(None, 6, 9, 3, dtype=np.dtype(np.uint8)), scale=None)
    np.testing.assert_array_equal(raw, PIXELS, strict=True)


def test_sizes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fixed size is Pillow's bilinear resize, with a note; a size asked for is the same without one."""
    (folder / "labels.txt").unlink()
    small = np.stack(
        [np.asarray(Image.fromarray(pixels).resize((5, 4), Image.Resampling.BILINEAR)) for pixels in PIXELS]
    )
    np.testing.assert_array_equal(read(folder, spec(None, 4, 5, 3), survey=False), small)
    assert [r.getMessage() for r in caplog.records] == ["images are resized to the input's 5x4, not cropped"]
    caplog.clear()
    for inputs in (spec(None, 4, 5, 3), spec(None, None, None, 3)):
        np.testing.assert_array_equal(read(folder, inputs, resize=(5, 4), survey=False), small)
    assert not caplog.records


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "bmp", "webp"])
def test_kinds_of_files(tmp_path: Path, suffix: str) -> None:
    """Every kind is read as Pillow reads it, a single file too; alpha and palettes become colors."""
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(PIXELS[0]).save(path)
    expected = np.asarray(Image.open(path).convert("RGB"))[np.newaxis]
    for data in (tmp_path, path):
        np.testing.assert_array_equal(read(data, spec(None, 6, 9, 3)), expected)
    if suffix == "png":
        for mode in ("RGBA", "P"):
            Image.fromarray(PIXELS[0]).convert(mode).save(path)
            assert read(path, spec(None, 6, 9, 3)).shape == (1, 6, 9, 3)


def reference(path: Path, size: tuple[int, int], crop: tuple[int, int], resample: int) -> np.ndarray:
    """Pillow's resize to (width, height), then the middle of the array, as [1, 3, height, width]."""
    pixels = np.asarray(Image.open(path).convert("RGB").resize(size, resample))
    top, left = (size[1] - crop[1]) // 2, (size[0] - crop[0]) // 2
    return pixels[top : top + crop[1], left : left + crop[0]].transpose(2, 0, 1)[np.newaxis]


OPEN = spec(None, 3, None, None)


@pytest.mark.parametrize(
    ("options", "size", "crop", "resample"),
    [
        pytest.param({"crop": (5, 4)}, (9, 6), (5, 4), Image.Resampling.BILINEAR, id="crop"),
        pytest.param({"resize": 5}, (7, 5), (7, 5), Image.Resampling.BILINEAR, id="shorter side"),
        pytest.param(
            {"resize": 8, "crop": (5, 7), "resample": "bicubic"},
            (12, 8),
            (5, 7),
            Image.Resampling.BICUBIC,
            id="both",
        ),
        pytest.param(
            {"resize": (4, 9), "resample": "nearest"}, (4, 9), (4, 9), Image.Resampling.NEAREST, id="filter"
        ),
    ],
)
def test_crop_and_filter(
    folder: Path, options: dict[str, object], size: tuple[int, int], crop: tuple[int, int], resample: int
) -> None:
    """Resizing is Pillow's, and the crop is the middle of what it gives."""
    for path in (folder / "00.png", folder / "01.png"):
        wanted = reference(path, size, crop, resample)
        np.testing.assert_array_equal(read(path, OPEN, **options), wanted)
    with pytest.raises(DataError, match=r"00.png is 9x6, smaller than the crop 5x7; give .* --resize 7"):
        read(folder, OPEN, crop=(5, 7))


VIT = {
    "image_processor_type": "ViTImageProcessorFast",
    "do_resize": True,
    "size": {"height": 7, "width": 8},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.25, 0.2],
    "do_convert_rgb": None,
}
CLIP = VIT | {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 8},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 7, "width": 5},
}
CONVNEXT = VIT | {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.875, "resample": 3}
PREPROCESSORS = {
    "size": (VIT, (8, 7), (8, 7)),
    "shorter side and crop": (CLIP, (12, 8), (5, 7)),
    "crop_pct": (CONVNEXT | {"size": {"shortest_edge": 7}}, (12, 8), (7, 7)),
    "crop_pct, large": (CONVNEXT | {"size": {"shortest_edge": 384}}, (384, 384), (384, 384)),
    "of an older release": (
        {name: CLIP[name] for name in ("do_normalize", "do_resize", "image_mean", "image_std", "resample")}
        | {"feature_extractor_type": "CLIPFeatureExtractor", "size": 8, "crop_size": 6},
        (12, 8),
        (6, 6),
    ),
}


@pytest.mark.parametrize("case", PREPROCESSORS)
def test_preprocessors(folder: Path, case: str) -> None:
    """A preprocessor_config.json gives Pillow's resize and crop, then (value / 255 - mean) / std."""
    config, size, crop = PREPROCESSORS[case]
    (folder / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    options = read_preprocessor(folder / "preprocessor_config.json")
    (feed,) = Feeds(folder / "00.png", OPEN, 1, options)
    pixels = reference(folder / "00.png", size, crop, config["resample"]).astype(np.float64)
    mean, std = (np.reshape(config[name], (3, 1, 1)) for name in ("image_mean", "image_std"))
    # Three roundings of float32, of values up to 2.
    np.testing.assert_allclose(feed["x"], (pixels / 255 - mean) / std, rtol=0, atol=2**-21)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_processor_type": "LevitImageProcessor"}, "unknown image processor 'LevitImageProcessor'"),
        ({"image_processor_type": "CLPImageProcessor"}, "nearest: CLIP"),
        ({"image_mean": None}, "image_mean is missing; add it"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order: no such field"),
        ({"do_pad": True}, "do_pad: "),
        ({"crop_pct": 0.9}, "only ConvNext's processor takes it"),
        ({"size": {"longest_edge": 9}}, "longest_edge"),
        ({"size": {"width": 9}}, "a size is {height, width} or {shortest_edge}"),
        ({"resample": None}, "resample is missing"),
    ],
)
def test_other_preprocessors_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    """A processor, field or step that is not known is one line that names it."""
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(CLIP | change), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_preprocessor(path)
    assert words in str(caught.value)
    assert "preprocessor_config.json" in str(caught.value)


def test_images_of_several_sizes(folder: Path) -> None:
    """If the size is open, images of one size come together; a fixed batch cannot hold two sizes."""
    Image.fromarray(PIXELS[0, :5]).save(folder / "16.png")
    feeds = list(Feeds(folder, spec(None, None, None, 3), 8, DataOptions(scale=1)))
    assert [feed["x"].shape for feed in feeds] == [(8, 6, 9, 3), (8, 6, 9, 3), (1, 5, 9, 3)]
    Image.fromarray(PIXELS[0, :5]).save(folder / "17.png")
    Image.fromarray(PIXELS[0, :4]).save(folder / "18.png")
    (folder / "00.png").unlink()
    with pytest.raises(DataError, match=r"15.png and its neighbours differ in size; give --resize WxH"):
        read(folder, spec(2, None, None, 3))


MISTAKES = {
    "no scale for a float": ({"scale": None}, spec(None, 6, 9, 3), "give --scale as in training (0.00392"),
    "two inputs": (
        {},
        (*spec(None, 3, 6, 9), InputSpec("y", FLOAT, ())),
        "images need a model with one input",
    ),
    "no image": (
        {},
        spec(None, 162),
        "images need a model with one input of rank 4, it has [x float32 [?, 162]]",
    ),
    "channels": (
        {},
        spec(None, 6, 6, 9),
        "images as rgb have 3 channels, the model has [x float32 [?, 6, 6, 9]]",
    ),
    "color": ({"color": "gray"}, spec(None, 3, 6, 9), "images as gray have 1 channels"),
    "rest": ({}, spec(5, 3, 6, 9), "holds 16 images, and the model [x float32 [5, 3, 6, 9]] takes 5 a run"),
    "size": ({"resize": (3, 3)}, spec(None, 3, 6, 9), "its shape must fit in sample 0"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(folder: Path, case: str) -> None:
    """A wrong image is one line with the remedy."""
    options, inputs, words = MISTAKES[case]
    with pytest.raises(DataError) as caught:
        read(folder, inputs, **options)
    assert words in str(caught.value)


def test_files_that_are_no_images(folder: Path) -> None:
    """A damaged image, a missing one and one of 16 bits are named."""
    content = (folder / "03.png").read_bytes()
    for damage in (b"hello", b"", content[:60], content[:8] + b"\0" * 40):
        (folder / "03.png").write_bytes(damage)
        with pytest.raises(DataError, match=r"03.png is not a readable image \(.*\); remove or repair it"):
            read(folder, spec(None, 3, 6, 9))
    with pytest.raises(DataError, match="no such file or folder"):
        read(folder / "none.png", spec(None, 3, 6, 9))
    Image.fromarray(np.zeros((6, 9), np.uint16)).save(folder / "03.png")
    with pytest.raises(DataError, match=r"03.png has more than 8 bits a channel; give an .npz"):
        read(folder, spec(None, 3, 6, 9))


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow is an extra: images say how to install it."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r'images need Pillow.*pip install "onnxfq\[images\]"'):
        read(folder, spec(None, 3, 6, 9))


def test_every_format_of_pillow(folder: Path) -> None:
    """Whatever Pillow can write is read if it is one of six formats, and refused under any name else."""
    Image.init()
    read_ones = set()
    for name in Image.SAVE:
        content = io.BytesIO()
        with contextlib.suppress(Exception):  # some formats take no such image, or need a library
            Image.fromarray(PIXELS[3]).save(content, name)
        (folder / "03.png").write_bytes(content.getvalue())
        try:
            read(folder / "03.png", spec(None, 3, 6, 9))
            read_ones.add(name)
        except DataError as fault:
            assert "03.png is not a readable image (none of PNG" in str(fault), name
    assert read_ones - {"JFIF", "DIB", "MPO"} == {"PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF"}


def test_no_program_is_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript under the name of a .png does not reach Ghostscript, which Pillow calls for it."""
    (folder / "bin").mkdir()
    (folder / "bin" / "gs").write_text(f"#!/bin/sh\ntouch {folder}/ran\nexit 1\n")
    (folder / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 6\n%%EndComments\nshowpage\n%%EOF\n"
    (folder / "03.png").write_bytes(head)
    with pytest.raises(DataError, match="not a readable image"):
        read(folder, spec(None, 3, 6, 9))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("ending", ["jpg", "png", "tiff", "webp"])
def test_turns(ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An image is read as Pillow's exif_transpose shows it, with a note."""
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        path = tmp_path / f"{turn}.{ending}"
        Image.fromarray(PIXELS[turn][:, :6]).save(path, exif=exif)
        shown = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"), np.float32)
        np.testing.assert_array_equal(read(path, spec(None, 6, 6, 3))[0], shown)
        assert ending == "tiff" or (turn == 1) == ("turned as their EXIF says" not in caplog.text)


def test_what_a_folder_leaves(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of other kinds, those in folders, links and further pictures of a file are counted or named."""
    frames = [Image.fromarray(pixels) for pixels in PIXELS[:3]]
    frames[0].save(folder / "99.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "99.tiff", save_all=True, append_images=frames[1:])
    (folder / "cat").mkdir()
    for number in range(5):
        frames[0].save(folder / "cat" / f"{number}.jpg")
    (folder / "dog").symlink_to("cat")
    assert len(read(folder, spec(None, 3, 6, 9))) == 18
    said = f"of {folder} are read: 16 *.png, 1 *.gif, 1 *.tiff; left out: 5 */*.jpg, 1 *.txt, 1 links to"
    assert said in caplog.text and "several pictures the first is read" in caplog.text


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "GIF"])
def test_a_bomb_is_refused_before_it_is_decoded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file of many pixels is one line; its size is read from its head."""
    bomb = io.BytesIO()
    Image.new("P" if kind == "GIF" else "1", (9000, 8000)).save(bomb, kind)
    (tmp_path / "bomb.png").write_bytes(bomb.getvalue())
    monkeypatch.setattr(Image.Image, "convert", lambda image, mode: os.kill(os.getpid(), 9))
    with pytest.raises(DataError, match="has 9000x8000 pixels, more than 67,108,864; remove it"):
        images.read_image(tmp_path / "bomb.png", spec(1, 3, 8, 8)[0], DataOptions(scale=1.0))


def test_a_library_that_ends_the_process_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the process for images is an error of one line, and the next images have a new process."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "crash.py").write_text("import os\ndef read_image(*_): os.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(sources, "_workers", [])
    with monkeypatch.context() as changed:
        changed.setattr(images, "__file__", str(tmp_path / "crash.py"))
        with pytest.raises(DataError, match="the images of .*: its process was ended by signal 9"):
            read(tmp_path, spec(1, 3, 8, 8))
    assert read(tmp_path, spec(1, 3, 8, 8)).shape == (1, 3, 8, 8)
