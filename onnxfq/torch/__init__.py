"""From a torch module to ONNX: the only part of onnxfq that imports torch.

Importing it without torch or onnxscript installed raises ModuleNotFoundError, in one line with the remedy.
"""

from importlib.util import find_spec

for _package in ("torch", "onnxscript"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(
            f'export_torch needs {_package}, which is not installed; run pip install "onnxfq[torch]"',
            name=_package,
        )

from onnxfq.torch.export import export_torch  # noqa: E402  only once torch is known to be there

__all__ = ["export_torch"]
