"""Words and files of other tools, and what stands for them here."""

from __future__ import annotations

_OVERRIDE = "recipe=onnxfq.load_recipe(NAME).override({})"

KEYWORDS = {
    "activation_type": _OVERRIDE.format("activations={'qtype': ...}"),
    "weight_type": _OVERRIDE.format("weights={'qtype': ...}"),
    "per_channel": _OVERRIDE.format("weights={'granularity': ...}") + "; one scale a channel is the default",
    "calibrate_method": _OVERRIDE.format("activations={'calibrator': ...}"),
    "calibration_method": _OVERRIDE.format("activations={'calibrator': ...}"),
    "nodes_to_exclude": _OVERRIDE.format("overrides=[{'nodes': [...], 'keep_float': True}]"),
    "op_types_to_exclude": _OVERRIDE.format("overrides=[{'op_types': [...], 'keep_float': True}]"),
    "calibration_data": "data=...",
    "calibration_data_reader": "data=...",
    "output_path": "output=...",
    "model_output": "output=...",
    "subset_size": "options=onnxfq.QuantizeOptions(data=onnxfq.DataOptions(limit=...))",
}
"""Keywords of functions of other quantizers."""

_TORCH = "it is of torch: load the module, and write it with torch.onnx.export or onnxfq.torch.export_torch"
_TENSORFLOW = "it is of TensorFlow: python -m tf2onnx.convert writes an ONNX model of it"
_ENGINE = "it is an engine of TensorRT: give the ONNX model that it was built from"

MODEL_FILES = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pt2"), _TORCH),
    **dict.fromkeys((".tflite", ".h5", ".keras", ".pb"), _TENSORFLOW),
    **dict.fromkeys((".engine", ".plan", ".trt"), _ENGINE),
    ".xml": "it is OpenVINO's: give the ONNX model that it was converted from",
    ".bin": "give the .onnx file that belongs to it",
    ".safetensors": "it is a checkpoint: `onnxfq convert CHECKPOINT --onto model.onnx` puts it into a graph",
    ".gguf": "it is of llama.cpp: export the model of its hub to ONNX",
    ".mlmodel": "it is of Core ML: export the model that it was converted from to ONNX",
}
"""Remedies by the ending of a file that is given as a model."""

HUGGING_FACE = "python -m onnxruntime_genai.models.builder -i {} -o OUT -p fp32 -e cpu writes one of it"
"""Remedy for a folder of transformers, which has no configuration of GenAI."""

DATA_FILES = {
    **dict.fromkeys((".pt", ".pth"), "write it by numpy.savez('data.npz', INPUT=tensor.numpy())"),
    **dict.fromkeys((".csv", ".tsv"), "write it by numpy.save('data.npy', numpy.loadtxt(path, 'f4'))"),
    **dict.fromkeys((".mp4", ".avi", ".mov", ".mkv"), "give its frames: ffmpeg -i FILE -r 1 frames/%05d.png"),
    **dict.fromkeys((".wav", ".flac", ".mp3"), "give its samples as an array of the model's input"),
    ".parquet": "give a function, module:function, that returns its rows as arrays",
    ".h5": "give a function, module:function, that returns its arrays",
    ".tfrecord": "give a function, module:function, that returns its arrays",
}
"""Remedies by the ending of a file that is given as data."""
