"""Networks of Keras, written by tf2onnx: channels last, paddings of TensorFlow, bodies for loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SAMPLES = 3
APPLICATIONS = {
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "DenseNet121": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "InceptionV3": 96,
    "Xception": 96,
    "NASNetMobile": 64,
    "VGG16": 64,
    "ConvNeXtTiny": 64,
}
"""Of `keras.applications`, with the side of the images."""


def _layers() -> Any:
    import keras

    return keras.layers


def _sequence(*parts: Callable[[Any], Any], shape: tuple[int | None, ...], dtype: str = "float32") -> Any:
    import keras

    x = start = keras.Input(shape, dtype=dtype)
    for part in parts:
        x = part(x)
    return keras.Model(start, x)


def separable() -> Any:
    """Separable and depthwise convolutions with a multiplier, strides, dilation, PReLU."""
    k = _layers()
    return _sequence(
        k.SeparableConv2D(16, 3, strides=2, padding="same"),
        k.PReLU(shared_axes=[1, 2]),
        k.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
        k.BatchNormalization(),
        k.ReLU(6.0),
        k.Conv2D(8, 3, dilation_rate=2, padding="valid"),
        k.Conv2D(8, 3, groups=4, padding="same"),
        shape=(32, 32, 3),
    )


def segmenter() -> Any:
    """A U-Net: transposed convolutions, upsampling, joined skips."""
    import keras

    k = _layers()
    x = start = keras.Input((32, 32, 3))
    a = k.Conv2D(16, 3, padding="same", activation="relu")(x)
    b = k.Conv2D(32, 3, strides=2, padding="same", activation="relu")(a)
    c = k.Conv2D(32, 3, strides=2, padding="same", activation="relu")(b)
    y = k.concatenate([k.Conv2DTranspose(32, 2, strides=2)(c), b])
    y = k.Conv2D(16, 3, padding="same", activation="relu")(y)
    y = k.concatenate([k.UpSampling2D(interpolation="bilinear")(y), a])
    return keras.Model(start, k.Conv2D(4, 1, activation="softmax")(y))


def lines() -> Any:
    """Convolutions over time, causal and locally connected by strides, then pooling and Dense layers."""
    k = _layers()
    return _sequence(
        k.Conv1D(16, 5, padding="causal", activation="relu"),
        k.SeparableConv1D(16, 3, padding="same"),
        k.MaxPool1D(2),
        k.Conv1DTranspose(8, 4, strides=2),
        k.GlobalAveragePooling1D(),
        k.Dense(10),
        shape=(48, 4),
    )


def volume() -> Any:
    """Convolutions in three dimensions."""
    k = _layers()
    return _sequence(
        k.Conv3D(8, 3, padding="same", activation="relu"),
        k.MaxPool3D(2),
        k.Conv3D(8, 3, activation="relu"),
        k.Conv3DTranspose(4, 2, strides=2),
        shape=(8, 16, 16, 2),
    )


def reader() -> Any:
    """Words, LSTM in both directions, GRU, a tag for each."""
    k = _layers()
    return _sequence(
        k.Embedding(50, 32),
        k.Bidirectional(k.LSTM(16, return_sequences=True)),
        k.GRU(16, return_sequences=True),
        k.Dense(8, activation="softmax"),
        shape=(12,),
        dtype="int32",
    )


def film() -> Any:
    """A ConvLSTM and a Dense layer at every step."""
    k = _layers()
    return _sequence(
        k.ConvLSTM2D(8, 3, padding="same", return_sequences=True),
        k.TimeDistributed(k.Conv2D(4, 3)),
        k.GlobalAveragePooling3D(),
        k.Dense(3),
        shape=(4, 12, 12, 2),
    )


def attention() -> Any:
    """Two blocks of a transformer; its projections are Einsums with weights of three axes."""
    import keras

    k = _layers()
    x = start = keras.Input((12, 32))
    for _ in range(2):
        y = k.LayerNormalization()(x)
        x = k.add([x, k.MultiHeadAttention(4, 8)(y, y)])
        y = k.Dense(64, activation="gelu")(k.LayerNormalization()(x))
        x = k.add([x, k.Dense(32)(y)])
    return keras.Model(start, k.EinsumDense("abc,cde->abde", (None, 4, 6), bias_axes="de")(x))


def squeezed() -> Any:
    """Squeeze and excite, GroupNormalization, Dense on every pixel, a Dot of two branches."""
    import keras

    k = _layers()
    x = start = keras.Input((16, 16, 8))
    y = k.Conv2D(16, 3, padding="same")(x)
    y = k.GroupNormalization(4)(y)
    gate = k.Dense(16, activation="sigmoid")(k.Dense(4, activation="relu")(k.GlobalAveragePooling2D()(y)))
    y = k.multiply([y, k.Reshape((1, 1, 16))(gate)])
    y = k.Dense(8, activation="swish")(y)
    rows = k.Reshape((256, 8))(y)
    return keras.Model(start, k.Dot(axes=1)([rows, k.Reshape((256, 8))(x)]))


OWN = {
    make.__name__: make for make in (separable, segmenter, lines, volume, reader, film, attention, squeezed)
}


def _made(name: str) -> tuple[Any, tuple[int, ...]]:
    import keras

    if name in OWN:
        model = OWN[name]()
        return model, tuple(size or 32 for size in model.inputs[0].shape[1:])
    size = APPLICATIONS[name]
    return getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classifier_activation=None
    ), (size, size, 3)


def _liven(model: Any, sample: NDArray[Any]) -> None:
    """Give BatchNormalization the statistics of the sample."""
    norms = [layer for layer in model._flatten_layers() if type(layer).__name__ == "BatchNormalization"]
    for norm in norms:
        norm.momentum = 0.0
    if norms:
        model(sample, training=True)


def write(name: str, path: Path, opset: int, opened: bool) -> list[dict[str, NDArray[Any]]]:
    """Write `path` and return feeds for it. Raises whatever Keras or tf2onnx raises."""
    import keras

    keras.utils.set_random_seed(0)
    model, shape = _made(name)
    kind = model.inputs[0].dtype
    rng = np.random.default_rng(0)
    samples = [
        rng.integers(1, 50, (2, *shape)).astype(np.int32) if kind != "float32" else _image(rng, shape)
        for _ in range(SAMPLES)
    ]
    _liven(model, np.concatenate(samples))
    given = (None, *model.inputs[0].shape[1:]) if opened else (2, *shape)
    signature = [keras.InputSpec(shape=given, dtype=kind, name="x")]
    model.export(str(path), format="onnx", opset_version=opset, input_signature=signature, verbose=False)
    return [{"x": sample} for sample in samples]


def _image(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    return rng.random((2, *shape), np.float32) * 255


NETWORKS = (*APPLICATIONS, *OWN)
