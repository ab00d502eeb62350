"""Pages of README and docs as steps: the files they ask for, their Python, their commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs").glob("tutorial*.md"))
NAMED_FILE = re.compile(r"`(\S+\.(?:yaml|py))`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Installing is what the whole check does; it would replace the package under test.
INSTALLS = ("pip install . && onnxfq demo", 'pip install ".[test]" && pytest')
CPU_INSTALL = "ONNXFQ_RUNTIME=cpu pip install ."
# The extra `test` has all that the extra of the tutorials has.
# tests/slow/check_genai.py runs the way to tokens whole, in an environment that has ONNX Runtime GenAI.
FOR_GENAI = ("python -m onnxruntime_genai.models.builder ", "python generate.py ")
NOT_RUN = (*INSTALLS, CPU_INSTALL, "pip install .", 'pip install ".[torch]"')


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of one language in a page."""
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def steps(page: Path, folder: Path) -> Iterator[tuple[Literal["python", "onnxfq"], list[str]]]:
    """Write the files of a page to `folder`, then yield its steps: a program and its arguments.

    A block behind the name of a file is that file. Commands that install or need GenAI are left out.
    """
    text = page.read_text(encoding="utf-8")
    files = dict(NAMED_FILE.findall(text))
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    for kind, block in BLOCK.findall(text):
        if kind == "python" and block not in files.values():
            yield "python", ["-c", block]
        for line in block.splitlines() if kind == "sh" else ():
            words = shlex.split(line)
            if line.startswith(FOR_GENAI):
                continue
            if words[0] == "python":
                yield "python", words[1:]
            elif line not in NOT_RUN:
                assert words[0] == "onnxfq", f"no test runs {line!r}"
                yield "onnxfq", words[1:]
