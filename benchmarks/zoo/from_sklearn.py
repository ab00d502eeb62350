"""Models of scikit-learn, written by skl2onnx: products between operators of the domain ai.onnx.ml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLES, FEATURES = 64, 12


def _models() -> dict[str, Any]:
    from sklearn import (
        decomposition,
        ensemble,
        gaussian_process,
        linear_model,
        neural_network,
        pipeline,
        preprocessing,
        svm,
    )

    scaled = preprocessing.StandardScaler
    return {
        "mlp": pipeline.make_pipeline(scaled(), neural_network.MLPClassifier((32, 16), max_iter=30)),
        "mlp_regression": neural_network.MLPRegressor(
            hidden_layer_sizes=(32, 16), max_iter=30, activation="tanh"
        ),
        "pca_logistic": pipeline.make_pipeline(decomposition.PCA(6), linear_model.LogisticRegression()),
        "forest": ensemble.RandomForestClassifier(5),
        "svm": svm.SVC(),
        "ridge": linear_model.Ridge(),
        "gaussian": gaussian_process.GaussianProcessRegressor(),
    }


NETWORKS = ("mlp", "mlp_regression", "pca_logistic", "forest", "svm", "ridge", "gaussian")


def write(name: str, path: Path, opset: int, opened: bool) -> list[dict[str, NDArray[Any]]]:
    """Write `path` and return feeds for it. Raises whatever scikit-learn or skl2onnx raises."""
    import warnings

    from skl2onnx import to_onnx

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    wanted = (rows[:, 0] + rows[:, 1] * rows[:, 2] > 0).astype(int)
    model = _models()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 30 steps are no training
        model.fit(rows, wanted if hasattr(model, "predict_proba") or name == "svm" else rows[:, 0])
    given = rows if opened else rows[:4]
    made = to_onnx(model, given, target_opset={"": opset, "ai.onnx.ml": 3}, options=_without_maps(model))
    path.write_bytes(made.SerializeToString())
    label = made.graph.input[0].name
    return [{label: rows[start : start + 4]} for start in (0, 4, 8)]


def _without_maps(model: Any) -> dict[int, dict[str, bool]] | None:
    """Ask for probabilities as a tensor: onnxfq compares tensors, and classifiers give maps by default."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return (
        {id(model): {"zipmap": False}}
        if hasattr(last, "predict_proba") or hasattr(last, "decision_function")
        else None
    )
