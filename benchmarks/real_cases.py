"""Real models for `real_models.py`, with their feeds and task metrics.

The arithmetic of the figures is the folder's own `score.py`; this file says which of its functions
belongs to which model and hands it sessions that are right for quantized models.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfq.runtime.custom_ops import register_custom_ops
from onnxfq.runtime.ort import onnxruntime

Feed = dict[str, Any]
Run = Callable[[Feed], list[Any]]

DTLN = ("s07_dtln/dtln_1_op11.onnx", "s07_dtln/dtln_2_op11.onnx")
SILERO = "s06_silero_vad/silero_vad_op16.onnx"
NOT_MEASURED = "not measured (stateful)"
NOT_LOADED = "its model does not load"


@dataclass(frozen=True)
class Case:
    """Model and its task.

    file: below the folder of models. metrics: names, in the order of `Folder.measure`'s figures. scorer:
    function of score.py. keys: the figures taken from what it returns. against_float: how what the
    scorer keeps is compared with what the float model gave. scored: the models the scorer runs, when it
    is not `file` alone. raised: the model is turned from float16 to float32 first.
    title: in place of the file's name. peer, peer_matrix: figures of onnxruntime's own quantizer, all its
    default operators, and Conv, ConvTranspose, MatMul and Gemm only, as the folder's README gives them.
    """

    file: str
    metrics: tuple[str, ...]
    scorer: str
    keys: tuple[str, ...] = ()
    against_float: str = ""
    scored: tuple[str, ...] = ()
    raised: bool = False
    peer: str = ""
    peer_matrix: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return self.title or Path(self.file).stem


def _stories(file: str) -> Case:
    peers = {"peer": "54.66 / 0.150", "peer_matrix": "7.410 / 0.503"}
    metrics = ("perplexity (lower is better)", "top-1")
    return Case(f"s11_stories260k/{file}", metrics, "ev_s11", ("ppl", "top1"), **peers)


def _resnet20(file: str) -> Case:
    return Case(f"s02_resnet20_cifar10/{file}", ("top-1",), "ev_s02", ("top1_jpeg2000",), peer="0.8190")


def _dtln(file: str, title: str = "") -> Case:
    metrics = ("SI-SDR dB at 0 dB", "at 5 dB")
    keys = ("sisdr_in0dB", "sisdr_in5dB")
    return Case(file, metrics, "ev_s07", keys, scored=DTLN, title=title, peer=NOT_MEASURED)


def _minilm(raised: bool) -> Case:
    file = "s08_minilm/minilm_l6_fp16_op17.onnx"
    peers = {"peer": "0.4137", "peer_matrix": "0.7867"} if raised else {"peer": NOT_LOADED}
    title = "minilm_l6 raised to float32" if raised else ""
    metrics, keys = ("Spearman correlation",), ("spearman300",)
    return Case(file, metrics, "ev_s08", keys, raised=raised, title=title, **peers)


CASES = (
    Case(
        "s01_mnist_cnn/mnist_op8.onnx",
        ("top-1",),
        "ev_s01",
        ("top1",),
        peer="0.9905",
        peer_matrix="0.9906",
    ),
    _resnet20("resnet20_op13_bn.onnx"),
    _resnet20("resnet20_dynamo_op20_ext.onnx"),
    Case(
        "s03_yolox_nano/yolox_nano.onnx",
        ("person recall at IoU 0.5", "F1 to float"),
        "ev_s03",
        ("person_recall50",),
        "boxes",
        peer="0.000 / 0.00",
        peer_matrix="0.000 / 0.00",
    ),
    Case(
        "s04_ultraface/ultraface_rfb320_op9.onnx",
        ("F1 to float",),
        "ev_s04",
        against_float="boxes",
        peer="0.713",
        peer_matrix="0.951",
    ),
    Case(
        "s05_ppocr_det_cls/ppocrv3_det_op12.onnx",
        ("mask IoU to float",),
        "ev_s05_det",
        against_float="masks",
        peer="0.9015",
        peer_matrix="0.8987",
    ),
    Case("s05_ppocr_det_cls/ppocr_cls_op11.onnx", ("top-1",), "ev_s05_cls", ("top1",), peer=NOT_LOADED),
    Case(SILERO, ("SQNR dB", "agreement of decisions"), "ev_s06", against_float="tracks", peer=NOT_MEASURED),
    _dtln(DTLN[0]),
    _dtln(DTLN[1]),
    _minilm(raised=False),
    _minilm(raised=True),
    Case(
        "s09_super_resolution/espcn_x3_op10.onnx",
        ("PSNR dB (bicubic 27.54)",),
        "ev_s09",
        ("psnr",),
        peer="28.16",
        peer_matrix="26.63",
    ),
    Case(
        "s10_basic_pitch/basic_pitch_op15.onnx",
        ("correlation of notes", "note F1"),
        "ev_s10",
        ("corr_note", "note_f1_vs_ref"),
        peer=NOT_LOADED,
        peer_matrix=NOT_LOADED,
    ),
    _stories("stories260k_ts_op17.onnx"),
    _stories("stories260k_dynamo_op20.onnx"),
)

DTLN_PAIR = _dtln("", "dtln_1 and dtln_2 together")
"""Both graphs of the pair quantized; each alone is among CASES."""


class Folder:
    """Folder of real models with its `score.py`, which uses sessions of `open_model`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.score = _module(path / "score.py")
        self.score.S = self._session
        self._replaced: dict[str, Path] = {}
        self._floats: dict[Case, list[Any]] = {}

    def feeds(self, case: Case) -> list[Feed]:
        """Return the calibration feeds; of stateful graphs, recorded while the float models run."""
        if case.file in DTLN:
            return self._dtln_feeds()[DTLN.index(case.file)]
        if case.file == SILERO:
            feeds, run = _recorder(self._session(SILERO))
            self.score.silero(run, self._speech()[: 20 * 16000])
            return feeds
        folder, _, file = case.file.partition("/")
        return list(self.score.feeds(folder, file))

    def task_feeds(self, case: Case) -> list[Feed]:
        """Return the feeds that the scorer gives to the float model."""
        recorders: dict[str, list[Feed]] = {}
        plain = self.score.S

        def open_recorded(file: str) -> Run:
            recorders[file], run = _recorder(plain(file))
            return run

        self.score.S = open_recorded
        try:
            self._scored(case, {})
        finally:
            self.score.S = plain
        return recorders[case.file]

    def measure(self, case: Case, replaced: dict[str, Path]) -> tuple[float, ...]:
        """Return the figures of the task, with some models replaced by other files."""
        found, kept = self._scored(case, replaced)
        figures = [float(found[key]) for key in case.keys]
        if case.against_float:
            if case not in self._floats:
                self._floats[case] = self._scored(case, {})[1] if replaced else kept
            figures += self._compare(case.against_float, self._floats[case], kept)
        return tuple(figures)

    def _scored(self, case: Case, replaced: dict[str, Path]) -> tuple[dict[str, Any], list[Any]]:
        kept: list[Any] = []
        extra = {"keep": kept} if case.against_float else {}
        self._replaced = replaced
        try:
            return getattr(self.score, case.scorer)(*(case.scored or (case.file,)), **extra), kept
        finally:
            self._replaced = {}

    def _compare(self, how: str, reference: list[Any], got: list[Any]) -> list[float]:
        if how == "boxes":
            return [self.score.f1(reference, got)]
        pairs = list(zip(reference, got, strict=True))
        if how == "masks":
            return [float(np.mean([(a & b).sum() / max(1, (a | b).sum()) for a, b in pairs]))]
        agreed = [((a > 0.5) == (b > 0.5)).mean() for a, b in pairs]
        return [self.score.sqnr(*pairs[0]), float(np.mean(agreed))]

    def _session(self, file: str) -> Run:
        # The scorer's own sessions lack the custom operators and optimise too far for Q/DQ.
        quantized = self._replaced.get(file)
        if not quantized:
            return open_model(self.path / file)
        # onnxruntime 1.31 moves Casts about at the basic level, and float16 models give other numbers there.
        properties = onnx.load(quantized, load_external_data=False).metadata_props
        half = any(entry.key == "onnxfq.float" for entry in properties)
        return open_model(quantized, "ORT_DISABLE_ALL" if half else "ORT_ENABLE_BASIC")

    def _speech(self) -> np.ndarray:
        return self.score.wav(str(self.path / "s06_silero_vad/speech_16k.wav"))

    def _dtln_feeds(self) -> tuple[list[Feed], list[Feed]]:
        """Run the float pair over the first 15 s of speech, with noise at 0 and 5 dB."""
        (first, run_first), (second, run_second) = (_recorder(self._session(file)) for file in DTLN)
        clean = self._speech()[: 15 * 16000]
        noise = self.score.wav(str(self.path / "s07_dtln/noise_16k.wav"))
        for decibel in (0, 5):
            self.score.dtln(self.score.mix(clean, noise, decibel), run_first, run_second)
        return first, second


