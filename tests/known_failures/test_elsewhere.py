"""Known failures whose tests stand where their subject is, and that these tests are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ORT, TRT, MODELOPT = (
    f"https://github.com/{name}"
    for name in ("microsoft/onnxruntime", "NVIDIA/TensorRT", "NVIDIA/Model-Optimizer")
)

MEASURED = "measured with onnxruntime 1.31.1"

# Failures of other projects: (where it was reported, the test that has it).
ELSEWHERE = {
    "memory of calibrating grows with the samples until the process is killed": (
        f"{ORT}/issues/10503",
        "execution/test_memory.py::test_observing_keeps_to_its_memory_for_any_number_of_samples",
    ),
    "the model hangs on threads, batches and the order of the data": (
        f"{MODELOPT}/issues/619",
        "test_same_bits.py::test_however_it_is_fed",
    ),
    "a bound on memory drops the samples that came before": (
        MEASURED,
        "stages/test_observation.py::test_less_memory_means_more_passes_and_the_same_result",
    ),
    "a weight with an infinity gets an infinite scale, silently": (
        MEASURED,
        "stages/test_calibration.py::test_weights_with_nan_are_refused",
    ),
    "channels of zeros get scales of NaN": (
        f"{TRT}/issues/3112",
        "stages/test_calibration.py::test_dead_channels_get_a_scale",
    ),
    "a quantized model gets a second pair, silently": (MEASURED, "cli/test_mistakes.py::test_mistakes"),
    "the number of the opset is raised, and the operators stay as they were": (
        f"{ORT}/issues/9197",
        "graph/test_opsets.py::test_every_structure_at_every_opset",
    ),
    "two equal runs write two models": (
        "https://github.com/ml-explore/mlx-lm/issues/1759",
        "test_same_bits.py::test_a_choice_however_it_is_fed",
    ),
    "every list of exclusions calibrates again; a cache knows neither its model nor its data": (
        f"{ORT}/issues/21908",
        "test_pipeline.py::test_statistics_gathered_before_are_used_and_checked",
    ),
    "the scales of an old TensorRT cache are lost": (
        f"{MODELOPT}/issues/135",
        "interchange/test_tensorrt_cache.py::test_scales_are_the_hex_of_the_file",
    ),
    "which method fits is found by quantizing again with each": (
        f"{ORT}/pull/9342",
        "cli/test_commands.py::test_table_of_calibrators",
    ),
    "data need a class of one's own, which holds them all": (
        f"{ORT}/issues/21979",
        "data/test_sources.py::test_one_hash_for_all_sources",
    ),
    "zero points, uint8 and int32 biases that TensorRT refuses": (
        f"{TRT}/issues/2774",
        "tools/test_convert.py::test_static_models",
    ),
    "dynamic quantization that TensorRT refuses": (
        f"{TRT}/issues/4698",
        "tools/test_convert.py::test_dynamic_models",
    ),
    "scales of a ConvTranspose along the wrong axis": (
        f"{ORT}/issues/19694",
        "graph/test_ops.py::test_a_channel_scales_one_output_channel",
    ),
    "float32 scales in a float16 model, or an opset that has no float16 ones": (
        f"{ORT}/issues/32719",
        "stages/test_half_models.py::test_every_structure",
    ),
    "an IR version that the runtime does not read": (
        "https://github.com/wejoncy/QLLM/issues/126",
        "graph/test_releases.py::test_the_ir_version_is_one_that_the_release_reads",
    ),
    "a model of an old opset, or of a new one": (
        f"{ORT}/issues/16584",
        "graph/test_opsets.py::test_every_structure_at_every_opset",
    ),
    "a model of over 2 GB": (
        f"{ORT}/issues/11072",
        "graph/test_large.py::test_every_structure_inside_a_limit",
    ),
    "names that the tool gives itself": (
        f"{ORT}/issues/14142",
        "graph/test_names_and_sharing.py::test_names_change_nothing",
    ),
    "a tied embedding that is stored twice, silently": (
        "https://github.com/huggingface/optimum/pull/1326",
        "graph/test_names_and_sharing.py::test_a_tied_table_is_split_with_a_note",
    ),
    "shapes that ONNX cannot infer": (
        f"{ORT}/issues/10484",
        "runtime/test_found_types.py::test_unknown_ranks_are_no_error",
    ),
    "operators that the runtime has not": (
        f"{MODELOPT}/issues/503",
        "stages/test_existing.py::test_an_operator_that_onnxruntime_has_not",
    ),
    "messages that name neither thing nor remedy": (
        f"{ORT}/issues/13044",
        "cli/test_mistakes.py::test_mistakes",
    ),
}


@pytest.mark.parametrize("failure", ELSEWHERE)
def test_it_is_there(failure: str) -> None:
    """The file has a test of that name."""
    where, test = ELSEWHERE[failure]
    assert where == MEASURED or where.startswith("https://")
    file, _, name = test.partition("::")
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}
