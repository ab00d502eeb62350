"""Known failures whose tests stand where their subject is, and that these tests are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from text_tables import read_table

TESTS = Path(__file__).parents[1]
ELSEWHERE = """
memory of calibrating grows with the samples until the process is killed
    execution/test_memory.py::test_observing_keeps_to_its_memory_for_any_number_of_samples
    microsoft/onnxruntime/issues/10503
the model hangs on threads, batches and the order of the data
    test_same_bits.py::test_however_it_is_fed NVIDIA/Model-Optimizer/issues/619
a bound on memory drops the samples that came before
    stages/test_observation.py::test_less_memory_means_more_passes_and_the_same_result measured
a weight with an infinity gets an infinite scale, silently
    stages/test_calibration.py::test_weights_with_nan_are_refused measured
channels of zeros get scales of NaN
    stages/test_calibration.py::test_dead_channels_get_a_scale NVIDIA/TensorRT/issues/3112
a quantized model gets a second pair, silently
    cli/test_mistakes.py::test_mistakes measured
the number of the opset is raised, and the operators stay as they were
    graph/test_opsets.py::test_every_structure_at_every_opset microsoft/onnxruntime/issues/9197
two equal runs write two models
    test_same_bits.py::test_a_choice_however_it_is_fed ml-explore/mlx-lm/issues/1759
every list of exclusions calibrates again; a cache knows neither its model nor its data
    test_pipeline.py::test_statistics_gathered_before_are_used_and_checked microsoft/onnxruntime/issues/21908
the scales of an old TensorRT cache are lost
    interchange/test_tensorrt_cache.py::test_scales_are_the_hex_of_the_file NVIDIA/Model-Optimizer/issues/135
which method fits is found by quantizing again with each
    cli/test_commands.py::test_table_of_calibrators microsoft/onnxruntime/pull/9342
data need a class of one's own, which holds them all
    data/test_sources.py::test_one_hash_for_all_sources microsoft/onnxruntime/issues/21979
zero points, uint8 and int32 biases that TensorRT refuses
    tools/test_convert.py::test_static_models NVIDIA/TensorRT/issues/2774
dynamic quantization that TensorRT refuses
    tools/test_convert.py::test_dynamic_models NVIDIA/TensorRT/issues/4698
scales of a ConvTranspose along the wrong axis
    graph/test_ops.py::test_a_channel_scales_one_output_channel microsoft/onnxruntime/issues/19694
float32 scales in a float16 model, or an opset that has no float16 ones
    stages/test_half_models.py::test_every_structure microsoft/onnxruntime/issues/32719
an IR version that the runtime does not read
    graph/test_releases.py::test_the_ir_version_is_one_that_the_release_reads wejoncy/QLLM/issues/126
a model of an old opset, or of a new one
    graph/test_opsets.py::test_every_structure_at_every_opset microsoft/onnxruntime/issues/16584
a model of over 2 GB
    graph/test_large.py::test_every_structure_inside_a_limit microsoft/onnxruntime/issues/11072
names that the tool gives itself
    graph/test_names_and_sharing.py::test_names_change_nothing microsoft/onnxruntime/issues/14142
a tied embedding that is stored twice, silently
    graph/test_names_and_sharing.py::test_a_tied_table_is_split_with_a_note huggingface/optimum/pull/1326
shapes that ONNX cannot infer
    runtime/test_found_types.py::test_unknown_ranks_are_no_error microsoft/onnxruntime/issues/10484
operators that the runtime has not
    stages/test_existing.py::test_an_operator_that_onnxruntime_has_not NVIDIA/Model-Optimizer/issues/503
messages that name neither thing nor remedy
    cli/test_mistakes.py::test_mistakes microsoft/onnxruntime/issues/13044
"""
"""Failures of other projects: the test that has each, and where on GitHub it was reported.

`measured`: with onnxruntime 1.31.1.
"""


@pytest.mark.parametrize(("failure", "found"), read_table(ELSEWHERE))
def test_it_is_there(failure: str, found: str) -> None:
    """The file has a test of that name."""
    test, where = found.split()
    assert where == "measured" or where.count("/") == 3, failure
    file, _, name = test.partition("::")
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}
