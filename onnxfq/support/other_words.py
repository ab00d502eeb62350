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

OPTIONS = {
    "--target": "a recipe has it, as in `onnxfq quantize --recipe qnn-int8`, and a written file its own",
    "--bits": "the recipe has the bits, as in --recipe tensorrt-int4; `onnxfq recipes` lists them",
    "--to": "`onnxfq cast` writes floats of --float, `onnxfq quantize` integers of --recipe",
    "--model": "the path of the model stands by itself, as in `onnxfq quantize model.onnx`",
    "-m": "the path of the model stands by itself, as in `onnxfq quantize model.onnx`",
    "-d": "write --data",
}
"""Remedies by an option that another tool has, or another command."""

COMMANDS = {
    "help": "write `onnxfq --help`, or --help behind a command",
    "version": "write `onnxfq --version`",
    "list": "`onnxfq recipes` lists the recipes, `onnxfq --help` the commands",
    "benchmark": "`onnxfq quantize --time` and `onnxfq evaluate --time` measure times",
    "export": "`onnxfq quantize` writes a model for its target",
}
"""Remedies by a command that another tool has."""

_TORCH = "it is of torch: load the module, and write it with torch.onnx.export or onnxfq.torch.export_torch"
_TENSORFLOW = "it is of TensorFlow: python -m tf2onnx.convert writes an ONNX model of it"
_ENGINE = "it is an engine of TensorRT: give the ONNX model that it was built from"
_BUILT = "it is built for one device: give the ONNX model that it was made of"
_APPLE = "it is of Core ML: export the model that it was converted from to ONNX"

MODEL_FILES = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pt2"), _TORCH),
    **dict.fromkeys((".tflite", ".h5", ".keras", ".pb"), _TENSORFLOW),
    **dict.fromkeys((".engine", ".plan", ".trt"), _ENGINE),
    **dict.fromkeys((".dlc", ".hef", ".rknn", ".om", ".bmodel", ".mnn", ".ort"), _BUILT),
    **dict.fromkeys((".mlmodel", ".mlpackage"), _APPLE),
    ".xml": "it is OpenVINO's: give the ONNX model that it was converted from",
    ".bin": "give the .onnx file that belongs to it",
    ".safetensors": "it is a checkpoint: `onnxfq convert CHECKPOINT --onto model.onnx` puts it into a graph",
    ".gguf": "it is of llama.cpp: export the model of its hub to ONNX",
}
"""Remedies by the ending of a file that is given as a model. Nothing writes such a file."""

_BEGINNINGS = {
    b"version https://git-lfs": "it stands for a file in Git LFS: `git lfs pull` brings that",
    b"<": "it is a web page: download the file itself",
    b"PK": "it is an archive: of arrays, give it as data; of a model, unpack it",
    b"\x93NUMPY": "it is an array: give it as data",
}


def explain_model(ending: str, content: bytes) -> str:
    """Return the remedy for a file that holds no ONNX model, by its ending and its first bytes."""
    begun = (text for head, text in _BEGINNINGS.items() if content.startswith(head))
    return MODEL_FILES.get(ending.lower()) or next(begun, "export it again")


HUGGING_FACE = (
    "quantize --python PYTHON makes one of it, as does "
    "python -m onnxruntime_genai.models.builder -i {} -o OUT -p fp32 -e cpu"
)
"""Remedy for a folder of transformers, which has no configuration of GenAI."""

DATA_FILES = {
    **dict.fromkeys((".pt", ".pth"), "write it by numpy.savez('data.npz', INPUT=tensor.numpy())"),
    **dict.fromkeys((".csv", ".tsv"), "write it by numpy.save('data.npy', numpy.loadtxt(path, 'f4'))"),
    **dict.fromkeys((".mp4", ".avi", ".mov", ".mkv"), "give its frames: ffmpeg -i FILE -r 1 frames/%05d.png"),
    **dict.fromkeys((".wav", ".flac", ".mp3"), "give its samples as an array of the model's input"),
    ".parquet": "give a function, module:function, that returns its rows as arrays",
    **dict.fromkeys((".h5", ".tfrecord", ".pkl", ".json"), "give a function, module:function, of its arrays"),
    **dict.fromkeys((".txt", ".jsonl"), "texts are for a folder of GenAI; give the tokens as an .npz"),
    ".onnx": "it is a model: data are the samples that the model reads",
}
"""Remedies by the ending of a file that is given as data."""


def explain_missing(path: object) -> str:
    """Return what to do where a path leads nowhere, by its form."""
    text = str(path)
    if "://" in text or ":/" in text[2:]:
        return "nothing is downloaded; fetch it, and give the file"
    if "*" in text or "?" in text:
        return "no pattern is expanded; give the folder, or a file"
    if text.startswith("~"):
        return "a shell expands ~ only where a word begins; check the path"
    return "check the path"
