"""Each promise of README has a test, and a plain `pytest` runs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from durations import DEAR, duration_of

TESTS = Path(__file__).parent
README = " ".join((TESTS.parent / "README.md").read_text(encoding="utf-8").split())

PROMISES: dict[str, tuple[str, ...]] = {
    "a quantized one that TensorRT, ONNX Runtime, OpenVINO or QNN runs in low precision.": (
        "targets/test_check.py::test_command_builds",
        "targets/test_node_units.py::test_plain_session_runs_integer_kernels",
        "targets/test_openvino.py::test_recipe_runs_low",
        "targets/test_qnn.py::test_every_operator_is_a_node_unit",
    ),
    "You measure its accuracy in ONNX Runtime first.": (
        "stages/test_evaluation.py::test_accuracy_counts_labels",
        "stages/test_evaluation.py::test_scores_by_hand",
    ),
    "onnxfq decides where the pairs go and gives its reasons.": (
        "stages/test_planning.py::test_every_float_tensor_is_placed_or_has_a_reason",
    ),
    "It calibrates in one pass over your data, in a fixed amount of memory.": (
        "remedies/test_shared_observation.py::test_the_data_is_read_once",
        "execution/test_memory.py::test_observing_keeps_to_its_memory_for_any_number_of_samples",
    ),
    "It writes standard ONNX, and reports what was quantized and what was not.": (
        "test_random_graphs.py::test_random_graphs",
        "report/test_reports.py::test_page_has_every_tensor_and_reason",
    ),
    "It needs no torch, GPU or TensorRT.": (
        "test_layers.py::test_slow_libraries_are_not_imported",
        "targets/test_check.py::test_missing_extra",
        "torch/test_missing.py::test_missing_package_names_the_remedy",
    ),
    "Install it and quantize a trained network that comes with it": (
        "test_documentation.py::test_install_commands_are_those_of_the_check",
    ),
    "The demo ends with accuracies on digits that the network never saw.": (
        "cli/test_demo.py::test_accuracies",
        "test_models.py::test_no_picture_is_in_two_parts",
    ),
    "It writes the models and a report to `onnxfq-demo/`": ("cli/test_demo.py::test_files",),
    "With onnxruntime for the CPU it downloads 60 MB": (
        "test_packaging.py::test_the_cpu_install_is_one_command_that_the_check_runs",
    ),
    "`calibration.npz` holds one array per model input, by name": (
        "data/test_sources.py::test_one_hash_for_all_sources",
    ),
    "onnxfq quantize model.onnx --data calibration.npz -o model.int8.onnx --report report.html": (
        "test_documentation.py::test_commands_and_code_run",
    ),
    "`quantize` also tries what costs nothing at run time: other calibrators, equalized channels, weights": (
        "remedies/test_judge.py::test_remedies_follow_each_other",
        "remedies/test_equalization.py::test_far_less_noise",
        "remedies/test_auto_rounding.py::test_weights_that_make_the_noise_are_rounded",
    ),
    "It keeps what unseen samples prove": (
        "remedies/test_judge.py::test_no_sample_has_two_parts",
        "remedies/test_judge.py::test_unseen_samples_give_no_ranges",
    ),
    "model, `trtexec` and Polygraphy commands, samples with outputs.": (
        "tools/test_handoff.py::test_samples_and_outputs",
        "tools/test_handoff.py::test_scripts",
    ),
    "Three tutorials go from nothing to a checked model": (
        "test_documentation.py::test_a_tutorial_leads_to_checked_models",
    ),
    "`--time` measures both": ("cli/test_recipes_and_times.py::test_evaluate_times_each_in_its_runtime",),
    "[Recipes](docs/recipes.md) has the rest.": ("test_documentation.py::test_recipes_are_valid",),
    "`check` needs no GPU.": ("targets/test_check.py::test_command",),
    "On an H200 the CUDA kernels give the CPU's bits": ("test_gpu_check.py::test_networks_on_the_cpu",),
    "each tool by its defaults, then by its best documented option.": (
        "test_comparison.py::test_pages_are_those_of_the_rows",
        "test_comparison.py::test_a_run_goes_on_where_it_ended",
    ),
    "lists all pages, and the [examples](examples/README.md) are code to copy.": (
        "test_documentation.py::test_every_page_is_linked_from_readme",
        "test_examples.py::test_command_runs",
    ),
    "what is guaranteed about foreign files": (
        "test_packaging.py::test_security_lists_every_reader",
        "support/test_damaged_files.py::test_damaged_files",
    ),
}
"""Sentences, or their ends, that a user relies on, with the tests that prove them."""


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_tests_that_a_plain_run_has(promise: str) -> None:
    """README has the words; each test is there, in a cheap file or with the marker `sample`."""
    assert promise in README
    for test in PROMISES[promise]:
        file, _, name = test.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        found = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        assert name in found, test
        marks = " ".join(ast.unparse(one) for one in found[name].decorator_list)
        assert (duration_of(TESTS / file) < DEAR or "sample" in marks) and "mark.whole" not in marks, test
