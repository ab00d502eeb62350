"""Journeys of users, command by command: each says what comes next, and a terminal of 80 columns holds it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from genai_folders import WORDS, write_folder

from onnxfq.cli.main import main
from onnxfq.report.contents import read_result

COLUMNS = 80


class Detector(torch.nn.Module):
    """A backbone with heads for boxes in pixels and for scores, joined at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, 2, 1), torch.nn.ReLU()
        )
        self.boxes, self.scores = torch.nn.Conv2d(16, 4, 1), torch.nn.Conv2d(16, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return [batch, places, 7]: corners, then scores."""
        seen = self.backbone(image)
        parts = [self.boxes(seen) * 16.0, self.scores(seen).sigmoid()]
        return torch.cat([part.flatten(2) for part in parts], 1).transpose(1, 2)


@pytest.fixture
def walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Return what runs a command in an empty folder, in a terminal, and returns the text that it shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onnxfq.cli.streams.measure_room", lambda stream: COLUMNS)

    def run(line: str) -> str:
        capfd.readouterr()
        code = main(shlex.split(line))
        shown = capfd.readouterr()
        assert code == 0 and "error" not in shown.err, (line, shown.err)
        assert not [one for one in shown.out.splitlines() if len(one) > COLUMNS and "{" not in shown.out]
        return shown.out

    return run


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_detector(walk: Callable[[str], str]) -> None:
    """From a torch module to the folder for the machine with the GPU; the parts bear the names of modules."""
    module, images = Detector().eval(), np.random.default_rng(1).random((24, 3, 32, 32), np.float32)
    torch.onnx.export(
        module,
        (torch.from_numpy(images[:2]),),
        "detector.onnx",
        input_names=["image"],
        output_names=["found"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    np.savez("data.npz", image=images)
    said = walk("quantize detector.onnx --data data.npz -o int8.onnx --report page.html --artifacts kept")
    scores = " ".join(said[: said.index("time  ")].split())
    assert "view" not in scores and "part 1 of" not in scores, scores
    assert "'boxes'" in scores and "'scores'" in scores, scores  # its words may stand in several lines
    assert said.index("verdict") < said.index("wrote")
    record = read_result(Path("kept/detector.result.json"))
    assert record.table.layers[0].noise_share == max(row.noise_share or 0.0 for row in record.table.layers)
    page = Path("page.html").read_text(encoding="utf-8")
    assert "Layers are measured on" in page and "look at " in page or "ship" in page
    checked = walk("check int8.onnx")
    assert checked.startswith("target     tensorrt") and "findings   none" in checked
    kit = walk("handoff int8.onnx -o kit --data data.npz")
    assert "README.md" in kit and Path("kit/README.md").exists() and Path("kit/model.onnx").exists()


def test_a_decoder(walk: Callable[[str], str]) -> None:
    """From a folder of GenAI to one with int4 weights; caches judge nothing, the next step is named."""
    source = write_folder(Path("float"))
    Path("texts.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 600)), encoding="utf-8")
    first = walk("inspect float")
    assert "onnxfq quantize float --data TEXTS -o float.int4 --recipe genai-int4" in " ".join(first.split())
    made = walk("quantize float --data texts.txt -o float.int4 --recipe genai-int4")
    assert "'logits'" in made and "of 3 outputs" not in made
    assert {one.name for one in Path("float.int4").iterdir()} >= {"model.onnx", "genai_config.json"}
    assert "MatMulNBits" in walk("inspect float.int4")
    scored = walk("evaluate float float.int4 --data texts.txt --metric perplexity")
    assert "perplexity" in scored and source.exists()


@pytest.mark.sample
def test_a_metric_of_the_user(walk: Callable[[str], str]) -> None:
    """A function of the user measures, is promised, and the answer to the promise is printed with figures."""
    from builders import conv_relu, feed_for

    onnx.save(conv_relu(), "model.onnx")
    np.savez("data.npz", x=feed_for(conv_relu(), count=32)["x"])
    Path("own.py").write_text(
        "import numpy as np\n\n\n"
        "def level(outputs, samples):\n"
        "    return float(np.mean([next(iter(one.values())).mean() for one in outputs]))\n"
    )
    said = walk("quantize model.onnx --data data.npz -o q.onnx --metric own:level --max-drop .5")
    line = " ".join(said.split())
    assert (
        "promised own:level: float" in line
        and " of 0.5 allowed" in line
        and "ship: the promise is kept" in line
    )
    scored = walk("evaluate model.onnx q.onnx --data data.npz --metric own:level")
    assert "level" in scored.splitlines()[0]
    shown = walk("evaluate model.onnx q.onnx --data data.npz --metric own:level --json")
    assert abs(json.loads(shown)["metric_value"] - json.loads(shown)["candidates"][0]["metric"]) <= 0.5
