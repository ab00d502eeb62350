"""Script of a user with every public name of onnxfq and its types; nothing here is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import onnxfq

Arrays = Mapping[str, NDArray[Any]]


def quantize_and_measure(model: onnx.ModelProto, data: dict[str, NDArray[np.float32]]) -> None:
    """One call, and what it returns."""
    calls: list[int] = []
    options = onnxfq.QuantizeOptions(
        batch=8,
        threads=2,
        progress=lambda stage, done, total: calls.append(done),
        data=onnxfq.DataOptions(scale=1 / 255, limit=64),
        floats=onnxfq.FloatOptions("fp16", io=True),
        gpus=("l4",),
    )
    drawn: onnxfq.QuantizeResult = onnxfq.quantize(model, onnxfq.DrawnInputs())
    assert drawn.evaluation.drawn
    accuracy = onnxfq.AccuracyTarget(max_drop=0.5, labels=[1, 2, 3], fallback="weights", repair="thorough")
    sources = onnxfq.Sources(encodings="scales.json", uncalibrated="float")
    result: onnxfq.QuantizeResult = onnxfq.quantize(
        model, data, "q.onnx", recipe="tensorrt-int8", sources=sources, accuracy=accuracy, options=options
    )
    written: onnx.ModelProto = result.qdq
    score: float = result.evaluation.lowest_db
    plan: onnxfq.Plan = result.plan
    encodings: onnxfq.Encodings = result.encodings
    trials: tuple[onnxfq.Trial, ...] = result.trials
    candidate: onnxfq.Candidate | None = result.candidate
    onnxfq.write_report(result, "report.html")
    outcomes: list[onnxfq.RecipeOutcome] = onnxfq.quantize(model, data, recipe=["openvino-int8", "qnn-int8"])
    table: list[str] = onnxfq.compare_recipes("m.onnx", outcomes, time=True).lines()
    best: onnxfq.QuantizeResult = outcomes[0].unwrap()
    print(written.ByteSize(), score, plan, encodings, trials, candidate, table, best.seconds["observe"] + 1)


def share_right(outputs: Iterator[Arrays], labels: NDArray[np.int64]) -> float:
    """A metric of the user."""
    return float(
        np.mean([made["y"].argmax(-1) == label for made, label in zip(outputs, labels, strict=True)])
    )


def evaluate_and_repair(data: list[Arrays]) -> None:
    """Figures of models that exist, and what is wrong with one."""
    found: onnxfq.Evaluation = onnxfq.evaluate(
        "m.onnx", {"a": "a.onnx", "b": Path("b.onnx")}, data, labels="l.npy", metric=share_right
    )
    figures: list[float] = [one.sqnr_db for each in found.candidates for one in each.outputs]
    diagnosis: onnxfq.Diagnosis = onnxfq.diagnose("q.onnx", reference="m.onnx", data=data, output="r.onnx")
    causes: list[onnxfq.Cause] = list(diagnosis.causes)
    texts: list[str] = [cause.kind + cause.tensor + cause.repair for cause in causes]
    ranked: onnxfq.Sensitivity = onnxfq.sensitivity("m.onnx", data, samples=4, metric="perplexity")
    groups: list[float] = [group.alone_db for group in ranked.groups]
    override: onnxfq.Override = ranked.override([0])
    compared: onnxfq.Comparison = onnxfq.compare("q.onnx", data, candidate="openvino")
    print(figures, texts, groups, override.nodes, compared.table(), onnxfq.diff_models("a.onnx", "b.onnx"))


def run_stages(path: Path, data: Iterator[Arrays]) -> None:
    """The stages, one by one."""
    model: onnxfq.Model = onnxfq.load(path)
    recipe: onnxfq.Recipe = onnxfq.load_recipe("tensorrt-int8").override(activations={"calibrator": "mse"})
    plan: onnxfq.Plan = onnxfq.make_plan(model, recipe)
    feeds = onnxfq.open_feeds(model.proto, data, 4, onnxfq.read_preprocessor("preprocessor_config.json"))
    observing = onnxfq.ObserveOptions(threads=1, nonfinite="skip")
    statistics: onnxfq.Statistics = onnxfq.collect_statistics(model, plan, feeds, observing)
    encodings: onnxfq.Encodings = onnxfq.calibrate(model, plan, statistics)
    each: list[onnxfq.Encoding] = list(encodings.encodings)
    scales: list[NDArray[np.float32]] = [one.scale for one in each]
    simulation: onnx.ModelProto = onnxfq.insert_fake_quantize(model, plan, encodings, switches="one")
    onnxfq.save(onnxfq.insert_qdq(model, plan, encodings), "q.onnx")
    matched: onnxfq.PlannedEncodings = onnxfq.match_encodings(model, plan, {"x": [{"quant_type": "QInt8"}]})
    planned: onnxfq.PlannedEncodings = onnxfq.plan_encodings(model, recipe, "scales.json")
    moments: onnxfq.Moments = onnxfq.gather_moments(
        model, onnxfq.observation_plan(model), "d.npz", "moments.npz", options=onnxfq.RunOptions(batch=2)
    )
    print(scales, simulation.graph.name, matched.plan, planned.plan, moments.origin)
    print(onnxfq.export_encodings(encodings, plan, "aimet"))


def hand_over(model: onnx.ModelProto, data: Arrays) -> None:
    """Models of other tools, 16 bits, and the machine with the GPU."""
    build = onnxfq.BuildOptions(shapes={"x": [1, 3, 224, 224]}, seconds=60)
    checked: onnxfq.CheckResult = onnxfq.check(model, "tensorrt", build=build, gpus=["l4"])
    findings: list[onnxfq.Finding] = list(checked.findings)
    messages: list[str] = [finding.message for finding in findings]
    half: onnxfq.Casting = onnxfq.cast(model, data, floats=onnxfq.FloatOptions("bf16"))
    converted: onnxfq.Conversion = onnxfq.convert("other.onnx", "q.onnx", target="tensorrt")
    packed: onnxfq.Handoff = onnxfq.handoff("q.onnx", "kit", data=data, build=build)
    print(messages, half.half.ir_version, converted.qdq.ir_version, packed.files, onnxfq.inspect_model(model))


def propose(candidate: onnxfq.Candidate, judge: Any) -> Any:
    """A remedy of the user."""
    return candidate.with_recipe(candidate.recipe.override(smooth="auto"))


REMEDY = onnxfq.Remedy(
    "mine",
    explain_unneeded=lambda candidate, judge: "",
    propose=propose,
    is_asked=lambda recipe: recipe.smooth != "none",
    is_free=True,
    estimate=lambda candidate, judge: 1.0,
)


def work_on_arrays(x: NDArray[np.float32]) -> None:
    """Arrays without a model, and figures."""
    made: onnxfq.QuantizedArray = onnxfq.quantize_array(x, dtype=np.int8, axis=0)
    back: NDArray[np.float32] = onnxfq.dequantize_array(*made)
    noise: onnxfq.QuantizationNoise = onnxfq.quantization_noise(x, back)
    low, high = onnxfq.adjust_min_max(-1.0, 1.0, "int8", symmetric=True)
    scale, zero_point = onnxfq.choose_qparams(low, high, "int8", True, onnxfq.ParamRules(power_of_two=True))
    rounded: NDArray[Any] = onnxfq.fake_quantize(x, scale, zero_point, qtype="int8", rounding="half_even")
    db: float = noise.sqnr_db
    onnxfq.plot_quantization_errors(x, made.values, back).savefig("errors.png")
    print(db, rounded.shape)


def draw(result: onnxfq.QuantizeResult) -> None:
    """Figures of a result."""
    onnxfq.plot.histogram(result, "x").savefig("histogram.png")
    if result.sensitivity is not None:
        onnxfq.plot.sensitivity(result.sensitivity).savefig("sensitivity.png")


def open_session(path: str) -> str:
    """The operators of onnxfq in a session of the user, and an error."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    onnxfq.register_custom_ops(options)
    onnxfq.use_custom_ops("mine.so")
    try:
        onnxruntime.InferenceSession(path, options)
    except onnxfq.OnnxfqError as error:
        return str(error)
    return onnxfq.custom_ops_path() + onnxfq.__version__


def export(module: Any) -> onnx.ModelProto:
    """A module of torch."""
    return onnxfq.export_torch(module, [], "m.onnx", dynamic_batch=False)
