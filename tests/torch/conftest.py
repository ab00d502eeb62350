"""Exports of the tests of this folder share the table of torch's exporter."""

from importlib.util import find_spec

if find_spec("torch") and find_spec("onnxscript"):
    from exporter_functions import keep_functions

    keep_functions()
