"""Samples that are drawn from a seed, with their truth: lines and pages of text, tones, notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[1]
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
FACES = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
WORDS = re.findall(r"[A-Za-z]{2,}", (ROOT / "LICENSE").read_text(encoding="utf-8"))
Random = np.random.Generator


def _face(random: Random, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONTS / f"{random.choice(FACES)}.ttf"), size)


def _colours(random: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    paper, ink = random.integers(170, 256, 3), random.integers(0, 90, 3)
    return tuple(map(int, paper)), tuple(map(int, ink))


def _worn(image: Image.Image, random: Random) -> NDArray[np.uint8]:
    """Return the pixels [H, W, 3] with noise."""
    pixels = np.asarray(image, np.float64)
    noise = random.normal(0, random.uniform(2, 14), pixels.shape)
    return np.asarray(np.clip(pixels + noise, 0, 255), np.uint8)


def draw_lines(seed: int, count: int) -> Iterator[tuple[NDArray[np.uint8], str]]:
    """Yield lines of two to four words, 48 pixels high, with their texts."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        text = " ".join(random.choice(WORDS, int(random.integers(2, 5))))
        face, (paper, ink) = _face(random, int(random.integers(22, 32))), _colours(random)
        width = int(face.getlength(text)) + 16
        image = Image.new("RGB", (width, 48), paper)
        ImageDraw.Draw(image).text((8, int(random.integers(4, 10))), text, ink, face)
        yield _worn(image, random), text


def draw_pages(seed: int, count: int, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield square pages with eight to sixteen lines of text."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        paper, ink = _colours(random)
        image, face = Image.new("RGB", (size, size), paper), _face(random, int(random.integers(14, 24)))
        pen = ImageDraw.Draw(image)
        for row in range(int(random.integers(8, 17))):
            text = " ".join(random.choice(WORDS, int(random.integers(2, 7))))
            pen.text((int(random.integers(8, 60)), 10 + row * (size // 17)), text, ink, face)
        yield _worn(image, random)


def draw_tones(
    seed: int, count: int, rate: int, hop: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float64]]]:
    """Yield a second of a gliding tone with overtones and noise, and its frequency in Hz in each frame."""
    random = np.random.default_rng(seed)
    times = np.arange(rate) / rate
    for _ in range(count):
        centre, glide = random.uniform(90, 900), random.uniform(-0.3, 0.3)
        vibrato = 0.01 * np.sin(2 * np.pi * random.uniform(4, 7) * times)
        frequencies = centre * 2 ** (glide * times + vibrato)
        phase = 2 * np.pi * np.cumsum(frequencies) / rate
        strengths = random.uniform(0.2, 1, 6) / np.arange(1, 7)
        tone = sum(s * np.sin((k + 1) * phase) for k, s in enumerate(strengths)) / strengths.sum()
        noise = random.normal(0, random.uniform(0.003, 0.1), rate)
        frames = frequencies[hop // 2 :: hop]
        yield (0.5 * tone + noise).astype(np.float32)[None], frames


def draw_notes(
    seed: int, count: int, rate: int, length: int, frames: int, hop: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.bool_]]]:
    """Yield windows of decaying notes, and the notes that sound in each frame: [frames, 88] from A0."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        sound, sounding = np.zeros(length), np.zeros((frames, 88), bool)
        for _ in range(int(random.integers(4, 9))):
            note, start = int(random.integers(24, 64)), int(random.integers(0, length - rate // 2))
            span = min(length - start, int(random.uniform(0.3, 0.9) * rate))
            times = np.arange(span) / rate
            base = 27.5 * 2 ** (note / 12)
            parts = [np.sin(2 * np.pi * base * k * times) / k**1.5 for k in range(1, 7)]
            sound[start : start + span] += sum(parts) * np.exp(-2 * times) * random.uniform(0.4, 1)
            sounding[start // hop : (start + span) // hop, note] = True
        sound = 0.3 * sound / max(1e-6, np.abs(sound).max()) + random.normal(0, 0.001, length)
        yield sound.astype(np.float32)[None, :, None], sounding
