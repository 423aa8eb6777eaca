"""The command line in a forked child that may use so much time and memory: what hangs or swells is told."""

import faulthandler
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

from benchsuite.cli import sweep as _imported_before_forking  # noqa: F401
from benchsuite.cli.app import run_command

SECONDS, MEMORY_BYTES = 20, 1 << 30
"""Generous: what is refused at once takes a hundredth of both."""


def run_bounded(folder: Path, *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; a code below zero is the signal that ended it, SIGALRM where it was too slow."""
    out, err = folder / "bounded.out", folder / "bounded.err"
    sys.stdout.flush(), sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _limit()
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        try:
            code = run_command([str(argument) for argument in arguments])
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), out.read_text(), err.read_text()


def _limit() -> None:
    """Bounds of this process from now on, on top of what it has."""
    faulthandler.disable()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
