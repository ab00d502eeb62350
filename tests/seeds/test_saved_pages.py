"""The originals' pages, block by block, with only their imports changed.

    ONNXFQ_SAVED_PAGES=FOLDER python -m pytest tests/seeds/test_saved_pages.py

FOLDER has the pages as a browser saves their text: aimet*.txt, horizon*.txt, nvidia*.txt, *guide*.txt and
torch*.txt. Without it only the readers run, on texts of the same forms.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from saved_pages import Block, read_module, read_one_line, read_prompts, read_slid_names

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from onnxfq.torch.compat import guide, horizon

FOLDER = os.environ.get("ONNXFQ_SAVED_PAGES")
NUMBER = re.compile(r"-?\b\d+(?:\.\d*)?(?:e-?\d+)?")


class Named:
    """A class of three arguments, which Horizon's page calls Foo and does not define."""

    def __init__(self, a: int, b: int, answer: int) -> None:
        self.a, self.b, self.answer = a, b, answer


@dataclass(frozen=True)
class Page:
    """How a page is read, what its imports become, and the names that it takes for granted."""

    file: str
    read: Callable[[str], list[Block]]
    imports: dict[str, str]
    names: dict[str, Any] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()


TABLE = torch.tensor(
    [
        [-539.7578, -559.8864, 615.4858, -677.5037, -481.3652, 557.0392],
        [-761.4703, 502.1984, 623.5497, 277.9323, 183.5344, 395.8571],
        [774.6538, 83.3037, -737.2340, 944.8324, 750.8967, -23.7258],
        [-598.6270, -396.6147, -904.1458, 678.6168, -88.8622, 705.5219],
        [385.5581, -203.1455, -654.7877, 356.3862, -657.0405, -227.5714],
        [608.7488, -557.6073, -50.0951, -138.9851, 117.3401, 985.9318],
    ]
)
HELPERS = {name: value for name, value in vars(guide).items() if callable(value)}
FUNCTION = "fake_quantize_per_channel_affine"
PAGES = {
    "aimet": Page(
        "aimet*.txt", read_prompts,
        {"aimet_torch.v2.quantization": "onnxfq.torch.compat.aimet"}, {"torch": torch},
    ),
    "horizon": Page(
        "horizon*.txt", read_prompts, {},
        {"Foo": Named, "_with_args": horizon.FakeQuantize.with_args.__func__},
    ),
    "nvidia": Page("nvidia*.txt", read_module, {"pytorch_quantization": "onnxfq.torch.compat.nvidia"}),
    "guide, its functions": Page("*guide*.txt", read_slid_names, {}, {**HELPERS, "test_tensor": TABLE}),
    "guide, our functions": Page(
        "*guide*.txt", read_slid_names, {}, {**HELPERS, "test_tensor": TABLE}, {}, tuple(HELPERS)
    ),
    "torch": Page(
        f"torch_{FUNCTION}*.txt", read_one_line,
        {"import torch": f"import torch\nfrom onnxfq.torch import {FUNCTION}", f"torch.{FUNCTION}": FUNCTION},
        {}, {"-> Tensor": "a signature"},
    ),
}  # fmt: skip


def blocks_of(name: str) -> list[Block]:
    """Return the blocks of a saved page; none without the folder."""
    page = PAGES[name]
    files = sorted(Path(FOLDER).glob(page.file)) if FOLDER else []
    return page.read(files[0].read_text(encoding="utf-8")) if files else []


CASES = [(name, i) for name in PAGES for i in range(len(blocks_of(name)))]


def run(page: Page, code: str, names: dict[str, Any]) -> str:
    """Run code with the page's imports changed; return what it prints, and what a prompt shows."""
    mode = "single" if page.read is read_prompts else "exec"
    for old, new in page.imports.items():
        code = code.replace(old, new)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for statement in ast.parse(code).body:
            if not (isinstance(statement, ast.FunctionDef) and statement.name in page.replaced):
                tree = ast.Interactive([statement]) if mode == "single" else ast.Module([statement], [])
                exec(compile(tree, page.file, mode), names)
    return printed.getvalue()


def check_printed(found: str, wanted: str, drawn: bool) -> None:
    """Compare the page's output, which may go on with its next words; numbers too, unless they are drawn."""
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (found, wanted)]
    # Signs and line breaks of drawn numbers move the spaces.
    words = [re.sub(r"\s", "", NUMBER.sub("#", text)) for text in (found, wanted)]
    assert words[0] and words[1].startswith(words[0]), (found, wanted)
    if not drawn:
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)  # the guide prints its tensor to 7 digits


