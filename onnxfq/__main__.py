"""The console command `onnxfq`, also `python -m onnxfq`: it ends in one line, whatever ends it.

The command runs in a child process, forked before the imports of its work. This process passes signals on,
and says in one line that one ended it: a crash in a native library, or a lack of memory.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings

_FAULT = 70
"""Exit code for a fault of onnxfq itself: EX_SOFTWARE of sysexits."""


def main() -> int:
    """Run the command line in a child process; return its exit code."""
    _open_standard_streams()
    if sys.argv[1:] == ["--version"]:
        return _print_version()
    from onnxfq.support.interrupts import ENDING, end_with

    usual = (signal.SIG_DFL, signal.default_int_handler)  # a parent process may ignore a signal
    ending = [number for number in ENDING if signal.getsignal(number) in usual]
    if not hasattr(os, "fork") or not hasattr(signal, "sigwaitinfo"):
        return _run(ending)
    waited = {signal.SIGCHLD, *ending}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    marks, marking = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        end_with(parent)
        try:
            return _run(ending, before)
        finally:
            os.write(marking, b".")
    os.close(marking)
    while True:
        caught = signal.sigwaitinfo(waited)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            # The blocked signals stay blocked: one that comes now would end this process without its line.
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return _report_signal(-code)
            return code if code == 130 or _is_marked(marks) else _report_exit(code)
        if caught.si_signo != signal.SIGCHLD and caught.si_code <= 0:
            os.kill(child, caught.si_signo)  # sent to this process alone; a terminal sends to both


def _print_version() -> int:
    """Print the version as the command line does, without the time that its libraries take to import."""
    from onnxfq.cli.streams import hold_results
    from onnxfq.errors import OutputError
    from onnxfq.version import VERSION

    try:
        with hold_results():
            print(f"onnxfq {VERSION}")
    except OutputError as fault:
        _tell(str(fault))
        return 1
    return 0


def _open_standard_streams() -> None:
    """Let closed standard streams lead nowhere, so that no file of the command gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def _run(ending: list[signal.Signals], mask: set[int | signal.Signals] | None = None) -> int:
    """Import and run the command line with the blocked signals `mask`; return its exit code."""
    if not sys.warnoptions:  # libraries warn; onnxfq logs its notes
        warnings.simplefilter("ignore")
    for number in ending:
        # No exception: extension modules would turn it into their own errors. Nothing is written yet.
        signal.signal(number, _exit_interrupted)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    from onnxfq.support.memory import limit_memory

    limit_memory()
    from onnxfq.cli.main import main as run
    from onnxfq.support.interrupts import interrupt, was_raised

    try:
        try:
            for number in ending:
                signal.signal(number, interrupt)
            return run()
        finally:
            # All is written or removed: a signal that comes now changes nothing.
            for number in ending:
                signal.signal(number, signal.SIG_IGN)
    except (Exception, KeyboardInterrupt) as fault:
        if was_raised() or isinstance(fault, KeyboardInterrupt):
            _tell("interrupted")
            return 130
        if os.environ.get("ONNXFQ_TRACEBACK"):
            raise
        return _report_fault(fault)


def _is_marked(marks: int) -> bool:
    """Tell whether the child came to its end: a library or code of the user may call exit."""
    os.set_blocking(marks, False)
    try:
        return bool(os.read(marks, 1))
    except BlockingIOError:  # a process that the child started lives on
        return False


def _exit_interrupted(number: int, frame: object) -> None:
    for other in (signal.SIGINT, number):  # it may come twice
        signal.signal(other, signal.SIG_IGN)
    _tell("interrupted")
    os._exit(130)


def _report_signal(number: int) -> int:
    from onnxfq.support.interrupts import ENDING

    if number in ENDING:
        _tell("interrupted")
        return 130
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    why = "a library, most likely ONNX Runtime, crashed on these inputs; try a newer one, or another export"
    if number == signal.SIGKILL:
        why = "memory was most likely short; give a smaller batch or fewer threads"
    _tell(f"the command was ended by {name}: {why}")
    return 1


def _report_exit(code: int) -> int:
    _tell(
        f"the command was ended from inside with exit code {code}: by os._exit in code that it ran, or by a "
        "library for lack of memory; give more memory or fewer threads"
    )
    return 1


_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't start new thread", "bad_alloc")
"""Words of the loader, of threads and of C++ when memory is short."""


def _lacks_memory(fault: BaseException | None) -> bool:
    while fault is not None:
        if isinstance(fault, MemoryError) or any(words in str(fault) for words in _NO_MEMORY):
            return True
        fault = fault.__cause__ or fault.__context__
    return False


def _report_fault(fault: Exception) -> int:
    import traceback

    if _lacks_memory(fault):
        _tell("there is too little memory for this command; give a smaller batch or a smaller model")
        return 1
    place = traceback.extract_tb(fault.__traceback__)[-1]
    text = " ".join(str(fault).split())[:200]
    _tell(
        f"onnxfq itself failed: {type(fault).__name__} ({text}) in line {place.lineno} of {place.filename}; "
        "ONNXFQ_TRACEBACK=1 shows all of it, please report it"
    )
    return _FAULT


def _tell(text: str) -> None:
    try:
        sys.stderr.write(f"onnxfq: error: {text}\n")
        sys.stderr.flush()
    except OSError:
        return  # nobody reads it; the exit code tells


if __name__ == "__main__":
    sys.exit(main())
