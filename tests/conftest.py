"""Shared by tests of several folders: the shipped digits, and a logger that no test leaves changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from onnxfq.runtime import device_choice as choice
from onnxfq.support.resources import package_file

# A busy machine is not a fault of the code, so no example has a deadline.
hypothesis.settings.register_profile("onnxfq", deadline=None)
hypothesis.settings.load_profile("onnxfq")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the device of the kernel tests, and how many of what is drawn at random."""
    parser.addoption(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the tests of custom_ops run kernels"
    )
    parser.addoption("--random-graphs", type=int, default=300, help="graphs drawn (CI: 300)")
    parser.addoption("--all-opsets", action="store_true", help="every opset with every recipe")
    parser.addoption("--all-ways", action="store_true", help="every option in every way of feeding")
    parser.addoption("--damaged-files", type=int, default=200, help="files damaged (CI: 200)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first: with several workers no file is left for one of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def digits_model() -> Path:
    """The shipped network."""
    return package_file("digits", "digits_cnn.onnx")


@pytest.fixture(scope="session")
def digit_images() -> np.ndarray:
    """All 10,000 images as the network takes them."""
    with np.load(package_file("digits", "mnist_t10k.npz")) as data:
        return data["images"].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)


@pytest.fixture(autouse=True)
def auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests mean the CPU where they name no device, on machines with a GPU too."""
    monkeypatch.setattr(choice, "_choose_any", lambda: "cpu")


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Undo what the command line and scripts do to the package's logger, also in fixtures of a file."""

    def reset() -> None:
        logger = logging.getLogger("onnxfq")
        logger.handlers[:], logger.propagate = [], True
        logger.setLevel(logging.NOTSET)

    reset()
    yield
    reset()