@pytest.mark.skipif(not FOLDER, reason="ONNXFQ_SAVED_PAGES names no folder of saved pages")
def test_every_page_is_there() -> None:
    """A page that is missing, or that lost its code, is no success."""
    for name in PAGES:
        assert blocks_of(name), f"{PAGES[name].file} is not in {FOLDER}, or has no code"


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_block_prints_what_its_page_shows(name: str, number: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Each block runs behind those before it; its output is the page's."""
    monkeypatch.chdir(tmp_path)
    page, blocks = PAGES[name], blocks_of(name)[: number + 1]
    names, printed = dict(page.names), ""
    for block in blocks:
        reason = next((why for mark, why in page.not_run.items() if mark in block.code), None)
        printed = "" if reason else run(page, block.code, names)
    if reason:
        pytest.skip(reason)
    if blocks[-1].printed:
        check_printed(printed, blocks[-1].printed, drawn="randn" in blocks[-1].code)
    if name in CHECKS:
        CHECKS[name](names)


def check_aimet(names: dict[str, Any]) -> None:
    """Values are (integer + offset) scale of the page's formula, with the integers of 8 bits."""
    q, x = names["qdq"], names["input"]
    scale, offset = (t.repeat_interleave(5, 1) for t in (q.get_scale(), q.get_offset()))
    wanted = (((x / scale).round() - offset).clamp(0, 255) + offset) * scale
    assert torch.equal(torch.as_tensor(names["qdq"](x).dequantize()), wanted)


def check_nvidia(names: dict[str, Any]) -> None:
    """The quantized network is the float one with each input and weight rounded by the page's formula."""
    torch.manual_seed(0)
    plain, quantized = names["LeNet"]().eval(), names["QuantLeNet"]().eval()
    missing, _ = quantized.load_state_dict(plain.state_dict(), strict=False)
    assert not missing

    def rounded(x: Any, amax: Any) -> Any:
        factor = torch.full_like(amax, 127) / amax
        return (x.clamp(-amax, amax) * factor).round() / factor

    for layer in plain.children():
        weight = layer.weight.data
        layer.weight.data = rounded(weight, weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True))
        layer.register_forward_pre_hook(lambda module, args: (rounded(args[0], args[0].abs().max()),))
    x = torch.rand(4, 1, 28, 28)
    assert torch.equal(quantized(x), plain(x))


def check_torch(names: dict[str, Any]) -> None:
    """The values are those of torch's own function."""
    wanted = torch.fake_quantize_per_channel_affine(
        names["x"], names["scale"], names["zero_point"], 1, 0, 255
    )
    assert torch.equal(names["y"], wanted)


def check_horizon(names: dict[str, Any]) -> None:
    """The factory keeps the arguments of both calls."""
    assert vars(names["foo_instance1"]) == {"a": 3, "b": 4, "answer": 42}


CHECKS = {"aimet": check_aimet, "nvidia": check_nvidia, "torch": check_torch, "horizon": check_horizon}

PROMPTS = """Words

>>> import math as M
>>> with open(M.e) as f:
...     _ = f
...
>>> 1 + 1
2
"""
MODULE = "Usage of it:\n\nimport math\n\nx = math.e\nAnd so on."
ONE_LINE = """Code: ```python import os # A set (b=2) x = f( 1, a=2 ) print("y", x) ``` ### Output
 ```text y 3 ```"""
SLID = """Words of it:
= 1
a = 2
b print(f(
a, b =a))
Out: 3
def f(x):
for i in x:
= i
a, c = 4
x[i]
# A comment
= 5
d return d
= f(1) e, g
Words"""
UNSLID = """def f(x):
    for i in x:
        a, c = i
        x[i] = 4
    # A comment
    d = 5
    return d
e, g = f(1)"""
SHORT = {
    read_prompts: (PROMPTS, [Block("import math as M\nwith open(M.e) as f:\n    _ = f\n1 + 1\n", "2\n")]),
    read_module: (MODULE, [Block("import math\n\nx = math.e")]),
    read_one_line: (ONE_LINE, [Block('import os \n# A set (b=2) \nx = f( 1, a=2 ) \nprint("y", x)', "y 3")]),
    read_slid_names: (SLID, [Block("a = 1\nb = 2\nprint(f(\na, b =a))", "Out: 3"), Block(UNSLID)]),
}


@pytest.mark.parametrize("read", SHORT, ids=lambda read: read.__name__)
def test_readers(read: Callable[[str], list[Block]]) -> None:
    """Prompts, code between prose, blocks of one line, and names that slid to the next line."""
    text, wanted = SHORT[read]
    assert read(text) == wanted
