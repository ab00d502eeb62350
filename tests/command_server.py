"""Commands of onnxfq in child processes with limits: a server imports the package once and forks for a run.

A run costs milliseconds, not the second of the imports, and a crash, a hang or 8 GB end that run alone.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import onnxfq

SECONDS = 60.0
"""Longest run; a longer one counts as a hang."""
MEMORY = 4 << 30
"""Most resident memory of a run in bytes."""
_ADDRESSES = 10 << 30


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: exit code; negative: the signal that ended it.
        out: standard output.
        err: standard error.
        seconds: run time.
        memory: most resident memory in bytes, with the imports.
    """

    code: int
    out: str
    err: str
    seconds: float
    memory: int

    @property
    def errors(self) -> list[str]:
        """The error lines."""
        return [line for line in self.err.splitlines() if line.startswith("onnxfq: error: ")]

    @property
    def fault(self) -> str:
        """Forbidden effects of a command, in a few words; empty if all is well."""
        if self.seconds >= SECONDS:
            return f"hangs for {self.seconds:.0f} s"
        if self.code < 0:
            return f"ends with signal {-self.code}"
        if self.memory > MEMORY:
            return f"takes {self.memory / 2**30:.1f} GB"
        if "Traceback" in self.err or "onnxfq: fault: " in self.err:
            return "traceback: " + " | ".join(self.err.strip().splitlines()[-3:])
        if self.code not in (0, 1, 2, 3):
            return f"exit code {self.code}"
        lines = self.err.splitlines()
        if self.errors and "the command was ended by SIG" in lines[-1]:
            return ""  # a library may say more before it crashes
        if stray := [line for line in lines if not line.startswith("onnxfq: ")]:
            return f"stray line: {stray[0][:300]}"
        findings = self.code == 3 or (self.code == 1 and self.out)
        if self.code and not findings and (len(self.errors) != 1 or lines[-1] != self.errors[0]):
            return f"not one error line last: {self.err[-300:]!r}"
        if self.code == 0 and self.errors:
            return f"an error line and exit code 0: {self.errors[0]}"
        if any(len(line) > 1100 or not line.isprintable() for line in self.errors):
            return f"no clear line, {max(map(len, lines))} characters: {self.errors[0][:200]!r}"
        return ""


class CommandServer:
    """Runner of commands, see the module."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        """Talk to `process`, which writes into `folder`."""
        self._process, self._folder = process, folder

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        seconds: float = SECONDS,
        memory: int = _ADDRESSES,
        read: bool = True,
        program: str = "onnxfq",
    ) -> Ended:
        """Run `onnxfq ARGUMENTS` in the folder `cwd` to its end, for `seconds` and in `memory` at most.

        The program `python` makes every warning an error.
        Without `read` standard output is a pipe that nobody reads.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"arguments": list(arguments), "cwd": str(cwd), "seconds": seconds, "memory": memory}
        job |= {"to": str(self._folder), "read": read, "program": program}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        out, err = ((self._folder / name).read_text("utf-8", "replace") for name in ("out", "err"))
        return Ended(answer["code"], out, err, answer["seconds"], answer["memory"])


@contextmanager
def command_server(*modules: str) -> Iterator[CommandServer]:
    """Yield a server, which imports `modules` too; it ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        # The package that this process has: installed, or of the checkout.
        home = str(Path(onnxfq.__file__).parents[1])
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "ONNXFQ_TRACEBACK": "1"},
        )
        try:
            yield CommandServer(process, Path(folder))
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _serve() -> None:
    from onnxfq.cli.main import COMMANDS, build_app

    build_app(COMMANDS)
    home = Path(onnxfq.__file__).parent
    for path in sorted(home.glob("*/**/[!_]*.py")):
        if path.relative_to(home).parts[0] != "torch":
            importlib.import_module(".".join(path.relative_to(home.parent).with_suffix("").parts))
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if "torch.onnx" in sys.argv:
        importlib.import_module("exporter_functions").export_once()
    for line in sys.stdin:
        job = json.loads(line)
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _run(job)
        pause, ended = 0.001, 0
        while not ended:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
            if time.monotonic() - start > job["seconds"]:
                os.kill(child, signal.SIGKILL)
                ended, status, usage = os.wait4(child, 0)
            else:
                ended, status, usage = os.wait4(child, os.WNOHANG)
        try:
            os.killpg(child, signal.SIGKILL)  # processes that the command started itself
        except ProcessLookupError:
            pass
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - start,
            "memory": usage.ru_maxrss * 1024,
        }
        print(json.dumps(answer), flush=True)


def _run(job: dict[str, Any]) -> NoReturn:
    import resource

    from onnxfq.__main__ import main

    code = 99
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        resource.setrlimit(resource.RLIMIT_DATA, (job["memory"], job["memory"]))
        os.chdir(job["cwd"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(Path(job["to"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if not job["read"]:
            unread, pipe = os.pipe()
            os.close(unread)
            os.dup2(pipe, 1)
        sys.argv = [job["program"], *job["arguments"]]
        code = main() if job["program"] == "onnxfq" else _run_python(job["arguments"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_python(words: Sequence[str]) -> int:
    """Run `python -W error WORDS`: the text of a program behind -c, or its file."""
    warnings.simplefilter("error")
    sys.argv = list(words)
    if words[0] == "-c":
        sys.argv.pop(1)
        sys.path.insert(0, "")
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), module.__dict__)
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve()