def open_model(model: Path, level: str = "ORT_ENABLE_ALL", packed: bool = True) -> Run:
    """Return a function from feed to outputs, on one thread.

    Above ORT_ENABLE_BASIC onnxruntime turns Q/DQ into integer kernels and breaks some valid models: a
    quantized model is run there or below. `packed` lets it repack constant weights.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.disable_prepacking", "0" if packed else "1")
    register_custom_ops(options)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda feed: list(session.run(None, feed))


def raised_to_float32(path: Path) -> onnx.ModelProto:
    """Return a float16 model with float32 constants, casts and outputs instead."""
    model = onnx.load(path)
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    values = [*model.graph.initializer]
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == half:
                attribute.i = single
            if attribute.HasField("t"):
                values.append(attribute.t)
    for value in values:
        if value.data_type == half:
            values32 = numpy_helper.to_array(value).astype(np.float32)
            value.CopyFrom(numpy_helper.from_array(values32, value.name))
    for output in model.graph.output:
        output.type.tensor_type.elem_type = single
    del model.graph.value_info[:]
    return model


def _recorder(run: Run) -> tuple[list[Feed], Run]:
    """Return a list and `run`, which adds each feed to the list."""
    feeds: list[Feed] = []

    def recorded(feed: Feed) -> list[Any]:
        feeds.append(feed)
        return run(feed)

    return feeds, recorded


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("score", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
