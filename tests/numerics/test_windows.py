"""Windows of a stream and the growth of its error, compared with NumPy and with loops."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from onnxfq.numerics.windows import WINDOW, divide_windows, fit_loss, window_ratios


@pytest.mark.whole
@hypothesis.given(lengths=st.lists(st.integers(1, 5 * WINDOW), min_size=1, max_size=6), random=st.randoms())
def test_windows_have_each_counted_feed_behind_the_first_window_once(lengths, random) -> None:
    """Feeds of the first window count only if a recording has no other; of several windows none is short."""
    steps = [step for length in lengths for step in range(length)]
    counted = [random.random() < 0.7 for _ in steps]
    late, at = [], 0
    for length in lengths:
        late += [counted[at + step] and (step >= WINDOW or length <= WINDOW) for step in range(length)]
        at += length
    wanted = [number for number, one in enumerate(late if any(late) else counted) if one]
    windows = divide_windows(steps, counted)
    found = sorted(int(number) for window in windows for number in window)
    assert found == wanted
    assert len(windows) <= 1 or all(window.size >= WINDOW for window in windows)
    firsts = [min(steps[number] for number in window) for window in windows]
    assert firsts == sorted(firsts)


def test_windows_of_one_recording_follow_each_other() -> None:
    """240 feeds are a first window, one window, and one with the 48 feeds that are left."""
    windows = divide_windows(range(240), [True] * 240)
    assert [window.tolist() for window in windows] == [[*range(64, 128)], [*range(128, 240)]]


def test_the_ratio_of_a_window_is_its_noise_to_the_signal_of_all() -> None:
    """Silence in a window makes no error; infinity and NaN stay, and without noise nothing is wrong."""
    windows = [np.arange(2), np.arange(2, 6)]
    signals, noises = [0, 0, 4, 4, 2, 2], [1, 1, 3, 3, 3, 3]
    assert window_ratios(windows, signals, noises) == [1 / 2, 3 / 2]
    assert window_ratios(windows, [0] * 6, [0] * 6) == [0, 0]
    assert window_ratios(windows, [0] * 6, noises) == [np.inf, np.inf]
    assert np.isnan(window_ratios(windows, signals, [np.nan, *noises[1:]])[0])


def noisy(
    figures: np.ndarray, seed: int = 0, recordings: int = 1
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Steps, signals and noises of recordings whose SQNR is `figures`, with 1 dB of scatter."""
    scatter = np.random.default_rng(seed).normal(size=(recordings, figures.size))
    noises = 10 ** (-(figures + scatter) / 10)
    return [*range(figures.size)] * recordings, np.ones(noises.size), noises.ravel()


@pytest.mark.parametrize("loss", [0.5, 3.0])
@pytest.mark.parametrize("recordings", [1, 3])
def test_a_line_has_the_slope_of_numpy(loss: float, recordings: int) -> None:
    """The slope is the one of NumPy's polynomial through the later blocks, near the planted one."""
    steps, signals, noises = noisy(40 - loss * np.arange(640) / 100, recordings=recordings)
    found = fit_loss(steps, signals, noises)
    blocks = np.asarray(noises).reshape(recordings, 20, 32).sum((0, 2))
    later = np.arange(10, 20)
    slope = np.polyfit(later * 32, 10 * np.log10(recordings * 32 / blocks[later]), 1)[0]
    assert found == pytest.approx(-100 * slope) and found == pytest.approx(loss, rel=0.3)


@pytest.mark.parametrize("seed", range(20))
def test_what_does_not_grow_is_not_told(seed: int) -> None:
    """Scatter, a gain, a loss that has ended, and recordings too short for a line."""
    steps = np.arange(640)
    for figures in (np.full(640, 20.0), 20 + steps / 100, 20 + 5 * np.exp(-steps / 40), np.full(100, 20.0)):
        assert fit_loss(*noisy(figures, seed)) == 0.0


def test_equal_models_have_no_growth() -> None:
    """Without any noise there is no line."""
    assert fit_loss(range(640), [1.0] * 640, [0.0] * 640) == 0.0
