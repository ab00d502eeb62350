"""Quantizes networks by the tools of others: NNCF, ONNX Runtime, Brevitas and torch.ao.

    python tests/slow/make_quantized_files.py FLOATS FILES [WORD ...]

Not a pytest. FLOATS has NETWORK.onnx, and NETWORK.npz with samples along the first axis. The environment has
nncf, onnxruntime, brevitas, torchao and onnxscript. Each file is FILES/TOOL-FORM@NETWORK.onnx, and only those
with all WORDs in their names are made. A file that its tool fails to make is printed and left out.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Arrays = dict[str, Any]
Make = Callable[[Path, list[Arrays], Path], None]


class Reader:
    """Gives samples to ONNX Runtime's quantizers."""

    def __init__(self, feeds: list[Arrays]) -> None:
        self._feeds = list(feeds)
        self.rewind()

    def get_next(self) -> Arrays | None:
        """Return the next sample, None at the end."""
        return next(self._iterator, None)

    def rewind(self) -> None:
        """Begin again."""
        self._iterator = iter(self._feeds)

    def __iter__(self) -> Iterator[Arrays]:
        return iter(self._feeds)


def by_nncf(source: Path, feeds: list[Arrays], output: Path, **options: Any) -> None:
    """Quantize weights and activations, or weights alone where a mode is given."""
    import nncf

    proto, data = onnx.load(source), nncf.Dataset(feeds)
    if "mode" in options:
        made = nncf.compress_weights(proto, **options | {"mode": nncf.CompressWeightsMode[options["mode"]]})
    else:
        options = {name: getattr(nncf, name)(value) for name, value in options.items()}
        names = {"QuantizationPreset": "preset", "ModelType": "model_type"}
        made = nncf.quantize(proto, data, subset_size=len(feeds), **{names[n]: v for n, v in options.items()})
    onnx.save(made, output)


def by_static(source: Path, feeds: list[Arrays], output: Path, **options: Any) -> None:
    """Quantize by quantize_static; names of types and forms become ONNX Runtime's."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    tables = {"activation_type": QuantType, "weight_type": QuantType, "quant_format": QuantFormat}
    tables["calibrate_method"] = CalibrationMethod
    named = {n: tables[n][v] if n in tables else v for n, v in options.items()}
    quantize_static(source, output, Reader(feeds), **named)


def by_dynamic(source: Path, feeds: list[Arrays], output: Path, **options: Any) -> None:
    """Quantize by quantize_dynamic."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, output, weight_type=QuantType[options.pop("weight_type", "QInt8")], **options)


def by_nbits(
    source: Path, feeds: list[Arrays], output: Path, *, form: str = "QOperator", **options: Any
) -> None:
    """Quantize weights of products alone, in blocks of few bits."""
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(onnx.load(source), quant_format=QuantFormat[form], **options)
    made.process()
    made.model.save_model_to_file(str(output))


def by_qnn(source: Path, feeds: list[Arrays], output: Path, **options: Any) -> None:
    """Quantize for Qualcomm's HTP, as ONNX Runtime's page on QNN shows."""
    from onnxruntime.quantization import QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    named = {n: QuantType[v] if n.endswith("_type") else v for n, v in options.items()}
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed.onnx"
        given = changed if qnn_preprocess_model(source, changed) else source
        quantize(given, output, get_qnn_qdq_config(given, Reader(feeds), **named))


def convolutions(layers: Any, torch: Any, **options: Any) -> Any:
    """Return a network of convolutions by the classes of `layers`."""
    torch.manual_seed(0)
    parts = [
        layers.QuantIdentity(return_quant_tensor=True),
        layers.QuantConv2d(3, 8, 3, padding=1, **options),
        torch.nn.BatchNorm2d(8),
        layers.QuantReLU(return_quant_tensor=True),
        layers.QuantConv2d(8, 16, 3, stride=2, groups=4, **options),
        layers.QuantReLU(return_quant_tensor=True),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        layers.QuantLinear(144, 10, bias=True, **options),
    ]
    return torch.nn.Sequential(*parts)


def by_brevitas(source: Path, feeds: list[Arrays], output: Path, *, form: str, **options: Any) -> None:
    """Export a small network of Brevitas's layers, its scales learned from the samples."""
    import brevitas.nn as layers
    import torch
    from brevitas.export import export_onnx_qcdq, export_qonnx
    from brevitas.quant import Int8WeightPerChannelFloat

    if options.pop("channels", False):
        options["weight_quant"] = Int8WeightPerChannelFloat
    module = convolutions(layers, torch, **options)
    samples = torch.from_numpy(np.concatenate([feed["x"] for feed in feeds]))
    module.train()
    for _ in range(20):
        module(samples)
    module.eval()
    export = {"qcdq": export_onnx_qcdq, "qonnx": export_qonnx}[form]
    export(module, args=samples[:1], export_path=str(output), opset_version=17, dynamo=False)


