"""A target of fuzzing: run for a time from a fixed seed, each example in bounded time and memory, its failure told."""

import contextlib
import faulthandler
import io
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from benchsuite.cli.app import run_command

EXAMPLES_A_ROUND = 12
EXAMPLE_S, STUCK_S = 10, 120
"""An example that takes longer hangs: Python code is stopped and told, other code ends the tests with its stack."""
MEMORY_BYTES = 2 << 30
COMMAND = (sys.executable, "-c", "from benchsuite.cli.app import main; main()")


class Hang(BaseException):
    """An example took too long."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed."""

    name: str
    examples: st.SearchStrategy[Any]
    check: Callable[[Any, Path], None]
    """Fails where an example, in a folder for it and all the others, breaks a promise."""


@dataclass
class Tally:
    """What was tried."""

    num_examples: int = 0
    num_rounds: int = 0


def fuzz(target: Target, folder: Path, first_seed: int, seconds: float, tally: Tally) -> None:
    """Rounds of examples, each from the next seed, until the time is over.

    Raises:
        BaseException: what an example raised, smallest example first, with the seed that leads to it.
    """
    until = time.monotonic() + seconds

    def one(example: Any) -> None:
        tally.num_examples += 1
        with bounded():
            target.check(example, folder)

    while True:
        number = first_seed + tally.num_rounds
        tally.num_rounds += 1
        wanted = settings(
            max_examples=EXAMPLES_A_ROUND,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.normal,
            print_blob=False,
        )
        try:
            seed(number)(wanted(given(target.examples)(one)))()
        except BaseException as error:
            error.add_note(f"again: make fuzz MINUTES=0 TARGET={target.name} SEED={number}")
            raise
        if time.monotonic() >= until:
            return


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Stop what takes too long, and refuse what takes too much memory."""

    def stop(_number: int, _frame: object) -> NoReturn:
        raise Hang(f"more than {EXAMPLE_S} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(STUCK_S, exit=True, file=sys.__stderr__)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, EXAMPLE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        faulthandler.cancel_dump_traceback_later()


def command(*arguments: object) -> tuple[int, str, str]:
    """The command line in this process: exit code, stdout and stderr; a traceback is the exception itself."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def check_said(code: int, err: str, allowed: tuple[int, ...]) -> None:
    """An exit code that is documented for the verb; with 2 the last line says what is wrong."""
    assert code in allowed, f"exit code {code}: {err[-500:]}"
    assert "Traceback" not in err
    if code == 2 and err:
        assert err.splitlines()[-1].startswith("error: "), err[-2000:]
        assert len(err) < 100_000


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