def by_torch(source: Path, feeds: list[Arrays], output: Path, *, kind: str = "x86") -> None:
    """Export a network that torch.ao's PT2E flow has converted, for x86 or as XNNPACK's annotations say."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    ).eval()
    samples = [torch.from_numpy(feed["x"]) for feed in feeds]
    quantizer: Any = x86.X86InductorQuantizer()
    config = x86.get_default_x86_inductor_quantization_config()
    if kind == "xnnpack":
        quantizer = xnnpack.XNNPACKQuantizer()
        config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    quantizer.set_global(config)
    prepared = prepare_pt2e(torch.export.export(module, (samples[0],)).module(), quantizer)
    for sample in samples:
        prepared(sample)
    program = torch.export.export(convert_pt2e(prepared), (samples[0],))
    torch.onnx.export(program, (), str(output), dynamo=True, external_data=False, input_names=["x"])


FORMS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "nncf": (by_nncf, ("conv", "depthwise", "detector", "recurrent", "resnet20", "espcn")),
    "nncf-mixed": (partial(by_nncf, QuantizationPreset="mixed"), ("depthwise", "mnist")),
    "nncf-transformer": (partial(by_nncf, ModelType="transformer"), ("transformer", "llama")),
    "nncf-int8-weights": (partial(by_nncf, mode="INT8_ASYM"), ("transformer", "llama")),
    "nncf-int4-weights": (partial(by_nncf, mode="INT4_SYM", group_size=16), ("transformer",)),
    "ort-qdq": (by_static, ("conv", "audio", "espcn", "mnist")),
    "ort-qdq-channels": (
        partial(by_static, activation_type="QUInt8", weight_type="QInt8", per_channel=True),
        ("depthwise", "resnet20", "ultraface"),
    ),
    "ort-qdq-symmetric": (
        partial(by_static, activation_type="QInt8", extra_options={"ActivationSymmetric": True}),
        ("transformer", "detector"),
    ),
    "ort-qdq-int16": (
        partial(
            by_static, activation_type="QInt16", weight_type="QInt8", extra_options={"UseQDQContribOps": True}
        ),
        ("conv", "transformer"),
    ),
    "ort-qdq-uint16": (partial(by_static, activation_type="QUInt16", weight_type="QUInt8"), ("detector",)),
    "ort-qdq-int4": (
        partial(by_static, weight_type="QInt4", op_types_to_quantize=["MatMul", "Gemm"]),
        ("transformer",),
    ),
    "ort-qdq-dedicated": (
        partial(by_static, extra_options={"DedicatedQDQPair": True, "AddQDQPairToWeight": True}),
        ("detector",),
    ),
    "ort-qdq-entropy": (partial(by_static, calibrate_method="Entropy", reduce_range=True), ("conv",)),
    "ort-qoperator": (
        partial(by_static, quant_format="QOperator", activation_type="QUInt8"),
        ("conv", "detector", "audio", "mnist", "transformer"),
    ),
    "ort-qoperator-channels": (
        partial(by_static, quant_format="QOperator", activation_type="QInt8", per_channel=True),
        ("depthwise", "resnet20"),
    ),
    "ort-dynamic": (by_dynamic, ("transformer", "llama", "recurrent", "conv")),
    "ort-dynamic-unsigned": (
        partial(by_dynamic, weight_type="QUInt8", per_channel=True, reduce_range=True),
        ("transformer",),
    ),
    "ort-nbits": (partial(by_nbits, block_size=16), ("transformer", "llama")),
    "ort-nbits-symmetric": (
        partial(by_nbits, block_size=32, is_symmetric=True, accuracy_level=4),
        ("transformer",),
    ),
    "ort-nbits-pairs": (partial(by_nbits, block_size=16, form="QDQ"), ("transformer",)),
    "ort-nbits-gather": (
        partial(
            by_nbits,
            block_size=16,
            op_types_to_quantize=("MatMul", "Gather"),
            quant_axes=(("MatMul", 0), ("Gather", 1)),
        ),
        ("llama",),
    ),
    "ort-qnn": (by_qnn, ("conv", "depthwise", "transformer")),
    "ort-qnn-a16": (
        partial(by_qnn, activation_type="QUInt16", weight_type="QUInt8"),
        ("detector", "transformer"),
    ),
    "ort-qnn-channels": (
        partial(by_qnn, per_channel=True, weight_type="QInt8", weight_symmetric=True),
        ("depthwise",),
    ),
    "brevitas-qcdq": (partial(by_brevitas, form="qcdq"), ("picture",)),
    "brevitas-qcdq-4": (partial(by_brevitas, form="qcdq", weight_bit_width=4), ("picture",)),
    "brevitas-qcdq-channels": (partial(by_brevitas, form="qcdq", channels=True), ("picture",)),
    "brevitas-qonnx": (partial(by_brevitas, form="qonnx"), ("picture",)),
    "brevitas-qonnx-4": (partial(by_brevitas, form="qonnx", weight_bit_width=4), ("picture",)),
    "torchao-x86": (by_torch, ("picture",)),
    "torchao-xnnpack": (partial(by_torch, kind="xnnpack"), ("picture",)),
}
"""Form -> function of the tool, and networks; the samples "picture" go with a torch module."""


def main(floats: Path, files: Path, words: list[str]) -> None:
    """Write the files."""
    for form, (make, networks) in FORMS.items():
        for network in networks:
            output = files / f"{form}@{network}.onnx"
            samples = floats / f"{network}.npz"
            if not all(word in output.name for word in words) or not samples.exists():
                continue
            with np.load(samples) as arrays:
                stacked = dict(arrays)
            count = len(next(iter(stacked.values())))
            feeds = [{name: values[at : at + 1] for name, values in stacked.items()} for at in range(count)]
            try:
                make(floats / f"{network}.onnx", feeds, output)
            except Exception as error:
                print(f"the tool fails: {output.name}: {type(error).__name__}: {str(error).splitlines()[:1]}")
                output.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
